"""Layers that a method adds to the network of a run: their initial values, and where they turn up."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feddwa
from feddwa.algorithms import FedAvg
from feddwa.build import load_task, make_engine, program_kind
from feddwa.config import RunConfig
from feddwa.engine.network import added, head_name, head_parameters, outputs_and_features, with_added
from feddwa.errors import InputError
from feddwa.results import runs
from feddwa.sides import network_of
from feddwa.trained import export
from tests.algorithms.conftest import after, difference, federation
from tests.conftest import plain_net
from tests.test_trained_models import check_accuracy, test_samples

TINY = {"clients": 4, "rounds": 2, "batch_size": 60, "device": "cpu"}


class Masks(nn.Module):
    """The head after a Gumbel softmax over pairs, one of which keeps a feature; a plain softmax in evaluation."""

    def __init__(self, linear: nn.Linear, pairs: int) -> None:
        super().__init__()
        self.gate = nn.ModuleList(nn.Linear(linear.in_features, linear.in_features) for _ in range(pairs))

    def outputs(self, z: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        for layer in self.gate:
            pair = torch.stack([layer(z), torch.zeros_like(z)])
            z = z * (F.gumbel_softmax(pair, dim=0) if self.training else pair.softmax(0))[0]
        return linear(z)


@dataclass(frozen=True)
class Gated(FedAvg):
    """FedAvg of a network with a noisy gate before its head."""

    pairs: int = 1

    def network(self, module: nn.Module) -> nn.Module:
        return with_added(module, "gated", lambda linear: Masks(linear, self.pairs))


GATE = "3.added_layers.gate.0.weight"


def test_initial_values_are_keyed_and_leave_the_network_alone():
    given = plain_net()
    before = {name: value.clone() for name, value in given.named_parameters()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = network_of(Gated(), given, 0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again, other = network_of(Gated(), given, 0), network_of(Gated(), given, 1)
    drawn = [made.get_parameter(GATE) for made in (one, again, other)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert list(dict(given.named_parameters())) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in given.named_parameters())
    assert torch.equal(one.get_parameter("3.linear.weight"), before["3.weight"])
    assert network_of(FedAvg(), given, 0) is given


def test_the_head_is_still_the_last_linear_layer():
    made = network_of(Gated(), plain_net(), 0)
    assert head_name(made) == "3"
    assert head_parameters(made) == ("3.linear.weight", "3.linear.bias")
    assert head_parameters(network_of(Gated(), nn.Linear(4, 3), 0)) == ("linear.weight", "linear.bias")

    def net(params, x):
        return torch.func.functional_call(made, params, (x,))

    net.module = made.eval()
    outputs, features = outputs_and_features(net, dict(made.named_parameters()), torch.randn(5, 1, 8, 8))
    assert torch.equal(made[3](features), outputs)
    assert list(added(dict(made.named_parameters()))) == ["gate.0.weight", "gate.0.bias"]


def test_a_network_without_a_linear_layer_is_refused():
    with pytest.raises(InputError, match="algorithm gated: needs a network whose last layer is an nn"):
        network_of(Gated(), nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), 0)


def test_they_are_trained_sent_and_counted_on_every_backend():
    made, plain = federation(Gated()), federation(FedAvg())
    start = made.engine.initial()[0]
    added = sum(value.numel() for name, value in start.items() if "gate" in name)
    assert made.step().costs.bytes_up == plain.step().costs.bytes_up + 8 * added
    assert not torch.equal(made.server["model"][GATE], start[GATE])
    whole = after(made, 1)
    for options in ({"sequential": True}, {"chunk": 3}):
        assert difference(after(federation(Gated(), **options), 2), whole) < 1e-9


def test_programs_of_other_layers_are_not_shared():
    config = RunConfig(algorithm=f"{__file__}:Gated", param=("pairs=2",), **TINY).resolved()
    engine = make_engine(config, load_task(config))
    other = RunConfig(algorithm=f"{__file__}:Gated", **TINY).resolved()
    assert program_kind(config, engine) == program_kind(config, engine) != program_kind(other, engine)


@pytest.mark.parametrize("form", ["safetensors", "torch-export"])
def test_stored_and_exported_models_have_them(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    feddwa.run(algorithm=f"{__file__}:Gated", param=("pairs=2",), out="run", **TINY)
    trained = runs.read_models(Path("run"))
    for client, (x, y) in enumerate(test_samples("run")):
        check_accuracy(trained, client, export.predict(trained, client, x), y)
    export.export(trained, 1, Path("model"), form)
    if form == "torch-export":
        with torch.no_grad():
            scores = torch.export.load("model").module()(test_samples("run")[1][0])
        torch.testing.assert_close(scores, export.predict(trained, 1, test_samples("run")[1][0]), rtol=1e-5, atol=1e-5)
        return
    Path("model").rename("model.safetensors")
    with pytest.raises(InputError, match=r"the parameters do not fit what digits-mlp makes: .*gate.* has no place"):
        feddwa.run(model="digits-mlp@model.safetensors", out=False, **TINY)


def test_a_noisy_gate_draws_nothing_in_evaluation():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return F.gumbel_softmax(self.head(x.flatten(1)))

    with pytest.raises(InputError, match="gumbel_softmax draws noise in evaluation mode"):
        federation(FedAvg(), Noisy)
