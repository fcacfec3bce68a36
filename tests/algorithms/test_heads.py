"""The cut of a network into body and head."""

import pytest
import torch
from torch import nn

from feddwa.algorithms import FedAvg
from feddwa.errors import InputError
from feddwa.sides import problem_of
from tests.algorithms.conftest import federation
from tests.conftest import conv_net, small_data


def problem(network):
    return problem_of(federation(FedAvg(), network, small_data((4, 4))).engine)


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("last", ("9.weight", "9.bias")),
        ("9", ("9.weight", "9.bias")),
        ("9.bias", ("9.bias",)),
        ("9, 6.bias", ("6.bias", "9.weight", "9.bias")),  # in the network's order
        ("3,9", ("3.weight", "3.bias", "9.weight", "9.bias")),  # BatchNorm
    ],
)
def test_a_head_is_the_last_layer_or_layers_by_name(chosen, names):
    assert problem(conv_net).head_named(chosen) == names


def blocks():
    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 4)), nn.Linear(4, 10))


def test_a_block_is_named_as_a_whole_and_is_no_prefix_of_another_name():
    names = problem(blocks).head_named("1")
    assert names == ("1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias")
    many = problem(lambda: nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(10)), nn.Linear(64, 10)))
    assert many.head_named("1") == ("1.weight", "1.bias")


def convolutions():
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten(), nn.PReLU())


@pytest.mark.parametrize(
    ("network", "chosen", "error"),
    [
        (conv_net, "fc", "--param head: got 'fc', must be last, or trainable layers of the network: 0, 3, 6, 9"),
        (conv_net, "", "--param head: got '', must be last"),
        (conv_net, "0,3,6,9", "these are all of them"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "last", "these are all of them"),
        (convolutions, "last", "must be names of layers: this network has no linear layer that is trained"),
    ],
)
def test_a_head_that_is_not_there_is_refused_in_one_line(network, chosen, error):
    torch.manual_seed(0)
    with pytest.raises(InputError, match="--param head") as told:
        problem(network).head_named(chosen)
    assert error in str(told.value)
    assert "\n" not in str(told.value)


def test_batchnorm_is_found_by_type():
    assert problem(conv_net).batchnorm == ("3.weight", "3.bias")
