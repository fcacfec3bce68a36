"""On a GPU: the captured program against the plain loop on the CPU. Skipped where there is no GPU."""

import contextlib
import time
from functools import partial

import pytest
import torch
from torch import nn

from feddwa.algorithms import FedDWA, FedProx, FedRoD, PFedMe
from feddwa.engine import Engine, SequentialTrainer, Settings, Trainer, keys
from feddwa.engine.functions import StackedFunctions
from feddwa.engine.optimizers import SGD, Adam
from feddwa.engine.rate_schedule import RateSchedule
from feddwa.engine.rows import repeat, tensors
from feddwa.federation import Federation
from tests.conftest import NETWORKS, SIZES, conv_net, small_data
from tests.engine import test_networks as brought
from tests.engine.test_functions import CONVOLUTIONS

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


RECIPES = {
    "nesterov": {"optimizer": SGD(0.9, True, 0.01, clip=0.5)},
    "adam": {"optimizer": Adam(weight_decay=0.01), "keep_optimizer": True},
    "adamw": {"optimizer": Adam(weight_decay=0.1, decoupled=True, clip=1.0)},
    "schedule": {"schedule": RateSchedule("cosine", rounds=4, warmup=1), "optimizer": SGD(0.9)},
    "steps": {"local_steps": 5, "augment": ("flip", "crop", "cutout")},
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("algorithm", [FedDWA(top_k=3), FedProx(mu=0.3), PFedMe(), FedRoD()], ids=lambda own: own.title)
def test_recipes_are_captured_and_agree_with_the_plain_loop(algorithm, name):
    """One graph for all rates of a schedule; draws of images and counts of steps stay on the device."""
    ends = []
    for device, sequential in (("cuda", False), ("cpu", True)):
        settings = Settings(1, 10, 0.05, **RECIPES[name])
        engine = Engine(NETWORKS["plain"](), small_data(device=device), settings, dtype=torch.float64)
        federation = Federation(algorithm, engine, participation=0.5, sequential=sequential)
        for _ in range(3):
            federation.step()
        ends.append({"model": federation.personal(federation.all_clients())[0]})
    assert relative_error(*ends) < 1e-9


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
        runs.append({"model": federation.personal(federation.all_clients())[0]})
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tensors(runs[0]), tensors(runs[1]), strict=True))
    assert relative_error(runs[0], runs[2]) < 1e-9


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", brought.NETWORKS)
def test_networks_as_people_bring_them_agree_with_the_plain_loop(name, dtype, tolerance):
    """BatchNorm over a few values magnifies rounding, so that the plain loop of the same device sets the measure."""
    reference = brought.train(brought.engine_of(name), SequentialTrainer)
    plain, captured = (
        brought.error(on_cpu(brought.train(brought.engine_of(name, "cuda", dtype), trainer)), reference)
        for trainer in (SequentialTrainer, Trainer)
    )
    assert captured < max(tolerance, 10 * plain)


def on_cpu(state):
    return {part: {key: value.cpu() for key, value in rows.items()} for part, rows in state.items()}


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's reference on the CPU pads a copy
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_convolutions_with_all_options_on_a_gpu(layer, dtype):
    """All clients at once on the GPU, in float32 by Triton kernels, against torch's own on the CPU."""
    torch.manual_seed(0)
    shape = (2, 4, 7) if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d) else (2, 4, 6, 5)
    rows = {name: torch.randn(3, *value.shape, dtype=torch.float64) for name, value in layer.named_parameters()}
    x = torch.randn(3, *shape, dtype=torch.float64)

    def loss(params, x, stacked):
        with StackedFunctions(keys.key(0, "x")) if stacked else contextlib.nullcontext():
            return torch.func.functional_call(layer, params, (x,)).sin().sum()

    on_gpu = {name: value.to("cuda", dtype) for name, value in rows.items()}
    found = torch.vmap(torch.func.grad(partial(loss, stacked=True)))(on_gpu, x.to("cuda", dtype))
    for client in range(3):
        own = {name: value[client] for name, value in rows.items()}
        for name, value in torch.func.grad(partial(loss, stacked=False))(own, x[client]).items():
            error = (found[name][client].cpu().double() - value).abs().max() / value.abs().max()
            assert error < (1e-4 if dtype == torch.float32 else 1e-10), name


def test_a_network_of_many_shapes_does_not_wait_for_the_compiler(tmp_path, monkeypatch):
    """A MobileNetV3 has dozens of layers, of which one is neither pointwise nor depthwise."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    engine = brought.engine_of("mobilenetv3", "cuda", torch.float32)
    start = time.perf_counter()
    brought.train(engine, Trainer, rounds=1)
    torch.cuda.synchronize()
    assert time.perf_counter() - start < 30
