"""Networks as people bring them: trained as a stack they are the plain loop's, and torch maps every operation."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from feddwa.data.dataset import Dataset
from feddwa.data.federated import FederatedData, federate
from feddwa.data.partition import Partition
from feddwa.engine import Engine, SequentialTrainer, Settings, Trainer, evaluate, evaluate_one_by_one
from feddwa.engine.fast import program, record
from feddwa.engine.rows import repeat, tensors
from tests import torchvision_ops

torchvision_ops.declare()
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from networks import NETWORKS, make  # noqa: E402

sys.path.pop(0)
LONG = ("gru", "transformer", "mobilenetv3", "bert")  # others with such layers are tested by `make test` too
SIZES = (11, 6, 5)  # batches of six: a full and a short one, a full one, a short one


def data_of(name: str, device: str = "cpu") -> FederatedData:
    """Three clients of unequal sizes with two test samples each."""
    count = sum(SIZES) + 2 * len(SIZES)
    cuts = np.split(np.arange(count), np.cumsum([*SIZES, *[2] * len(SIZES)])[:-1])
    x, y = NETWORKS[name].samples(count, tiny=True), np.arange(count) % 10
    dataset = Dataset("random", x, y, sum(SIZES), 10)
    return federate(dataset, Partition(cuts[: len(SIZES)], cuts[len(SIZES) :]), torch.device(device))


def engine_of(name: str, device: str = "cpu", dtype: torch.dtype = torch.float64) -> Engine:
    if NETWORKS[name].left_out.endswith("is not installed"):
        pytest.skip(NETWORKS[name].left_out)
    return Engine(make(name, tiny=True), data_of(name, device), Settings(1, 6, 0.05), dtype=dtype)


def train(engine: Engine, kind: type[Trainer], rounds: int = 2):
    """All clients after some rounds of one epoch."""
    parameters, buffers = (repeat(values, len(SIZES)) for values in engine.initial())
    model, memory = parameters, {"buffers": buffers}
    for round in range(1, rounds + 1):
        model, memory = kind(engine, torch.arange(len(SIZES)), round).sgd(model, memory)
    return {"model": model, **memory}


def error(left, right) -> float:
    """The largest difference in relation to a tensor's largest value."""
    pairs = zip(tensors(left), tensors(right), strict=True)
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1)) for (_, a), (_, b) in pairs
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NETWORKS]
)
def test_a_stack_is_the_plain_loop_and_every_operation_is_mapped(name):
    """Also evaluation. torch warns where it has no batching rule, and would loop over clients."""
    engine = engine_of(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        stack = train(engine, Trainer)
        scores = evaluate(engine, stack["model"], stack["buffers"], torch.arange(len(SIZES)))
    alone = train(engine, SequentialTrainer)
    assert error(stack, alone) < 1e-9
    assert error(alone, {"model": repeat(engine.initial()[0], 3), "buffers": alone["buffers"]}) > 1e-4  # it has learned
    expected = evaluate_one_by_one(engine, stack["model"], stack["buffers"], torch.arange(len(SIZES)))
    assert torch.equal(scores.accuracy, expected.accuracy)
    assert torch.allclose(scores.loss, expected.loss, rtol=1e-9)


@pytest.mark.parametrize(
    "name", ["lstm", "char-lstm", "char-transformer", *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_recorded_steps_are_the_eager_ones(name, monkeypatch):
    eager = train(engine_of(name), Trainer, rounds=1)
    for home in (record, program):
        monkeypatch.setitem(home.RECORD_AFTER, "cpu", 0)
    recorded = train(engine_of(name), Trainer, rounds=1)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tensors(eager), tensors(recorded), strict=True))


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("raise RuntimeError('operator torchvision::nms does not exist')",
         "RuntimeError: operator torchvision::nms does not exist"),
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "OSError: libcudart.so.12: cannot open"),
        ("import not_there", "not_there is not installed"),
    ],
)  # fmt: skip
def test_the_benchmark_leaves_out_networks_of_packages_that_cannot_be_imported(tmp_path, package, told):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(package + "\n")
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "benchmarks/engine.py", "resnet18", "mobilenetv3", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=surroundings)
    lines = done.stdout.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["resnet18", "mobilenetv3"]
    assert all(f"left out: {told}" in line for line in lines)
