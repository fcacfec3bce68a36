"""The run directory: what stands in it, when, and which directories are refused."""

import json
import math
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import feddwa
from feddwa.data import describe
from feddwa.errors import InputError
from feddwa.results import runs
from feddwa.results.weights import StoredWeights
from feddwa.results.weights import read as read_weights
from tests.conftest import finished, no_models

SMALL = {"clients": 6, "rounds": 3, "param": ("groups=2",)}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_everything_is_written():
    result = feddwa.run(participation=0.5, out="run", **SMALL)
    assert {file.name for file in Path("run").iterdir()} == {
        "config.toml", "partition.json", "metrics.jsonl", "clients.jsonl", "weights.safetensors", "record.json",
        "models.safetensors", "model.json", "SHA256SUMS",
    }  # fmt: skip
    assert result.path == "run"
    assert lines("run/metrics.jsonl") == result.metrics
    assert [line["round"] for line in result.metrics] == [1, 2, 3, 4]
    content = json.loads(Path("run/record.json").read_text())
    assert content["summary"] == result.summary
    assert content["made"]["versions"]["torch"] == torch.__version__
    assert set(content["made"]) == {"commit", "dirty", "hardware", "versions"}
    assert content["series"]["before.all"] == [line["before"]["all"] for line in result.metrics]
    assert len(content["in_group"]["weight"]) == 3


@pytest.mark.parametrize("partition", ["rotations", "label-permutation", "iid"])
def test_the_partition_is_written_and_reads_back(partition):
    result = feddwa.run(out="run", algorithm="local", partition=partition, clients=6, rounds=1)
    stored = describe.from_json(json.loads(Path("run/partition.json").read_text()))
    assert stored.train_sizes.tolist() == [len(rows) for rows in result.partition.train]
    assert stored.test_sizes.tolist() == [len(rows) for rows in result.partition.test]
    for name in ("groups", "turns", "relabel"):
        assert np.array_equal(getattr(stored, name), getattr(result.partition, name)), name
    assert stored.class_names == tuple("0123456789")


def test_the_summary_has_the_promised_fields():
    summary = feddwa.run(out="run", seed=3, **SMALL).summary
    given = {"algorithm": "feddwa", "dataset": "digits", "partition": "rotations", "clients": 6, "rounds": 3, "seed": 3}
    assert given.items() <= summary.items()
    size = 4 * (64 * 64 + 64 + 64 * 10 + 10)  # the MLP in float32
    assert (summary["bytes_down_per_client_round"], summary["bytes_up_per_client_round"]) == (size, 2 * size)
    assert 0 <= summary["accuracy"]["last"] <= summary["accuracy"]["best"] <= 100
    assert summary["flops_per_client_round"] > 1e6
    assert summary["server_flops_per_round"] > 1e5
    assert summary["seconds"] > 0


def test_weights_of_every_round_with_its_cohort():
    result = feddwa.run(participation=0.5, out="run", **SMALL)
    stored = load_file("run/weights.safetensors")
    assert set(stored) == {f"{kind}/000{number}" for kind in ("weights", "cohort") for number in (1, 2, 3)}
    for number, (round, cohort, weights) in enumerate(result.weights, 1):
        assert round == number
        assert np.array_equal(stored[f"cohort/{number:04d}"], cohort)
        assert cohort.shape == (3,)
        assert np.allclose(stored[f"weights/{number:04d}"], weights, atol=1e-7)
        assert np.allclose(weights.sum(1), 1)
        assert weights.shape == (3, 3)
    assert len({tuple(each.cohort) for each in result.weights}) > 1


def test_weights_of_a_run_are_read_from_its_files():
    result = feddwa.run(out="run", **SMALL)
    assert isinstance(result.weights, StoredWeights)
    assert not Path("run/weights.journal").exists()
    own = feddwa.run(
        model=torch.nn.Linear(3, 2), dataset=[(torch.randn(9, 3), torch.arange(9) % 2)] * 3, rounds=2, out=False
    )
    assert isinstance(own.weights, list)  # there is no file that they could be read from


def test_the_best_round_is_one_of_the_run():
    """The models of the last aggregation are those after the last round, whose number no round may exceed."""
    result = feddwa.run(out="run", **SMALL)
    curve = [line["before"]["all"] for line in result.metrics]  # after 0, 1, 2, 3 rounds
    accuracy, loss = result.summary["accuracy"], result.summary["loss"]
    assert accuracy["best_round"] == int(np.argmax(curve)) <= SMALL["rounds"]
    assert loss["best_round"] == int(np.argmin([line["loss_before"] for line in result.metrics]))
    after = [line["after"]["all"] for line in result.metrics[:-1]]  # of the local training in rounds 1, 2, 3
    assert accuracy["series"]["after.all"]["best_round"] == int(np.argmax(after)) + 1


def test_the_sums_are_those_of_the_files():
    feddwa.run(out="run", **SMALL)
    names = {line.split("  ")[1] for line in Path("run/SHA256SUMS").read_text().splitlines()}
    assert names == {
        "metrics.jsonl", "clients.jsonl", "weights.safetensors", "models.safetensors", "model.json", "record.json"
    }  # fmt: skip
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd="run", check=True, capture_output=True)


def test_every_clients_accuracy():
    result = feddwa.run(participation=0.5, out="run", **SMALL)
    clients = lines("run/clients.jsonl")
    assert [line["round"] for line in clients] == [1, 2, 3, 4]
    for line, metrics, (_, cohort, _) in zip(clients, result.metrics, result.weights, strict=False):
        assert line["participants"] == cohort.tolist()
        assert len(line["before"]) == 6
        assert len(line["after"]) == 3
        assert math.isclose(np.mean(line["before"]), metrics["before"]["all"], abs_tol=0.01)
        assert math.isclose(np.mean(line["after"]), metrics["after"]["participants"], abs_tol=0.01)
    assert math.isclose(np.mean(clients[-1]["before"]), result.summary["accuracy"]["last"], abs_tol=0.01)


def test_it_is_written_as_the_run_goes():
    seen = []

    def look(line):
        weights = read_weights(Path("run"))
        seen.append((line["round"], len(lines("run/metrics.jsonl")), len(lines("run/clients.jsonl")), len(weights)))
        assert all(np.allclose(matrix.sum(1), 1) for _, _, matrix in weights)
        assert not Path("run/record.json").exists()
        assert not Path("run/weights.safetensors").exists()  # nothing is written twice

    feddwa.run(out="run", observe=look, **SMALL)
    assert seen == [(1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3), (4, 4, 4, 3)]


def test_a_run_that_breaks_keeps_what_it_has():
    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out="run", observe=stop, **SMALL)
    assert [line["round"] for line in lines("run/metrics.jsonl")] == [1, 2]


def test_default_directories_are_new_each_time():
    paths = [feddwa.run(clients=4, rounds=1).path for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.startswith(f"runs/{time.strftime('%Y')}") and "feddwa-digits" in path for path in paths)


def test_own_data_give_a_plain_directory_name():
    path = runs.default_path("feddwa", "/somewhere/my data.csv")
    assert path.parent == Path("runs")
    assert path.name.endswith("-feddwa-my-data.csv")


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/feddwa", "full"])
def test_directories_that_cannot_be_used(out):
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/old").write_text("")
    for refuse in (runs.check_free, lambda path: runs.claim(Path(path))):
        with pytest.raises(InputError, match=rf"--out {out}: (is not empty|cannot write there)"):
            refuse(out)


def test_checking_leaves_no_trace():
    runs.check_free(None)
    runs.check_free("new/deep/run")
    assert list(Path().iterdir()) == []
    Path("old").mkdir()
    runs.check_free("old")
    assert Path("old").is_dir()


def test_a_bad_request_is_refused_before_data_are_loaded(monkeypatch):
    Path("file").write_text("")
    monkeypatch.setattr("feddwa.data.sources.load", lambda *_: pytest.fail("data were loaded"))
    with pytest.raises(InputError, match="--out file"):
        feddwa.run(out="file")


def test_an_algorithm_without_weights_is_recorded_too():
    with runs.RunDirectory.create(feddwa.RunConfig(out="run").resolved()) as directory:
        entries, summary = finished(1)
        for line in entries:
            directory.add(line, {"round": line["round"], "before": [50.0]})
        directory.finish(entries, summary, {}, no_models())
    assert load_file("run/weights.safetensors") == {}


def test_a_run_is_busy_while_a_process_is_at_work_on_it():
    assert not runs.busy(Path("run"))
    with runs.RunDirectory.create(feddwa.RunConfig(out="run").resolved()):
        assert runs.busy(Path("run"))
    assert not runs.busy(Path("run"))
    (Path("run") / runs.CONFIG).unlink()
    (Path("run") / runs.CONFIG).mkdir()  # cannot be opened: whoever wants to go on there will say so
    assert not runs.busy(Path("run"))
