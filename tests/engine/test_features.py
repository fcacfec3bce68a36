"""Sums of features over classes, and what a step may keep of a pass."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from feddwa.engine import Engine, Model, SequentialTrainer, Settings, Trainer
from feddwa.engine.features import class_sums, feature_width
from feddwa.engine.network import outputs_and_features
from feddwa.engine.rows import repeat, row
from feddwa.engine.steps import OptimizerStep
from feddwa.errors import InputError
from feddwa.sides import problem_of
from tests.conftest import NETWORKS, SIZES, conv_net, plain_net, small_data

CLIENTS = torch.arange(len(SIZES))


def make_engine(network, dtype=torch.float64, **settings) -> Engine:
    return Engine(network(), small_data(), Settings(1, 10, 0.1, **settings), dtype=dtype)


def trained(engine):
    """Models and statistics that differ from client to client."""
    parameters, buffers = (repeat(each, len(SIZES)) for each in engine.initial())
    return Trainer(engine, CLIENTS, 1).sgd(parameters, {"buffers": buffers})


def features_of(module: nn.Module, model, buffers, x):
    """What the last layer of a sequential network is given, by PyTorch alone."""
    module.load_state_dict({**model, **buffers})
    with torch.no_grad():
        return module.double().eval()[:-1](x)


@pytest.mark.parametrize("network", NETWORKS)
def test_sums_are_those_of_an_ordinary_forward_pass(network):
    engine = make_engine(NETWORKS[network], augment=("flip",), drop_last=False)
    model, memory = trained(engine)
    found, data = class_sums(Trainer(engine, CLIENTS, 2), model, memory), engine.data
    for client, size in enumerate(SIZES):
        samples = data.splits["train"].index[client, :size]
        x, y = data.x[samples].double(), data.y[samples]
        z = features_of(NETWORKS[network]().double(), row(model, client), row(memory["buffers"], client), x)
        for c in range(10):
            mine = z[y == c]
            assert found.counts[client, c] == len(mine)
            torch.testing.assert_close(found.features[client, c], mine.sum(0), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(found.squares[client, c], mine.square().sum(), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(found.means()[client, c], mine.sum(0) / max(1, len(mine)))


@pytest.mark.parametrize("network", NETWORKS)
def test_the_plain_loop_finds_the_same_sums(network):
    engine = make_engine(NETWORKS[network])
    model, memory = trained(engine)
    vectorised, plain = (class_sums(kind(engine, CLIENTS, 2), model, memory) for kind in (Trainer, SequentialTrainer))
    for a, b in zip(vectorised, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_client_among_others_has_the_sums_that_it_has_alone(network, monkeypatch):
    monkeypatch.setattr("feddwa.engine.fast.program.RECORD_AFTER", {"cpu": 1})  # some recorded, some not
    engine = make_engine(NETWORKS[network], torch.float32)
    model, memory = trained(engine)
    together, some = class_sums(Trainer(engine, CLIENTS, 2), model, memory), torch.tensor([3, 5])
    chosen = {name: value[some] for name, value in model.items()}
    buffers = {"buffers": {name: value[some] for name, value in memory["buffers"].items()}}
    for a, b in zip(class_sums(Trainer(engine, some, 2), chosen, buffers), together, strict=True):
        torch.testing.assert_close(a, b[some], rtol=1e-5, atol=1e-5)
        assert a.dtype == torch.float64


def test_a_pass_costs_forward_passes_and_moves_nothing():
    engine = make_engine(conv_net)
    model, memory = trained(engine)
    trainer = Trainer(engine, CLIENTS, 2)
    before = {name: value.clone() for name, value in memory["buffers"].items()}
    class_sums(trainer, model, memory)
    assert all(torch.equal(value, before[name]) for name, value in memory["buffers"].items())
    forward = Trainer(engine, CLIENTS, 2)
    forward.losses(model, memory, "train")
    small = 2 * 10 * (10 + 54 + 16)  # member @ features of a sample is small beside a forward pass
    assert torch.all((trainer.flops - forward.flops).abs() <= small * forward.sizes())


@dataclass(frozen=True)
class Tracking(OptimizerStep):
    """SGD that remembers the mean feature of the last batch."""

    rate: float

    def __call__(self, client, state, batch):
        gradient, seen = client.gradient_and_aux(state["model"], batch, loss_and_mean)
        return {**self.descend(state, {"model": gradient}, self.rate), "seen": seen}


def loss_and_mean(net, params, batch):
    outputs, features = outputs_and_features(net, params, batch.x)
    return net.loss_function(outputs, batch.y), Model({"mean": features.mean(0)})


def test_a_step_keeps_what_a_pass_computes():
    engine = make_engine(plain_net)
    parameters, buffers = (repeat(each, len(SIZES)) for each in engine.initial())
    plain, _ = Trainer(engine, CLIENTS, 1).sgd(parameters, {"buffers": buffers})
    start = {"model": parameters, "seen": {"mean": torch.zeros(len(SIZES), 12, dtype=torch.float64)}}
    runs = [
        kind(engine, CLIENTS, 1).train(Tracking(0.1), start, {"buffers": buffers})[0]
        for kind in (Trainer, SequentialTrainer)
    ]
    for state in runs:
        for name, value in plain.items():  # aux changes no gradient
            torch.testing.assert_close(state["model"][name], value, rtol=1e-12, atol=1e-12)
        one = engine.data.batch(engine.data.splits["train"].index[5, :2], torch.float64)  # a single batch of 2
        first = F.relu(F.linear(one.x.flatten(1), parameters["1.weight"][0], parameters["1.bias"][0]))
        torch.testing.assert_close(state["seen"]["mean"][5], first.mean(0))
        assert not state["seen"]["mean"].requires_grad


def headless() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())


def test_the_width_of_features_is_known_where_there_are_any():
    widths = {network: feature_width(make_engine(network)) for network in (plain_net, conv_net, headless, convolution)}
    assert list(widths.values()) == [12, 16, 0, 0]


def frozen_head() -> nn.Module:
    network = plain_net()
    network[-1].requires_grad_(False)
    return network


@pytest.mark.parametrize("network", [headless, convolution, frozen_head])
def test_a_network_without_features_is_refused_in_one_line(network):
    problem = problem_of(make_engine(network))
    with pytest.raises(InputError, match="algorithm mine: needs a network whose outputs are those of its last") as told:
        problem.head_weight("mine")
    assert "\n" not in str(told.value)


def test_targets_that_are_no_classes_are_refused():
    problem = problem_of(make_engine(plain_net))
    assert (problem.head_weight("mine"), problem.features) == ("3.weight", 12)
    assert problem.counts_for("mine").shape == (len(SIZES), 10)
    with pytest.raises(InputError, match="algorithm mine: needs class labels"):
        replace(problem, label_counts=None).counts_for("mine")
