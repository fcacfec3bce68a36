"""What crosses the network and what is computed, against the paper's tables; and bad hyper-parameters."""

import dataclasses
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import feddwa
from feddwa import models, params
from feddwa.algorithms import ALGORITHMS, SFL, FedDWA, FedDWAPlus
from feddwa.errors import InputError
from tests.algorithms.conftest import federation
from tests.conftest import small_data

CLIENTS, ROUND = 7, 2  # FedFomo and L2C have nothing to send before the second round


def wide_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


SIZE = 650 * 8  # of the model in float64
MODELS = {  # (down, up) in models, as each method says
    name: tuple(int(part) for part in kind.traffic.replace("N", str(CLIENTS)).split(" + "))
    for name, kind in ALGORITHMS.items()
}
SCALARS = {  # (down, up) bytes besides: FedFomo's scores of five and the own model; L2C's sender ids, reported weights
    **dict.fromkeys(ALGORITHMS, (0, 0)),
    "fedfomo": (0, 6 * 8),
    "l2c": (CLIENTS * 8, CLIENTS * 8),
    "feddwa_plus": (0, 8),  # one layer: how far its two halves agree
}


def second_round(algorithm, **options):
    run = federation(algorithm, wide_net, small_data((20,) * CLIENTS), **options)
    return [run.step() for _ in range(ROUND)][-1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_traffic_is_the_papers_to_the_byte(name):
    costs = second_round(ALGORITHMS[name]()).costs
    down, up = ((m * SIZE + s) for m, s in zip(MODELS[name], SCALARS[name], strict=True))
    assert (costs.bytes_down, costs.bytes_up) == (down, up)


def test_model_sizes_are_those_of_the_papers_table():
    sizes = {name: sum(models) for name, models in MODELS.items()}
    assert sizes == {**dict.fromkeys(ALGORITHMS, 2), "local": 0, "fedfomo": 6, "l2c": CLIENTS + 1, "feddwa": 3}


def test_traffic_where_it_differs():
    """A pull towards u_i brings it down too; guidance that the server can make itself needs no upload; L2C under
    partial participation sends the updates of the previous round's participants."""
    assert second_round(SFL(reg=0.3)).costs.bytes_down == 2 * SIZE
    assert second_round(FedDWA(guidance="last")).costs.bytes_up == SIZE
    partial = second_round(ALGORITHMS["l2c"](), participation=4 / CLIENTS).costs
    assert (partial.bytes_down, partial.bytes_up) == (4 * SIZE + 4 * 8, SIZE + CLIENTS * 8)


@pytest.mark.parametrize("algorithm", [FedDWAPlus(), FedDWA(20, granularity="layer", sketch=2048)])
def test_what_replaces_the_guidance_model_is_within_two_percent_of_a_model(algorithm):
    """On the paper's CIFAR network: at most 2.02 models a client and round."""
    images = [(np.zeros((4, 3, 32, 32), np.uint8), np.arange(4) % 2) for _ in range(2)]
    network = models.make("cifar-cnn", (3, 32, 32), 10)
    summary = feddwa.simulate(network, images, algorithm, rounds=1).summary
    size = 4 * sum(value.numel() for value in network.parameters())
    assert 2 <= (summary["bytes_up_per_client_round"] + summary["bytes_down_per_client_round"]) / size <= 2.02


ONE, PAIRS = 2 * CLIENTS * 650, 2 * CLIENTS**2 * 650  # FLOPs of one mixture, and of all pairs of models
SERVER = {
    **dict.fromkeys(ALGORITHMS, ONE),
    **dict.fromkeys(("feddwa", "fedamp", "clusterfl"), 2 * PAIRS),  # how alike they are, and a mixture for each
    "feddwa_plus": 2 * PAIRS,
    "sfl": PAIRS + ONE,
    **dict.fromkeys(("local", "fedfomo", "l2c"), 0),  # nothing, or a relay: the clients judge and mix
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_flops_of_the_server_are_those_of_its_products(name):
    assert second_round(ALGORITHMS[name]()).costs.server_flops == SERVER[name]


def test_the_servers_flops_are_those_of_the_cohort():
    """Three of seven: distances and mixtures among three; FedAMP has a message for each of the seven."""
    for name, flops in {"feddwa": 2 * 2 * 9 * 650, "fedamp": 2 * 650 * (7 * 3 + 7 * 7), "fedavg": 2 * 3 * 650}.items():
        assert second_round(ALGORITHMS[name](), participation=0.5).costs.server_flops == flops


def test_flops_in_epochs_of_fedavg():
    """In gradients of the paper's convention: per-FedAvg 2 (FO), pFedMe K = 5, FedDWA 2; 80 % train with validation."""
    one = second_round(ALGORITHMS["fedavg"]()).costs.flops
    for name, epochs in {
        "local": 1, "fedprox": 1, "fedavgm": 1, "fedavg_ft": 1, "sfl": 1, "clusterfl": 1, "fedamp": 1,
        "perfedavg": 2, "pfedme": 5, "feddwa": 2, "feddwa_plus": 1,
    }.items():  # fmt: skip
        assert torch.equal(second_round(ALGORITHMS[name]()).costs.flops, epochs * one), name
    forward = 2 * 640 * 20.0  # of all samples
    backward = 2 * 640 * 20.0  # one layer: the gradient of its weights and none of its input
    assert torch.equal(one, torch.full((CLIENTS,), forward + backward))
    validated = 0.8 * one + 7 * 0.2 * forward  # base, own and five others are judged
    assert torch.equal(second_round(ALGORITHMS["fedfomo"]()).costs.flops, validated)
    assert torch.equal(second_round(ALGORITHMS["l2c"]()).costs.flops, 0.8 * one + 0.2 * one)


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors held at once."""

    def __init__(self):
        super().__init__()
        self.sizes, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if storage._cdata not in self.sizes:
                    self.sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


def test_no_client_holds_copies_of_all_its_peers_models():
    """Sixteen clients, of which FedFomo sends five models to each and L2C sixteen: the peak stays near FedAvg's."""
    peaks = {}
    for name in ("fedavg", "fedfomo", "l2c"):
        with LiveBytes() as live:
            run = federation(ALGORITHMS[name](), large_net, small_data((10,) * 16), torch.float32)
            run.step()
            run.step()
        peaks[name] = live.peak
    assert peaks["fedfomo"] < 3 * peaks["fedavg"]
    assert peaks["l2c"] < 4 * peaks["fedavg"]


def large_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 10))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_introduces_itself(name):
    kind = ALGORITHMS[name]
    assert kind.title
    assert 10 < len(kind.summary) < 80
    assert "Crosses the network" in (__import__(kind.__module__, fromlist=["x"]).__doc__ or "") or name == "local"
    assert kind() == params.build(kind, {}, name)
    assert hash(kind()) == hash(kind())


BAD = [
    ("feddwa", "top_k", 0), ("feddwa", "guidance_epochs", 0), ("feddwa", "sketch", -1), ("fedprox", "mu", -1),
    ("fedavgm", "beta", 1), ("fedavgm", "beta", -0.1), ("fedavg_ft", "tune_epochs", -1), ("sfl", "hops", -1),
    ("sfl", "server_alpha", 1.5),
    ("sfl", "top_labels", 0), ("sfl", "reg", -0.3), ("perfedavg", "inner_lr", -1), ("perfedavg", "meta_lr", -1),
    ("perfedavg", "delta", 0), ("perfedavg", "adapt_steps", 0), ("perfedavg", "variant", "x"), ("pfedme", "lam", -1),
    ("pfedme", "inner_steps", 0), ("pfedme", "beta", 2), ("pfedme", "personal_lr", -1), ("clusterfl", "eps1", -1),
    ("clusterfl", "eps2", -1), ("clusterfl", "warmup", -1), ("fedamp", "alpha", 0), ("fedamp", "sigma", 0),
    ("fedamp", "lam", -1), ("fedfomo", "models", 0), ("fedfomo", "epsilon", 2), ("fedfomo", "decay", -1),
    ("fedfomo", "fallback", "x"), ("l2c", "mixing_lr", -1), ("l2c", "decay", -1), ("l2c", "mixing_steps", -1),
    ("feddwa_plus", "power", 0), ("feddwa_plus", "average", -0.1), ("feddwa_plus", "granularity", "x"),
    ("feddwa_plus", "prior", 0), ("feddwa_plus", "freeze", -1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value"), BAD)
def test_bad_hyper_parameters_are_named(name, key, value):
    with pytest.raises(InputError, match=f"--param {key}"):
        params.build(ALGORITHMS[name], {key: str(value)}, f"algorithm {name}")


def test_every_number_is_checked():
    """NaN and infinity are nobody's hyper-parameter."""
    tested = {(name, key) for name, key, _ in BAD}
    for name, kind in ALGORITHMS.items():
        for field in dataclasses.fields(kind):
            if isinstance(field.default, bool | str):
                continue
            assert (name, field.name) in tested
            if isinstance(field.default, float):
                for value in (math.nan, math.inf):
                    with pytest.raises(InputError, match=f"--param {field.name}"):
                        kind(**{field.name: value})
