"""Trackers and callbacks: what they wrote is read back with the programs that they write for."""

import csv
import importlib.util
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa import cli
from feddwa.errors import InputError
from feddwa.trackers import tensorboard

SMALL = {"clients": 4, "rounds": 3, "param": ("groups=2",), "participation": 0.5}
installed = pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="the extra tensorboard is missing")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("board") / "run"
    feddwa.run(out=str(out), track=["tensorboard"], **SMALL)
    return out


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), {"scalars": 0, "histograms": 0, "images": 0}).Reload()


@installed
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_are_those_of_the_metrics(run):
    found = events(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    accuracy = [(event.step, event.value) for event in found.Scalars("accuracy before training/all")]
    assert accuracy == [(line["round"], pytest.approx(line["before"]["all"])) for line in lines]
    assert [event.value for event in found.Scalars("cost/bytes_up")] == [line["bytes_up"] for line in lines[:-1]]
    tags = set(found.Tags()["scalars"])
    assert {"loss/before training", "loss/after training", "cost/flops", "seconds/train"} <= tags


@installed
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_histograms_hold_every_client(run):
    before, after = (events(run).Histograms(f"clients/{when} training") for when in ("before", "after"))
    assert [event.histogram_value.num for event in before] == [4] * 4
    assert [event.histogram_value.num for event in after] == [2] * 3  # the participants


@installed
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_weights_are_an_image(run):
    import io

    from PIL import Image
    from safetensors.numpy import load_file

    weights = load_file(run / "weights.safetensors")["weights/0003"]
    image = events(run).Images("weights")[-1]
    assert (image.step, image.width, image.height) == (3, 2 * tensorboard.PIXELS, 2 * tensorboard.PIXELS)
    with Image.open(io.BytesIO(image.encoded_image_string)) as picture:
        shown = np.asarray(picture.convert("L"))[4 :: tensorboard.PIXELS, 4 :: tensorboard.PIXELS]
    assert shown / 255 == pytest.approx(np.sqrt(weights), abs=0.01)


@pytest.mark.parametrize(("clients", "width"), [(3, 24), (128, 1024), (300, 900), (1000, 1000), (2000, 2000)])
def test_the_image_of_many_clients_stays_small(clients, width):
    """At eight pixels a weight, 1,000 clients would make an image of 256 MB in every round."""
    assert tensorboard._picture(torch.eye(clients)).shape == (1, width, width)


def test_without_the_extra_it_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--track tensorboard: .*pip install 'feddwa\[tensorboard\]'"):
        feddwa.run(out=str(tmp_path / "run"), track=["tensorboard"], **SMALL)
    assert not Path(tmp_path, "run").exists()


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Runs that are killed after two rounds, whose checkpoint is of the first, and resumed."""
    monkeypatch.chdir(tmp_path)

    def run(*track):
        def stop(line):
            if line["round"] == 2:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            feddwa.run(out="run", track=track, checkpoint_every=3, observe=stop, **SMALL)
        feddwa.resume("run")
        return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]

    return run


def test_a_table_has_a_row_a_round(stopped):
    """Also after a resume that repeats rounds."""
    lines = stopped("csv")
    with Path("run/rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    assert [float(row["before.all"]) for row in rows] == [line["before"]["all"] for line in lines]
    assert [row["flops"] for row in rows] == [*(str(line["flops"]) for line in lines[:-1]), ""]
    assert float(rows[1]["seconds.train"]) == lines[1]["seconds"]["train"]


@pytest.mark.skipif(not importlib.util.find_spec("mlflow"), reason="the extra mlflow is missing")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_every_round_once(stopped, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///store.db")
    lines = stopped("mlflow")
    from mlflow import MlflowClient

    client = MlflowClient()
    found = client.get_run(json.loads(Path("run/mlflow.json").read_text())["run"])
    history = client.get_metric_history(found.info.run_id, "before.all")
    assert [(own.step, own.value) for own in history] == [(line["round"], line["before"]["all"]) for line in lines]
    assert (found.info.status, found.data.params["clients"], found.info.run_name[-4:]) == ("FINISHED", "4", "/run")


def history(file: Path) -> list[dict[str, float]]:
    """The steps in a file of Weights & Biases: a header of 7 bytes, then blocks of 32 KiB with records in them."""
    from wandb.proto import wandb_internal_pb2

    data, place, record, found = file.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no room for a head
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            read = wandb_internal_pb2.Record.FromString(record)
            record = b""
            if read.WhichOneof("record_type") == "history":
                items = read.history.item
                found.append({own.key or ".".join(own.nested_key): json.loads(own.value_json) for own in items})
    return found


@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="the extra wandb is missing")
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline_has_every_round_once(stopped, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    lines = stopped("wandb")
    files = sorted(Path("run").glob("wandb/offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1  # one run there, whose files `wandb sync` puts together
    rows = [row for file in files for row in history(file)]
    assert sorted((row["_step"], row["before.all"]) for row in rows) == [
        (line["round"], line["before"]["all"]) for line in lines
    ]


class Recorder(feddwa.Callback):
    """What it was told."""

    def __init__(self):
        self.told = []

    def on_begin(self, run):
        self.told.append((run.config.seed, "begin", len(run.past)))

    def on_round(self, run, round):
        self.told.append((run.config.seed, round.line["round"], None if round.result is None else round.result.info))

    def on_end(self, run, summary):
        finished = None if run.path is None else (run.path / "record.json").exists()
        self.told.append((run.config.seed, "end", finished, None if summary is None else summary["accuracy"]["last"]))


def test_a_callback_is_told_of_every_round_of_every_seed(tmp_path):
    mine = Recorder()
    found = feddwa.run(out=str(tmp_path / "run"), seeds=[0, 1], callbacks=[mine], **SMALL)
    for seed in (0, 1):
        own = [rest for number, *rest in mine.told if number == seed]
        assert [each[0] for each in own] == ["begin", 1, 2, 3, 4, "end"]
        assert torch.equal(own[3][1]["weights"].float(), torch.from_numpy(found[seed].weights[-1].matrix))
        assert own[-1] == ["end", True, found[seed].summary["accuracy"]["last"]]


def test_a_callback_that_fails_is_named_and_the_run_goes_on_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Broken(feddwa.Callback):
        def on_round(self, run, round):
            if round.line["round"] == 2:
                raise ZeroDivisionError("by hand")

    mine = Recorder()
    with pytest.raises(RuntimeError, match=r"callback .*Broken, on_round: ZeroDivisionError: by hand"):
        feddwa.run(out="run", callbacks=[mine, Broken()], **SMALL)
    assert mine.told[-1] == (0, "end", False, None)
    again = Recorder()
    result = feddwa.resume("run", callbacks=[again])
    assert again.told[0] == (0, "begin", 1)
    assert [each[1] for each in again.told[1:-1]] == [2, 3, 4]  # the second once more
    whole = feddwa.run(out="whole", **SMALL)
    assert [line["before"] for line in result.metrics] == [line["before"] for line in whole.metrics]


NOTIFIER = """
import feddwa

class Notifier(feddwa.Callback):
    def on_end(self, run, summary):
        with open("told.txt", "a") as file:
            print(run.config.seed, summary["accuracy"]["last"], file=file)

class Demanding(Notifier):
    def __init__(self, url): pass

def plain(): pass
"""


def test_callbacks_from_the_shell_are_the_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(NOTIFIER)
    words = ["run", "--clients", "4", "--rounds", "2", "--param", "groups=2", "--quiet"]
    assert cli.main([*words, "--callback", "mine.py:Notifier", "--seeds", "0", "1", "--out", "run"]) == 0
    assert [line.split()[0] for line in Path("told.txt").read_text().splitlines()] == ["0", "1"]
    (tmp_path / "mine.py").unlink()  # a run can be read without its callbacks
    assert cli.main(["report", "run"]) == 0
    Path("mine.py").write_text(NOTIFIER)
    for bad, message in (
        ("mine.py:Missing", "has no Missing; it has Notifier"),
        ("mine.py:plain", "must be a class that inherits from feddwa.Callback"),
        ("mine.py:Demanding", "must take ()"),
        ("nothing", "of the form MODULE:CLASS"),
    ):
        assert cli.main([*words, "--callback", bad, "--out", "bad"]) == 2
        assert message in capsys.readouterr().err
        assert not Path("bad").exists()
    for name, message in (("x", "--track: unknown name 'x'; valid: csv, tensorboard"), ("csv", "given once")):
        assert cli.main([*words, "--track", name, "--track", name, "--out", "bad"]) == 2
        assert message in capsys.readouterr().err
