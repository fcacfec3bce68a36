"""All algorithms: the vectorised engine, the sequential twin and chunks of clients give the same run."""

import pytest
import torch
from torch import nn

from feddwa.algorithms import (
    ALGORITHMS,
    IFCA,
    SCAFFOLD,
    SFL,
    ClusterFL,
    FedALA,
    FedAvgM,
    FedDBE,
    FedDWA,
    FedDWAPlus,
    FedEM,
    FedFomo,
    FedPAC,
    PerFedAvg,
    PFedGraph,
)  # fmt: skip
from feddwa.engine.rows import tensors
from tests.algorithms.conftest import after, equal, federation
from tests.conftest import ANYWHERE, NETWORKS, map_state, plain_net, small_data

DEFAULTS = {name: kind() for name, kind in ALGORITHMS.items()}
VARIANTS = {
    "fedavgm-plain": FedAvgM(nesterov=False),
    "sfl-pulled": SFL(reg=0.3, server_alpha=0.5),
    "perfedavg-hf": PerFedAvg("hf", adapt_steps=2),
    "clusterfl-split": ClusterFL(eps1=100.0, eps2=0.0, warmup=0),
    "fedfomo-base": FedFomo(models=2, fallback="base"),
    "feddwa-last": FedDWA(3, "last"),
    "feddwa-current": FedDWA(3, "current"),
    "feddwa-extrapolate": FedDWA(3, "extrapolate"),
    "feddwa-far": FedDWA(3, guidance_epochs=2),
    "feddwa-layer": FedDWA(3, granularity="layer"),
    "feddwa-sketch": FedDWA(3, granularity="tensor", sketch=64),
    "feddwa_plus-tensor": FedDWAPlus(2.0, 0.5, "tensor"),
    "feddwa_plus-model": FedDWAPlus(granularity="model", prior=1.0),
    "scaffold-gradient": SCAFFOLD(option="I"),
    "feddbe-slow": FedDBE(1.0, 0.3),
    "fedpac-strong": FedPAC(5.0, 2, 0.03),
    "fedem-head": FedEM(2, "head"),
    "ifca-head": IFCA(clusters=2, fresh="head"),
    "fedala-all": FedALA(head="all", start_epochs=2, share=0.5),
    "pfedgraph-round": PFedGraph(lam=0.5, since="round"),
}


SIZES = (23, 40, 5, 32, 20)  # two full batches and a short one, full ones, less than one, ...


def check(algorithm, network, participation, *others):
    """A run by the vectorised engine agrees with others, in what is evaluated and in what is remembered."""
    reference = federation(algorithm, network, small_data(SIZES), participation=participation)
    end = after(reference, 2)
    for options in others:
        run = federation(algorithm, network, small_data(SIZES), participation=participation, **options)
        same(after(run, 2), end)
        same(run.memory, reference.memory)
        same(run.server, reference.server)


def same(left, right):
    for (name, a), (other, b) in zip(tensors(left), tensors(right), strict=True):
        assert name == other
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize(
    ("name", "network"),
    [(name, network) for name in DEFAULTS for network in NETWORKS if network == "conv" or name in ANYWHERE],
)
def test_backends_and_chunks_agree(name, network, participation):
    others = [{"sequential": True}, {"chunk": 3}]
    check(DEFAULTS[name], NETWORKS[network], participation, *others[: 2 if network == "plain" else 1])


@pytest.mark.parametrize("name", VARIANTS)
def test_backends_and_chunks_agree_for_variants(name):
    check(VARIANTS[name], plain_net, 0.6, {"sequential": True}, {"chunk": 2})


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_state_that_is_handed_over_goes_on_alike(name):
    """As a checkpoint does it: everything that matters is in the two states and the number of the round."""
    whole, first, second = (
        federation(DEFAULTS[name], plain_net, small_data(SIZES), torch.float32, participation=0.6) for _ in range(3)
    )
    after(first, 1)
    second.server, second.memory = (map_state(torch.clone, state) for state in (first.server, first.memory))
    second.round = 1
    assert equal(after(second, 2), after(whole, 3))


class Scaled(nn.Module):
    """A linear layer and a temperature, which is one number: its rows are (m,)."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(x.flatten(1) / self.temperature)


@pytest.mark.parametrize("name", [*ANYWHERE, "feddwa-sketch"])
def test_a_parameter_may_be_a_single_number(name):
    run = federation({**DEFAULTS, **VARIANTS}[name], Scaled, small_data(SIZES))
    run.step()
    run.step()
    found = [value for name, value in run.personal(run.all_clients())[0].items() if name.endswith("temperature")]
    assert [value.shape for value in found] == [(5,)] * len(found)
    assert not torch.allclose(found[0], torch.ones(5, dtype=torch.float64))
