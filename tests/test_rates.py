"""--lr auto: the same rate from the same seed, from training data alone, for every algorithm; stored as a number."""

import dataclasses
import json
import tomllib

import numpy as np
import pytest

import feddwa
from feddwa import cli, rates
from feddwa.build import completed, load_task
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.errors import InputError
from feddwa.flower.settings import FlowerConfig

RNG = np.random.default_rng(1)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Four hospitals with a table of their own."""
    folder = tmp_path_factory.mktemp("own")
    y = RNG.integers(0, 3, 400)
    x = (RNG.normal(size=(400, 6)) + np.eye(3, 6)[y] * 2).astype(np.float32)
    names = np.array(["ash", "birch", "cedar", "fir"])[np.arange(400) % 4]
    np.savez(folder / "own.npz", x=x, y=y, client=names)
    return folder / "own.npz"


def searched(own, **options):
    config = RunConfig(dataset=str(own), lr="auto", **options).resolved()
    task = load_task(config)
    return rates.search(completed(config, task.dataset), task), task


def test_the_rate_with_the_lowest_held_out_loss_is_taken_and_the_seed_decides_all(own):
    found, _ = searched(own)
    again, _ = searched(own)
    assert found == again
    assert list(found.losses) == list(rates.RATES)
    assert found.losses[found.rate] == min(found.losses.values()) < found.losses[0.001]
    assert (found.client, found.steps <= rates.STEPS) == ("ash", True)
    assert searched(own, seed=1)[0].losses != found.losses


def test_test_samples_and_other_clients_play_no_part(own, tmp_path):
    found, task = searched(own)
    with np.load(own) as file:
        arrays = dict(file)
    others = arrays["client"] != "ash"
    arrays["x"][others] = 99.0
    tested = np.concatenate(task.partition.test)
    is_test = (arrays["x"][:, None] == task.dataset.x[tested][None]).all(-1).any(1)
    arrays["x"][is_test] = -99.0
    np.savez(tmp_path / "other.npz", **arrays)
    assert searched(tmp_path / "other.npz")[0].losses == found.losses


def test_a_rate_that_diverges_is_not_taken(tmp_path):
    x = 1e4 * RNG.normal(size=(80, 3)).astype(np.float32)
    np.savez(tmp_path / "wild.npz", x=x, y=(x[:, 0] > 0).astype(int))
    found, _ = searched(tmp_path / "wild.npz", partition="iid", clients=2)
    assert found.losses[0.3] > found.losses[found.rate]
    assert found.rate < 0.3


def test_a_run_stores_the_number_and_the_losses_and_is_resumed_by_them(own, tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["run", "--dataset", str(own), "--lr", "auto", "--rounds", "1", "--out", str(out)]) == 0
    found, _ = searched(own)
    assert f"--lr auto: {found.rate:g} (held-out training loss of client ash after" in capsys.readouterr().out
    stored = tomllib.loads((out / "config.toml").read_text())
    assert stored["lr"] == found.rate
    tried = json.loads((out / "rates.json").read_text())
    assert (tried["rate"], tried["client"]) == (found.rate, "ash")
    assert tried["losses"] == {f"{rate:g}": loss for rate, loss in found.losses.items()}


def test_an_interrupted_run_goes_on_with_the_rate_that_was_found(own, tmp_path):
    def stop(line):
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        feddwa.run(dataset=str(own), lr="auto", rounds=2, out=str(out), observe=stop)
    assert len(feddwa.resume(out).metrics) == 3
    assert from_toml(out / "config.toml", RunConfig).lr == json.loads((out / "rates.json").read_text())["rate"]


def test_every_algorithm_of_a_comparison_gets_the_same_rate(own, tmp_path):
    out = tmp_path / "all"
    arguments = ["compare", "--dataset", str(own), "--lr", "auto", "--rounds", "1", "--out", str(out), "--quiet"]
    assert cli.main([*arguments, "--algorithms", "local", "fedavg", "fedrod"]) == 0
    found, _ = searched(own)
    stored = [tomllib.loads((out / name / "config.toml").read_text())["lr"] for name in ("local", "fedavg", "fedrod")]
    assert stored == [found.rate] * 3
    assert tomllib.loads((out / "compare.toml").read_text())["lr"] == found.rate


def test_python_searches_too(own, tmp_path):
    feddwa.run(dataset=str(own), lr="auto", rounds=1, out=str(tmp_path / "run"))
    assert from_toml(tmp_path / "run" / "config.toml", RunConfig).lr == searched(own)[0].rate


def test_the_doctor_tells_the_rate(own, capsys):
    assert cli.main(["doctor", "--dataset", str(own), "--lr", "auto", "--rounds", "1"]) == 0
    assert "--lr auto: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {
                "x": np.eye(6, dtype=np.float32),
                "y": np.arange(6) % 2,
                "client": np.array(["a", "a", "a", "b", "b", "b"]),
            },
            "client a, the first, has 2 training samples; at least 10 of two classes are needed",
        ),
        (
            {
                "x": RNG.normal(size=(60, 2)).astype(np.float32),
                "y": (np.arange(60) >= 30).astype(int),
                "client": np.repeat(["a", "b"], 30),
            },
            "client a, the first, has training samples of one class alone",
        ),
    ],
)
def test_where_a_search_makes_no_sense_it_is_refused_in_one_line(tmp_path, capsys, arrays, words):
    np.savez(tmp_path / "own.npz", **arrays)
    out = tmp_path / "run"
    assert cli.main(["run", "--dataset", str(tmp_path / "own.npz"), "--lr", "auto", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "--lr auto: " in error
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("value", ["fast", "-1", "nan"])
def test_other_words_are_no_rate(value, capsys):
    assert cli.main(["run", "--lr", value]) == 2
    assert "or auto" in capsys.readouterr().err


def test_the_server_of_a_federation_has_no_data_to_search_on(tmp_path):
    pytest.importorskip("flwr")
    from feddwa.flower import server

    config = FlowerConfig(lr="auto", out=str(tmp_path / "run")).resolved()
    with pytest.raises(InputError, match="run config lr: must be a number, as only the nodes have data"):
        server.run(None, config, simulated=False)


@pytest.mark.parametrize("dataset", ["digits", "own"])
def test_what_was_left_open_is_printed(own, tmp_path, capsys, dataset):
    path = "digits" if dataset == "digits" else str(own)
    config = dataclasses.replace(RunConfig(dataset=path), rounds=1)
    arguments = ["--dataset", config.dataset, "--rounds", "1", "--out", str(tmp_path / "run")]
    assert cli.main(["run", *arguments]) == 0
    said = "network mlp, batch size 10, rate 0.1 (for features (6,))" in capsys.readouterr().out
    assert said == (dataset == "own")
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["lr"] == 0.1
