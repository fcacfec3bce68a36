"""Convolution, pooling and BatchNorm with parameters per client against torch's own, one client at a time."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from feddwa.engine import keys
from feddwa.engine.fast import stacked_conv, stacked_norm, stacked_pool
from feddwa.engine.fast.stacked_conv import conv2d
from feddwa.engine.fast.stacked_norm import batch_norm
from feddwa.engine.fast.stacked_pool import adaptive_avg_pool2d, max_pool2d
from feddwa.engine.functions import StackedFunctions

NO_TRITON = importlib.util.find_spec("triton") is None
KERNELS = pytest.param("kernels", marks=pytest.mark.skipif(NO_TRITON, reason="needs Triton"))
IMPLEMENTATIONS = ["channels", "patches", KERNELS]
EXACT = {"channels": torch.float64, "patches": torch.float64, "kernels": torch.float32}  # dtype of sums
CLOSE = {torch.float64: 1e-12, torch.float32: 5e-6}

GEOMETRIES = [
    {},
    {"padding": 1},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2)},
    {"dilation": 2},
    {"stride": 2, "dilation": (1, 2), "padding": 2},
]


def close(mine, yours, operations=1):
    """In relation to the largest value, and to how many operations round one after another."""
    return (mine - yours).abs().max() <= operations * CLOSE[yours.dtype] * yours.abs().max().clamp(min=1)


def grads(function, *inputs):
    """Value and gradients of the sum of squares of a function."""
    value, pull = torch.func.vjp(lambda *own: function(*own).square().sum(), *inputs)
    return (value, *pull(torch.ones_like(value)))


@pytest.mark.slow
@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(("channels", "outputs"), [(2, 5), (16, 5), (32, 70)])  # few, many, in several blocks
def test_convolution(channels, outputs, geometry, chosen, monkeypatch):
    """Also the implementations for a GPU: on any machine, the kernels by Triton's interpreter."""
    monkeypatch.setattr(stacked_conv, "implementation", lambda x: chosen)
    torch.manual_seed(0)
    dtype = EXACT[chosen]
    x = torch.randn(2, 2, channels, 9, 8, dtype=dtype)  # (m, B, C, H, W), few: the interpreter takes its time
    weight = torch.randn(2, outputs, channels, 3, 2, dtype=dtype)
    bias = torch.randn(2, outputs, dtype=dtype)
    ours = torch.vmap(lambda *own: grads(lambda x, w, b: conv2d(x, w, b, **geometry), *own))(x, weight, bias)
    for client in range(2):
        theirs = grads(lambda x, w, b: F.conv2d(x, w, b, **geometry), x[client], weight[client], bias[client])
        for mine, yours in zip(ours, theirs, strict=True):
            assert close(mine[client], yours)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize("ordered", [False, True])
def test_convolution_without_bias_of_weights_in_any_order(ordered, chosen, monkeypatch):
    monkeypatch.setattr(stacked_conv, "implementation", lambda x: chosen)
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4, 16, 9, 8), torch.randn(3, 5, 16, 3, 2)
    laid = weight.movedim(2, -1).contiguous().movedim(-1, 2) if ordered else weight
    ours = torch.vmap(lambda *own: grads(lambda x, w: conv2d(x, w, stride=2, padding=1), *own))(x, laid)
    for client in range(3):
        theirs = grads(lambda x, w: F.conv2d(x, w, stride=2, padding=1), x[client], weight[client])
        for mine, yours in zip(ours, theirs, strict=True):
            assert close(mine[client], yours)


@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
def test_convolution_of_shared_images(chosen, monkeypatch):
    monkeypatch.setattr(stacked_conv, "implementation", lambda x: chosen)
    x, weight = torch.randn(4, 2, 6, 6), torch.randn(3, 5, 2, 3, 3)
    ours = torch.vmap(lambda w: conv2d(x, w))(weight)
    assert torch.allclose(ours, torch.stack([F.conv2d(x, w) for w in weight]), atol=1e-5)


@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize("shared", ["weight and bias", "weight"])
def test_convolution_with_a_kernel_that_all_clients_share(shared, chosen, monkeypatch):
    """As frozen parameters are: the input's gradient, that of a bias per client, and the kernel's own."""
    monkeypatch.setattr(stacked_conv, "implementation", lambda x: chosen)
    x, weight, bias = torch.randn(3, 4, 2, 7, 6), torch.randn(5, 2, 3, 2), torch.randn(3, 5)
    bias = bias[:1].expand(3, 5) if shared == "weight and bias" else bias
    dims = (0, None if shared == "weight and bias" else 0)
    given = bias[0] if shared == "weight and bias" else bias
    ours = torch.vmap(lambda x, b: grads(lambda x: conv2d(x, weight, b, stride=2, padding=1), x), dims)(x, given)
    kernel = torch.vmap(lambda x, b: grads(lambda w: conv2d(x, w, b, stride=2, padding=1), weight)[1], dims)(x, given)
    for client in range(3):
        theirs = grads(lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), x[client], weight, bias[client])
        assert close(ours[0][client], theirs[0])
        assert close(ours[1][client], theirs[1])
        assert close(kernel[client], theirs[2])


@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0), "ceil_mode": True},
        {"kernel_size": 2, "stride": 3, "ceil_mode": True},
        {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "dilation": 2},
    ],
)
def test_pooling(window, chosen, monkeypatch):
    monkeypatch.setattr(stacked_pool, "implementation", lambda x: chosen)
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 7, 8, dtype=torch.float64).relu()  # with ties at zero
    ours = torch.vmap(lambda own: grads(lambda x: max_pool2d(x, **window), own))(x)
    for client in range(3):
        theirs = grads(lambda x: F.max_pool2d(x, **window), x[client])
        assert all(torch.allclose(mine[client], yours, rtol=1e-12) for mine, yours in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize("inplace", [False, True])
def test_pooling_what_was_rectified(inplace, chosen, monkeypatch):
    monkeypatch.setattr(stacked_pool, "implementation", lambda x: chosen)
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 7, 8) - 0.5  # windows without a positive value, too
    x[0, 0, 0, 0, 0] = torch.nan

    def both(x):
        return F.max_pool2d(F.relu(x * 1.5, inplace), 2)

    def stacked(x):
        with StackedFunctions(keys.key(0, "x")):
            return both(x)

    ours = torch.vmap(lambda own: grads(stacked, own))(x)
    for client in range(3):
        for mine, yours in zip(ours, grads(both, x[client]), strict=True):
            assert torch.allclose(mine[client], yours, equal_nan=True)


@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
def test_pooling_what_was_rectified_and_changed_since(chosen, monkeypatch):
    monkeypatch.setattr(stacked_pool, "implementation", lambda x: chosen)
    x = torch.randn(3, 4, 5, 7, 8)

    def stacked(x):
        with StackedFunctions(keys.key(0, "x")):
            return F.max_pool2d(F.relu(x).sub_(0.5), 2)

    assert torch.allclose(torch.vmap(stacked)(x), torch.stack([F.max_pool2d(F.relu(own) - 0.5, 2) for own in x]))


@pytest.mark.slow
@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize("channels", [5, 70])
def test_batch_norm(channels, chosen, monkeypatch):
    monkeypatch.setattr(stacked_norm, "implementation", lambda x: chosen)
    torch.manual_seed(0)
    dtype = EXACT[chosen]
    x = torch.randn(3, 4, channels, 7, 8, dtype=dtype) * 3 + 1  # (m, B, C, H, W)
    weight, bias, mean = (torch.randn(3, channels, dtype=dtype) for _ in range(3))
    var = torch.rand(3, channels, dtype=dtype)

    def one(function, x, weight, bias, *statistics):
        def value(x, weight, bias):
            new = [own.clone() for own in statistics]
            return function(x, *new, weight, bias, True, 0.2, 1e-3).sin().sum(), new

        gradients, new = torch.func.grad(value, argnums=(0, 1, 2), has_aux=True)(x, weight, bias)
        return *gradients, *new

    ours = torch.vmap(lambda *own: one(batch_norm, *own))(x, weight, bias, mean, var)
    for client in range(3):
        theirs = one(F.batch_norm, *(own[client] for own in (x, weight, bias, mean, var)))
        for mine, yours in zip(ours, theirs, strict=True):
            assert close(mine[client], yours)
    assert not torch.allclose(ours[-1], var)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "layer",
    [
        nn.GroupNorm(2, 16), nn.BatchNorm2d(16), nn.BatchNorm2d(16, affine=False), nn.InstanceNorm2d(16),
        nn.BatchNorm2d(16, track_running_stats=False), nn.LocalResponseNorm(2),
        nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2),
        nn.Upsample(scale_factor=2), nn.PixelShuffle(2), nn.ReflectionPad2d(1), nn.Conv2d(16, 16, 3, groups=16),
        nn.ConvTranspose2d(16, 4, 2), nn.PReLU(16), nn.Unflatten(1, (4, 4)),
    ],
    ids=str,
)  # fmt: skip
def test_layers_that_follow_a_convolution(layer, training, chosen, monkeypatch):
    """They find images in a layout of ours; `x.view` after them is what many networks write."""
    for home in (stacked_conv, stacked_pool, stacked_norm):
        monkeypatch.setattr(home, "implementation", lambda x: chosen)
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.layer = nn.Conv2d(2, 16, 3), layer

        def forward(self, x):
            return self.layer(self.conv(x)).view(len(x), -1)

    net, x = Net().to(EXACT[chosen]).train(training), torch.randn(3, 4, 2, 10, 10, dtype=EXACT[chosen])
    rows = {
        name: torch.stack([value, *torch.rand(2, *value.shape).to(value.dtype)])
        for name, value in net.state_dict().items()
    }
    floats = [name for name, value in rows.items() if value.is_floating_point() and "running" not in name]

    def one(stacked, params, x):
        def loss(own):
            state = {name: value.clone() for name, value in ({**params, **own}).items()}
            with StackedFunctions(keys.key(0, "x")) if stacked else contextlib.nullcontext():
                return torch.func.functional_call(net, state, (x,)).sin().sum()

        return torch.func.grad(loss)({name: params[name] for name in floats})

    ours = torch.vmap(lambda *own: one(True, *own))(rows, x)
    for client in range(3):
        theirs = one(False, {name: value[client] for name, value in rows.items()}, x[client])
        for name in floats:
            assert close(ours[name][client], theirs[name], operations=20), name


@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
def test_networks_reach_these_implementations(chosen, monkeypatch):
    """A torch that calls its operations by other names would silently lose the speed."""
    seen = []
    for home in (stacked_conv, stacked_pool, stacked_norm):
        monkeypatch.setattr(home, "implementation", lambda x: chosen)
    for own in (stacked_conv._Conv, stacked_pool._MaxPool, stacked_pool._TiledMaxPool, stacked_norm._BatchNorm):
        apply = own.apply
        monkeypatch.setattr(own, "apply", lambda *args, own=own, apply=apply: seen.append((own, args)) or apply(*args))
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(3))
    rows = {name: torch.stack([value, value]) for name, value in net.state_dict().items()}

    def forward(params, x):
        with StackedFunctions(keys.key(0, "x")):
            return torch.func.functional_call(net, params, (x,))

    torch.vmap(forward)(rows, torch.randn(2, 4, 2, 8, 8))
    pool = stacked_pool._TiledMaxPool if chosen == "kernels" else stacked_pool._MaxPool
    (conv, _), *_, (norm, _) = seen
    assert (conv, norm) == (stacked_conv._Conv, stacked_norm._BatchNorm)
    assert seen[1][0] is pool
    assert chosen != "kernels" or seen[1][1][2] is True  # relu and pooling in one


@pytest.mark.slow
@pytest.mark.skipif(NO_TRITON, reason="needs Triton")
def test_kernels_compile_for_a_gpu(tmp_path):
    """All of them, in a process that has not been told to interpret them."""
    folder = Path(stacked_conv.__file__).parent / "kernels"
    written = "".join(file.read_text() for file in folder.glob("*.py"))
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).parent / "compiled.py"
    done = subprocess.run(
        [sys.executable, script], env={**env, "TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(re.findall(r"^@kernel\ndef (\w+)", written, re.MULTILINE))


def test_what_has_no_rule_of_its_own_is_torchs():
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(max_pool2d(x[0], 2), F.max_pool2d(x[0], 2))


def test_names_of_arguments_are_torchs():
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    statistics = torch.zeros(4), torch.ones(4), torch.ones(4), torch.zeros(4)

    def network():
        images = F.max_pool2d(input=F.relu(input=F.conv2d(input=x, weight=weight, stride=1)), kernel_size=2)
        return F.adaptive_avg_pool2d(input=F.batch_norm(images, *statistics, training=True), output_size=1)

    expected = network()
    with StackedFunctions(keys.key(0, "x")):
        assert torch.allclose(network(), expected, atol=1e-6)


def test_second_derivatives_are_refused_aloud():
    x, weight = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 3, 3)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.func.grad(lambda w: torch.func.grad(lambda v: conv2d(x, v).square().sum())(w).square().sum())(weight)


@pytest.mark.parametrize("size", [1, (1, 1), (2, 3)])
def test_average_pooling(size):
    """In channels-last memory, as a stacked convolution leaves it; torch's own would warn there."""
    x = torch.randn(2, 3 * 5, 6, 6).contiguous(memory_format=torch.channels_last).unflatten(1, (3, 5)).movedim(1, 0)
    ours = torch.vmap(lambda own: adaptive_avg_pool2d(own, size))(x)
    assert torch.allclose(ours, torch.stack([F.adaptive_avg_pool2d(own, size) for own in x]), atol=1e-6)
