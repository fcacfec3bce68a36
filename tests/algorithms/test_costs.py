"""What crosses the network and what is computed, against the paper's tables; and bad hyper-parameters."""

import math
import weakref
from fractions import Fraction
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import feddwa
from feddwa import models, params
from feddwa.algorithms import ALGORITHMS, SFL, FedDWA, FedDWAPlus
from feddwa.engine.rows import tensors
from feddwa.engine.trainer import Trainer
from feddwa.errors import InputError
from feddwa.groups import KINDS
from tests.algorithms.conftest import federation
from tests.conftest import small_data

CLIENTS, ROUND = 7, 3  # FedFomo and L2C have nothing to send before the second round, FedALA starts up in it


def network(hidden=12):
    """A body with BatchNorm and a head."""
    layers = nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 10)
    return nn.Sequential(nn.Flatten(), *layers)


PARAMETERS = 64 * 12 + 12 + 2 * 12 + 12 * 10 + 10
SIZE = PARAMETERS * 8  # bytes of the model in float64
SHARES = {"body": Fraction(PARAMETERS - 130, PARAMETERS), "batchnorm": Fraction(24, PARAMETERS)}


def amount(declared, participants=CLIENTS, **more):
    """What a class declares, of this federation: a number, or an expression."""
    sizes = {"layers": 3, "classes": 10, "features": 12, "parameters": Fraction(PARAMETERS)}
    names = {"m": participants, "N": CLIENTS, "min": min, **sizes, **SHARES} | more
    return eval(declared, {"__builtins__": {}}, names) if isinstance(declared, str) else declared


def added(kind, features=12):
    """The variables that are about a method's own layers."""
    return {"features": features, "added": Fraction(amount(kind.added_numbers, features=features), PARAMETERS)}


def costs(algorithm, participants=CLIENTS, hidden=12):
    """Of the round that the classes speak of."""
    return _costs(algorithm, participants, hidden)


@cache
def _costs(algorithm, participants, hidden):
    """The same; several tests ask for the same round."""
    options = {"participation": participants / CLIENTS}
    run = federation(algorithm, partial(network, hidden), small_data((20,) * CLIENTS), **options)
    return [run.step().costs for _ in range(ROUND)][-1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_declares_its_costs(name):
    kind = ALGORITHMS[name]
    assert None not in (kind.models_down, kind.models_up, kind.passes, kind.server_ops)
    assert kind.kind in set(KINDS) - {"other"}
    assert "year" in vars(kind) or name == "local"
    assert "" not in (kind.discloses, kind.evaluated)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_keeps_what_the_class_declares_to_the_number(name):
    run = federation(ALGORITHMS[name](), network, small_data((20,) * CLIENTS))
    kept = run.memory
    statistics = sum(value[0].numel() for key, value in tensors(kept) if "running" in key or "num_batches" in key)
    kind = ALGORITHMS[name]
    models, numbers = (amount(each, **added(kind)) for each in (kind.models_kept, kind.numbers_kept))
    declared = PARAMETERS * models + numbers
    assert sum(value[0].numel() for _, value in tensors(kept)) - statistics == declared


@pytest.mark.parametrize("participants", [CLIENTS, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_traffic_is_what_the_class_declares_to_the_byte(name, participants):
    kind = ALGORITHMS[name]
    found = costs(kind(), participants)
    for way in ("down", "up"):
        models, numbers = (
            amount(getattr(kind, f"{what}_{way}"), participants, **added(kind)) for what in ("models", "numbers")
        )
        assert getattr(found, f"bytes_{way}") == models * SIZE + numbers * 8


def test_model_sizes_are_those_of_the_papers_table():
    """Two models, but for the four methods that the paper's table of traffic has with another number."""
    sizes = {
        name: amount(kind.models_down, **added(kind)) + amount(kind.models_up, **added(kind))
        for name, kind in ALGORITHMS.items()
    }
    others = {"local": 0, "fedfomo": 6, "l2c": CLIENTS + 1, "feddwa": 3}
    paper = [name for name, kind in ALGORITHMS.items() if "order" in vars(kind)]
    assert {name: sizes[name] for name in paper} == {**dict.fromkeys(paper, 2), **others}


def test_traffic_where_it_differs():
    """A pull towards u_i brings it down too; guidance that the server can make itself needs no upload; L2C under
    partial participation sends the updates of the previous round's participants."""
    assert costs(SFL(reg=0.3)).bytes_down == 2 * SIZE
    assert costs(FedDWA(guidance="last")).bytes_up == SIZE
    partial = costs(ALGORITHMS["l2c"](), 4)
    assert (partial.bytes_down, partial.bytes_up) == (4 * SIZE + 4 * 8, SIZE + CLIENTS * 8)


@pytest.mark.parametrize("algorithm", [FedDWAPlus(), FedDWA(20, granularity="layer", sketch=2048)])
def test_what_replaces_the_guidance_model_is_within_two_percent_of_a_model(algorithm):
    """On the paper's CIFAR network: at most 2.02 models a client and round."""
    images = [(np.zeros((4, 3, 32, 32), np.uint8), np.arange(4) % 2) for _ in range(2)]
    network = models.make("cifar-cnn", (3, 32, 32), 10)
    summary = feddwa.run(model=network, dataset=images, algorithm=algorithm, rounds=1, out=False).summary
    size = 4 * sum(value.numel() for value in network.parameters())
    assert 2 <= (summary["bytes_up_per_client_round"] + summary["bytes_down_per_client_round"]) / size <= 2.02


@pytest.mark.parametrize("participants", [CLIENTS, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_flops_of_the_server_are_those_of_the_products_that_the_class_declares(name, participants):
    """Two for every multiply-add. FedAMP has a message for each of the seven, whoever takes part."""
    kind = ALGORITHMS[name]
    server_flops = costs(kind(), participants).server_flops
    assert server_flops == 2 * PARAMETERS * amount(kind.server_ops, participants, **added(kind))


def flops(kind, hidden, evaluating=False):
    """What the class declares, for a client's 20 samples: no gradient of the input is computed."""
    body, head = 2 * 64 * hidden * 20.0, 2 * hidden * 10 * 20.0
    forward, backward = body + head, body + 2 * head
    if evaluating:
        probes = kind.evaluation_probe_passes * (forward + head)
        return kind.evaluation_passes * (forward + backward) + probes + kind.forward_passes * forward
    passes = {
        "passes": forward + backward, "body_passes": forward + backward - head, "probe_passes": forward + head,
        "feature_passes": forward + body, "head_passes": 2 * head, "forward_passes": forward,
        "teacher_passes": forward, "statistics_passes": forward + head,
    }  # fmt: skip
    own = 2 * amount(kind.other_ops, features=hidden, samples=20, steps=2)
    return sum(getattr(kind, each) * cost for each, cost in passes.items()) + own


@pytest.mark.parametrize("hidden", [12, 30])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_flops_of_the_client_are_the_passes_that_the_class_declares(name, hidden):
    """In gradients of the paper's convention: per-FedAvg 2 (FO), pFedMe K = 5, FedDWA 2; 80 % train with validation."""
    measured = costs(ALGORITHMS[name](), hidden=hidden).flops
    assert measured.tolist() == pytest.approx([flops(ALGORITHMS[name], hidden)] * CLIENTS, rel=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_flops_of_evaluation_are_the_passes_that_the_class_declares(name):
    run = federation(ALGORITHMS[name](), network, small_data((20,) * CLIENTS))
    for _ in range(ROUND - 1):
        run.step()
    everybody = run.all_clients()
    message, trainer = run.server_side.deliver(run.server, everybody), Trainer(run.engine, everybody.ids, ROUND)
    run.algorithm.personal(trainer, message, run.memory)
    declared = flops(ALGORITHMS[name], 12, evaluating=True)
    assert trainer.flops.tolist() == pytest.approx([declared] * CLIENTS, rel=1e-12)


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
    ("feddwa_plus", "prior", 0), ("feddwa_plus", "freeze", -1), ("scaffold", "server_lr", -1),
    ("scaffold", "option", "III"), ("feddyn", "alpha", 0), ("fedadam", "beta1", 1), ("fedadam", "beta2", 1),
    ("fedadam", "tau", 0), ("fedyogi", "server_lr", -1), ("fedadagrad", "beta1", -0.1), ("pfedgraph", "alpha", 0),
    ("pfedgraph", "lam", -1), ("pfedgraph", "since", "x"), ("ifca", "clusters", 0), ("ifca", "fresh", "x"),
    ("fedala", "blend_lr", -1), ("fedala", "share", 0), ("fedala", "share", 1.1), ("fedala", "start_epochs", 0),
    ("ditto", "lam", -1), ("ditto", "personal_epochs", -1),
    ("ditto", "personal_lr", -1), ("apfl", "alpha", 2), ("apfl", "alpha_lr", -1), ("apfl", "adaptive", "x"),
    ("l2gd", "theta", 1.5), ("fedphp", "lam", 2), ("fedphp", "mu", -1), ("fedphp", "horizon", 0),
    ("fedphp", "transfer", "x"), ("fedrep", "head_epochs", -1), ("fedrep", "head_lr", -1),
    ("fedbabu", "tune_epochs", -1), ("fedbabu", "tune_lr", -1), ("gpfl", "lam", -1), ("gpfl", "mu", -1),
    ("fedcp", "lam", -1),
    ("fedas", "align_epochs", -1), ("fedas", "align_lr", -1), ("fedas", "weights", "x"),
    ("feddbe", "lam", -1), ("feddbe", "mu", 0),
    ("feddbe", "mu", 1.1), ("fedpac", "lam", -1), ("fedpac", "head_epochs", 0), ("fedpac", "head_lr", -1),
    ("fedem", "components", 0), ("fedem", "components", 101), ("fedem", "fresh", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value"), BAD)
def test_bad_hyper_parameters_are_named(name, key, value):
    with pytest.raises(InputError, match=f"--param {key}"):
        params.build(ALGORITHMS[name], {key: str(value)}, f"algorithm {name}")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_is_checked(name):
    """No number is unbounded below, and NaN and infinity are nobody's hyper-parameter."""
    for key, (kind, _) in params.fields_of(ALGORITHMS[name]).items():
        words = params.in_words(kind)
        wrong = {"a whole number": [-(10**9)], "a number": [-1e9, math.nan, math.inf]}.get(words, [])
        for value in wrong:
            with pytest.raises(InputError, match=f"--param {key}"):
                ALGORITHMS[name](**{key: value})
