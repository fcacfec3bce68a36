"""On a GPU: the captured program against the plain loop on the CPU. Skipped where there is no GPU."""

import pytest
import torch

from feddwa.algorithms import FedDWA
from feddwa.engine import Engine, SequentialTrainer, Settings, Trainer, keys
from feddwa.engine.rows import repeat, tensors
from feddwa.federation import Federation
from tests.conftest import NETWORKS, SIZES, conv_net, small_data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def train(kind, network, device, dtype, rounds=4):
    engine = Engine(NETWORKS[network](), small_data(device=device), Settings(2, 10, 0.1), dtype=dtype)
    parameters, buffers = engine.initial()
    model, memory = repeat(parameters, len(SIZES)), {"buffers": repeat(buffers, len(SIZES))}
    for round in range(1, rounds + 1):
        model, memory = kind(engine, torch.arange(len(SIZES)), round).sgd(model, memory)
    return {"model": model, **memory}


def relative_error(left, right) -> float:
    pairs = zip(tensors(left), tensors(right), strict=True)
    return max(float((a.cpu() - b.cpu()).abs().max() / b.abs().max().clamp(min=1e-12)) for (_, a), (_, b) in pairs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_captured_program_agrees_with_the_plain_loop(network, dtype, tolerance):
    reference = train(SequentialTrainer, network, "cpu", dtype)
    assert relative_error(train(Trainer, network, "cuda", dtype), reference) < tolerance


def test_draws_are_the_same_on_both_devices():
    for device in ("cpu", "cuda"):
        key = keys.key(5, "train", 3, torch.arange(4, device=device))
        drawn = keys.permutations(key, torch.tensor([9, 4, 7, 1])), keys.uniform(key[0], torch.Size([300]))
        if device == "cpu":
            expected = drawn
    assert torch.equal(drawn[0].cpu()[0], expected[0][0])
    assert torch.equal(drawn[1].cpu(), expected[1])


def test_a_run_on_the_gpu_repeats_to_the_bit_and_agrees_with_the_cpu():
    runs = []
    for device in ("cuda", "cuda", "cpu"):
        engine = Engine(conv_net(), small_data(device=device), Settings(1, 10, 0.1), dtype=torch.float64)
        federation = Federation(FedDWA(top_k=3), engine, participation=0.5)
        for _ in range(6):
            federation.step()
        runs.append({"model": federation.personal(federation.everybody())[0]})
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tensors(runs[0]), tensors(runs[1]), strict=True))
    assert relative_error(runs[0], runs[2]) < 1e-9
