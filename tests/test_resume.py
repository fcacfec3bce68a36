"""A run that is interrupted and continued ends as if nothing had happened, bit for bit."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa.engine.rows import tensors
from feddwa.errors import InputError
from tests.conftest import ANYWHERE

SMALL = {"clients": 24, "rounds": 4, "batch_size": 20, "device": "cpu"}
PARAMS = {"clusterfl": ("eps1=9", "eps2=0.01", "warmup=1"), "fedfomo": ("models=2",)}
FILES = ("clients.jsonl", "weights.safetensors", "partition.json", "config.toml")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Stop(Exception):
    pass


def stop_after(round: int):
    def observe(line):
        if line["round"] == round:
            raise Stop

    return observe


def timeless(path) -> list[dict]:
    return [{**json.loads(line), "seconds": None} for line in Path(path).read_text().splitlines()]


def same(left: feddwa.Result, right: feddwa.Result) -> None:
    """Two runs agree in all that they leave behind, times aside."""
    for name in FILES:
        assert Path(left.path, name).read_bytes() == Path(right.path, name).read_bytes(), name
    assert timeless(f"{left.path}/metrics.jsonl") == timeless(f"{right.path}/metrics.jsonl")
    assert [{**line, "seconds": None} for line in left.metrics] == [{**line, "seconds": None} for line in right.metrics]
    assert {**left.summary, "seconds": 0} == {**right.summary, "seconds": 0}
    assert {file.name for file in Path(left.path).iterdir()} == {file.name for file in Path(right.path).iterdir()}
    for (name, a), (_, b) in zip(
        tensors({"model": left.models, "buffers": left.buffers}),
        tensors({"model": right.models, "buffers": right.buffers}),
        strict=True,
    ):
        assert torch.equal(a, b), name
    for one, two in zip(left.weights, right.weights, strict=True):
        assert one.round == two.round
        assert np.array_equal(one.cohort, two.cohort)
        assert np.array_equal(one.matrix, two.matrix)
        assert one.matrix.dtype == two.matrix.dtype


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_a_resumed_run_is_the_run(algorithm, participation):
    options = {**SMALL, "algorithm": algorithm, "participation": participation}
    options |= {"param": PARAMS.get(algorithm, ())}
    whole = feddwa.run(out="whole", **options)
    for round in (1, 3):
        with pytest.raises(Stop):
            feddwa.run(out=f"cut-{round}", observe=stop_after(round), **options)
        assert not Path(f"cut-{round}/record.json").exists()
        same(feddwa.resume(f"cut-{round}"), whole)


# What is refused, and what is said.

TINY = {"clients": 6, "rounds": 3, "batch_size": 60, "device": "cpu"}


def cut(out: str = "cut", **options) -> Path:
    with pytest.raises(Stop):
        feddwa.run(out=out, observe=stop_after(2), **{**TINY, **options})
    return Path(out)


def test_a_resumed_run_keeps_its_defence():
    """That of FedDWA+ itself, and none where none was wanted, under an attack to which it makes a difference."""
    ends = []
    for given in ({}, {"defence": "none"}):
        options = {**TINY, "algorithm": "feddwa_plus", "attack": "scaled=0.34", **given}
        whole = feddwa.run(out=f"whole-{len(ends)}", **options)
        same(feddwa.resume(cut(f"cut-{len(ends)}", **options)), whole)
        ends.append(whole.metrics[-1]["loss_before"])
    assert ends[0] != ends[1]


def own_data(path: str, seed: int = 0) -> str:
    rng, y = np.random.default_rng(seed), np.arange(80) % 2
    np.savez(path, x=(rng.normal(size=(80, 4)) + y[:, None]).astype(np.float32), y=y)
    return path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_same_directory_again_says_how_to_go_on():
    cut()
    with pytest.raises(InputError, match="--out cut: has an unfinished run; `feddwa resume cut` continues it"):
        feddwa.run(out="cut", **TINY)
    feddwa.resume("cut")
    with pytest.raises(InputError, match="--out cut: is not empty"):
        feddwa.run(out="cut", **TINY)


def test_a_finished_run_is_read_back_with_its_models():
    whole = feddwa.run(out="run", **TINY)
    again = feddwa.resume("run", observe=lambda line: pytest.fail("it trained"))
    assert again.summary == whole.summary
    assert again.metrics == whole.metrics
    assert all(torch.equal(value, again.models[name]) for name, value in whole.models.items())
    assert not Path("run/checkpoint").exists()  # nothing needs it any more
    bare = feddwa.run(out="bare", checkpoint_every=0, save_models=False, **TINY)
    assert feddwa.resume("bare").models == {}
    assert feddwa.resume("bare").summary == bare.summary


def test_a_finished_run_of_other_data_or_options_is_refused():
    feddwa.run(out="run", **TINY)
    change(Path("run/config.toml"), "seed = 0", "seed = 1")
    with pytest.raises(InputError, match="changed since the run began: seed was 0 and is 1"):
        feddwa.resume("run")


def test_checkpoints_at_other_intervals():
    with pytest.raises(Stop):
        feddwa.run(out="cut", observe=stop_after(5), **{**TINY, "rounds": 7, "checkpoint_every": 3})
    assert [path.name[:12] for path in Path("cut/checkpoint").glob("round*")] == ["round-000003"]
    whole = feddwa.run(out="whole", **{**TINY, "rounds": 7, "checkpoint_every": 3})
    same(feddwa.resume("cut"), whole)


def test_without_checkpoints_it_starts_over():
    cut("cut", checkpoint_every=0)
    same(feddwa.resume("cut"), feddwa.run(out="whole", checkpoint_every=0, **TINY))


def test_directories_that_hold_no_run():
    Path("empty").mkdir()
    for path in ("empty", "absent"):
        with pytest.raises(InputError, match=f"{path}: holds no run, there is no config.toml in it"):
            feddwa.resume(path)


def test_a_changed_configuration_is_refused():
    path = cut()
    change(path / "config.toml", "lr = 0.1", "lr = 0.2")
    with pytest.raises(InputError, match=r"config.toml: changed since the run began: lr was 0.1 and is 0.2"):
        feddwa.resume(path)
    change(path / "config.toml", "lr = 0.2", "lr = 0.1")
    change(path / "config.toml", "checkpoint_every = 1", "checkpoint_every = 2")  # this is nobody's business
    feddwa.resume(path)


def test_data_that_moved_or_changed():
    path = cut(dataset=own_data("data.npz"), partition="iid")
    Path("data.npz").rename("elsewhere.npz")
    with pytest.raises(InputError, match=r"data.npz.*\(if the data have moved, change cut/config.toml\)"):
        feddwa.resume(path)
    own_data("data.npz", seed=1)
    with pytest.raises(InputError, match="cut: the dataset is not the one that the run began with"):
        feddwa.resume(path)
    change(path / "config.toml", "data.npz", "elsewhere.npz")
    assert feddwa.resume(path).summary["rounds"] == 3


def test_another_version_is_said(capsys, monkeypatch):
    path, version = cut(), feddwa.__version__
    monkeypatch.setattr(feddwa, "__version__", "9.9")
    feddwa.resume(path)
    line = f"feddwa: cut: began with feddwa {version} and continues with 9.9; numbers may differ a little"
    assert line in capsys.readouterr().err


def test_configurations_have_a_version():
    path = cut()
    assert (path / "config.toml").read_text().startswith("version = 1\n")
    change(path / "config.toml", "version = 1\n", "version = 2\n")
    with pytest.raises(InputError, match="is of version 2, this feddwa reads version 1"):
        feddwa.resume(path)
    change(path / "config.toml", "version = 2\n", "")  # as files were before they had one
    feddwa.resume(path)


def test_a_file_that_was_cut_since_is_not_believed():
    path = cut()
    (path / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match=r"metrics.jsonl: is shorter than when the checkpoint was made"):
        feddwa.resume(path)


@contextlib.contextmanager
def a_changed_byte(path: Path):
    """One digit, or one bit of a weight, that nobody would see: the length stays, and so does the form."""
    written = path.read_bytes()
    data = bytearray(written)
    place = len(data) // 3 if path.suffix not in (".jsonl", ".json") else data.index(b"0", len(data) // 4)
    data[place] ^= 1
    path.write_bytes(data)
    yield
    path.write_bytes(written)


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.jsonl", "weights.journal"])
def test_a_byte_that_changed_since_is_noticed(name):
    path = cut()
    rest = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != name}
    message = rf"^cut/{name}: is not what was written: one of its first \d+ bytes has changed since"
    with a_changed_byte(path / name), pytest.raises(InputError, match=message):
        feddwa.resume(path)
    assert {file: file.read_bytes() for file in rest} == rest  # nothing was cut, nothing went on
    same(feddwa.resume(path), feddwa.run(out="whole", **TINY))


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.jsonl", "weights.safetensors", "record.json"])
def test_a_finished_run_that_changed_is_not_read_back(name):
    path = Path(feddwa.run(out="run", **TINY).path)
    message = rf"^run/{name}: is not what was written: its sum is not that in SHA256SUMS"
    with a_changed_byte(path / name), pytest.raises(InputError, match=message):
        feddwa.resume(path)
    feddwa.resume(path)
    (path / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match=r"^run/SHA256SUMS: cannot be checked: "):
        feddwa.resume(path)


@pytest.mark.slow
def test_a_second_interruption_carries_the_sums_on():
    path = cut(rounds=6)
    with pytest.raises(Stop):
        feddwa.resume(path, observe=stop_after(4))
    message = r"metrics.jsonl: is not what was written"
    with a_changed_byte(path / "metrics.jsonl"), pytest.raises(InputError, match=message):
        feddwa.resume(path)
    same(feddwa.resume(path), feddwa.run(out="whole", **{**TINY, "rounds": 6}))


def test_seconds_are_those_of_all_parts():
    result = feddwa.resume(cut())
    assert result.summary["seconds"] == round(sum(sum(line.get("seconds", {}).values()) for line in result.metrics), 2)
