"""The same configuration twice, in another process, in other chunks and on the other backend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import feddwa

CONFIG = {
    "clients": 10, "rounds": 3, "participation": 0.5, "model": "digits-cnn", "batch_size": 40, "seed": 4,
    "device": "cpu", "fault": "dropout=0.1", "attack": "sign-flip=0.2,random=0.1",
}  # fmt: skip
EXACT = ("config.toml", "partition.json", "clients.jsonl", "weights.safetensors")


def timeless(path) -> list[dict]:
    return [{**json.loads(line), "seconds": None} for line in Path(path).read_text().splitlines()]


def models(path) -> dict[str, torch.Tensor]:
    return dict(feddwa.resume(path).models)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("determinism") / "run"
    feddwa.run(out=str(path), **CONFIG)
    return path


def assert_bytes(path: Path, reference: Path) -> None:
    for name in EXACT:
        assert (path / name).read_bytes() == (reference / name).read_bytes(), name
    assert timeless(path / "metrics.jsonl") == timeless(reference / "metrics.jsonl")
    one, two = models(path), models(reference)
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_twice(reference, tmp_path):
    feddwa.run(out=str(tmp_path / "run"), **CONFIG)
    assert_bytes(tmp_path / "run", reference)


@pytest.mark.slow
def test_in_another_process(reference, tmp_path):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in CONFIG.items()]
    surroundings = {**os.environ, "PYTHONPATH": str(Path(feddwa.__file__).parents[1]), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-m", "feddwa", "run", *flags, "--out", str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=surroundings)
    assert_bytes(tmp_path / "run", reference)


@pytest.mark.parametrize("other", [{"chunk": 2}, {"backend": "sequential"}])
def test_in_other_chunks_and_on_the_other_backend(reference, tmp_path, other):
    result = feddwa.run(out=str(tmp_path / "run"), **CONFIG | other)
    exact = models(reference)
    for name, value in result.models.items():
        assert torch.allclose(value, exact[name], rtol=1e-3, atol=1e-5), name
    lines = timeless(reference / "metrics.jsonl")
    for line, known in zip(result.metrics, lines, strict=True):
        assert line["before"]["all"] == pytest.approx(known["before"]["all"], abs=1.0)
        assert line.get("missing") == known.get("missing")
