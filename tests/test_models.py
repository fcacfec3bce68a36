"""The networks: sizes to the parameter, cost, the head, and what they refuse."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from feddwa import models
from feddwa.data.catalogue import DATASETS, OWN, defaults_of
from feddwa.errors import InputError


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def multiplications(module, shape):
    """Multiply-accumulates of a forward pass on one sample."""
    with FlopCounterMode(display=False) as counter:
        module.eval()(torch.zeros(1, *shape))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("cifar-cnn", (3, 32, 32), 10, 1_204_874),
        ("cifar-cnn", (3, 32, 32), 100, 1_251_044),
        ("emnist-cnn", (1, 28, 28), 62, 2_278_334),
        ("emnist-small", (1, 28, 28), 62, 18_506),
        ("resnet8", (3, 64, 64), 200, 90_392),
        ("resnet8-gkt", (3, 64, 64), 200, 22_936),
        ("resnet8-gkt", (3, 32, 32), 10, 10_586),
        ("digits-mlp", (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10),
        ("digits-cnn", (1, 8, 8), 10, 6_090),
        ("mlp", (30,), 3, 30 * 64 + 64 + 64 * 3 + 3),
        ("linear", (5, 4), 2, 42),
    ],
)
def test_parameter_counts(name, shape, classes, expected):
    network = models.make(name, shape, classes)
    assert parameters(network) == expected
    assert network.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_cost_and_buffers_of_the_cifar_network():
    network = models.make("cifar-cnn", (3, 32, 32), 10)
    assert multiplications(network, (3, 32, 32)) == 5_077_376
    assert sum(buffer.numel() for buffer in network.buffers()) == 194
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.5]


@pytest.mark.parametrize(("side", "stages"), [(64, [32, 16, 8]), (32, [16, 8, 4])])
def test_spatial_sizes_of_resnet8(side, stages):
    body = models.make("resnet8", (3, side, side), 200).body
    x, seen = torch.zeros(1, 3, side, side), []
    for name, layer in body.named_children():
        x = layer(x)
        if name.startswith("stage"):
            seen.append(x.shape[-1])
    assert seen == stages


def test_initial_weights_of_resnet8_are_kaiming_normal():
    torch.manual_seed(0)
    weight = models.make("resnet8", (3, 32, 32), 200).body.stage3.branch[2].conv.weight  # (64, 64, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("name", models.MODELS)
def test_every_network_is_a_body_and_a_linear_head(name):
    shape = next(s for s in [(1, 8, 8), (1, 28, 28), (3, 32, 32)] if models.MODELS[name].fits(s))
    network = models.make(name, shape, 7).eval()
    assert isinstance(network.head, nn.Linear)
    x = torch.rand(3, *shape)
    assert torch.equal(network.head(network.body(x)), network(x))
    assert list(network.state_dict())[-2:] == ["head.weight", "head.bias"]
    if name == "cifar-cnn":
        assert parameters(network.head) == 512 * 7 + 7


@pytest.mark.parametrize(
    ("dataset", "name"),
    [("digits", "digits-mlp"), ("cifar100", "cifar-cnn"), ("emnist", "emnist-cnn"), ("tiny-imagenet-32", "resnet8")],
)
def test_the_default_is_chosen_by_the_dataset(dataset, name):
    assert defaults_of(dataset).model == name


def test_every_dataset_has_a_default_that_fits_and_own_data_have_one_too():
    for info in DATASETS.values():
        assert models.make(info.defaults.model, info.shape, info.classes).head.out_features == info.classes
    assert models.make(OWN.model, (17,), 2).body.fc0.in_features == 17


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (3, 32, 32), "--model: unknown name 'resnet'; valid: cifar-cnn"),
        ("cifar-cnn", (1, 28, 28), "takes samples of shape (3, 32, 32), got (1, 28, 28); models that fit: emnist-cnn"),
        ("resnet8", (3, 4, 4), "takes colour images (3, H, W) of at least 8x8, got (3, 4, 4)"),
        ("digits-mlp", (64,), "takes samples of shape (1, 8, 8), got (64,); models that fit: mlp, linear"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, message):
    with pytest.raises(InputError) as refused:
        models.make(name, shape, 10)
    assert message in str(refused.value)
