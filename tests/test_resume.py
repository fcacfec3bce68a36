"""A run that is interrupted and continued ends as if nothing had happened, bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa.algorithms import ALGORITHMS
from feddwa.engine.rows import tensors

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
        assert np.array_equal(one[0], two[0])
        assert np.array_equal(one[1], two[1])
        assert one[1].dtype == two[1].dtype


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_run_is_the_run(algorithm, participation):
    options = {**SMALL, "algorithm": algorithm, "participation": participation}
    options |= {"param": PARAMS.get(algorithm, ())}
    whole = feddwa.run(out="whole", **options)
    for round in (1, 3):
        with pytest.raises(Stop):
            feddwa.run(out=f"cut-{round}", observe=stop_after(round), **options)
        assert not Path(f"cut-{round}/summary.json").exists()
        same(feddwa.resume(f"cut-{round}"), whole)
