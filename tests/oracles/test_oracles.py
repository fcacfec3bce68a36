"""Three rounds of every algorithm agree with the NumPy reference to 1e-9, with all clients and with some of them.

Federations have five or seven clients: 1/4 and 1/8 are exact in any precision, so that four or eight would not show
where weights are rounded.
"""

import itertools
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from feddwa.algorithms import (
    ALGORITHMS,
    APFL,
    GPFL,
    IFCA,
    L2C,
    L2GD,
    SCAFFOLD,
    SFL,
    ClusterFL,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedALA,
    FedAMP,
    FedAS,
    FedAvg,
    FedAvgFT,
    FedAvgM,
    FedBABU,
    FedBN,
    FedCP,
    FedDBE,
    FedDWA,
    FedDWAPlus,
    FedDyn,
    FedEM,
    FedFomo,
    FedNova,
    FedPAC,
    FedPer,
    FedPHP,
    FedProx,
    FedRep,
    FedRoD,
    FedYogi,
    LGFedAvg,
    Local,
    PerFedAvg,
    PFedGraph,
    PFedMe,
)  # fmt: skip
from feddwa.data.dataset import Dataset
from feddwa.data.federated import federate
from feddwa.data.partition import Partition
from feddwa.engine import Engine, Settings, keys
from feddwa.engine.batches import Batches
from feddwa.federation import Federation
from feddwa.models import Network
from feddwa.sides import adds_layers, network_of
from tests.oracles import personal, reference, reference_global, reference_heads, reference_partners

SIZES, TESTS, INPUTS, HIDDEN, CLASSES = (14, 25, 11, 18, 9, 21, 16), 6, 5, 4, 6
LR, BATCH, EPOCHS, ROUNDS, SEED = 0.3, 4, 2, 3, 3

CASES = {
    "local": (Local(), reference.local, {}),
    "fedavg": (FedAvg(), reference.fedavg, {}),
    "fedprox": (FedProx(mu=0.7), reference.fedprox, {"mu": 0.7}),
    "fedavgm": (FedAvgM(beta=0.4), reference.fedavgm, {"beta": 0.4, "nesterov": True}),
    "fedavgm-plain": (FedAvgM(beta=0.4, nesterov=False), reference.fedavgm, {"beta": 0.4, "nesterov": False}),
    "fedavg_ft": (FedAvgFT(), reference.fedavg_ft, {}),
    "fedavg_ft-1": (FedAvgFT(tune_epochs=1), reference.fedavg_ft, {"tune_epochs": 1}),
    "sfl": (
        SFL(top_labels=1), reference.sfl,
        {"hops": 3, "server_alpha": 1.0, "top_labels": 1, "reg": 0.0},
    ),
    "sfl-pulled": (
        SFL(hops=2, server_alpha=0.6, top_labels=2, reg=0.3), reference.sfl,
        {"hops": 2, "server_alpha": 0.6, "top_labels": 2, "reg": 0.3},
    ),
    "perfedavg": (
        PerFedAvg(), reference.perfedavg, {"variant": "fo", "inner": LR, "meta": LR, "delta": 1e-3},
    ),
    "perfedavg-hf": (
        PerFedAvg("hf", inner_lr=0.2, meta_lr=0.1, adapt_steps=2), reference.perfedavg,
        {"variant": "hf", "inner": 0.2, "meta": 0.1, "delta": 1e-3, "adapt_steps": 2},
    ),
    "pfedme": (
        PFedMe(), reference.pfedme, {"lam": 1.0, "inner_steps": 5, "beta": 1.0, "personal_lr": LR},
    ),
    "pfedme-slow": (
        PFedMe(lam=2.0, inner_steps=3, beta=0.5, personal_lr=0.1), reference.pfedme,
        {"lam": 2.0, "inner_steps": 3, "beta": 0.5, "personal_lr": 0.1},
    ),
    "clusterfl": (ClusterFL(), reference.clusterfl, {"eps1": 0.4, "eps2": 1.6, "warmup": 20}),
    "clusterfl-split": (ClusterFL(9.0, 0.0, 0), reference.clusterfl, {"eps1": 9.0, "eps2": 0.0, "warmup": 0}),
    "fedrod": (FedRoD(), reference.fedrod, {}),
    "fedamp": (FedAMP(), reference.fedamp, {"alpha": 1.0, "sigma": 1.0, "lam": 0.1}),
    "fedamp-everyone": (
        FedAMP(neighbours="everyone"), reference.fedamp,
        {"alpha": 1.0, "sigma": 1.0, "lam": 0.1, "neighbours": "everyone"},
    ),
    "fedamp-wide": (FedAMP(0.5, 4.0, 1.0), reference.fedamp, {"alpha": 0.5, "sigma": 4.0, "lam": 1.0}),
    "fedfomo": (
        FedFomo(), reference.fedfomo, {"models": 5, "epsilon": 0.3, "decay": 0.05, "fallback": "own"},
    ),
    "fedfomo-base": (
        FedFomo(1, 0.9, 0.1, "base"), reference.fedfomo,
        {"models": 1, "epsilon": 0.9, "decay": 0.1, "fallback": "base"},
    ),
    "l2c": (L2C(), reference.l2c, {"mixing_lr": 0.1, "decay": 0.0, "mixing_steps": 1}),
    "l2c-twice": (L2C(0.5, 0.1, 2), reference.l2c, {"mixing_lr": 0.5, "decay": 0.1, "mixing_steps": 2}),
    **{
        f"feddwa-{guidance}-{epochs}": (
            FedDWA(2, guidance, epochs), reference.feddwa,
            {"top_k": 2, "guidance": guidance, "guidance_epochs": epochs},
        )
        for guidance, epochs in [("ahead", 1), ("ahead", 3), ("last", 1), ("current", 1), ("extrapolate", 1)]
    },
    **{
        f"feddwa-{granularity}": (
            FedDWA(2, granularity=granularity), reference.feddwa,
            {"top_k": 2, "guidance": "ahead", "guidance_epochs": 1, "granularity": granularity},
        )
        for granularity in ("layer", "tensor")
    },
    **{
        f"feddwa_plus-{granularity}": (
            FedDWAPlus(power, average, granularity, prior), reference.feddwa_plus,
            {"power": power, "average": average, "granularity": granularity, "prior": prior},
        )
        for granularity, power, average, prior in [
            ("model", 3.0, 0.0, 200.0), ("layer", 2.0, 0.1, 20.0), ("tensor", 1.5, 1.0, 1.0)
        ]
    },
    "ditto": (Ditto(), personal.ditto, {"lam": 1.0}),
    "ditto-other": (Ditto(0.3, 1, 0.1), personal.ditto, {"lam": 0.3, "epochs": 1, "lr": 0.1}),
    "apfl": (APFL(), personal.apfl, {"alpha": 0.5, "adaptive": "step", "alpha_lr": LR}),
    "apfl-round": (APFL(0.7, "round", 2.0), personal.apfl, {"alpha": 0.7, "adaptive": "round", "alpha_lr": 2.0}),
    "apfl-off": (APFL(0.3, "off"), personal.apfl, {"alpha": 0.3, "adaptive": "off", "alpha_lr": 0.0}),
    "l2gd": (L2GD(), personal.l2gd, {"theta": 0.5}),
    "l2gd-far": (L2GD(0.9), personal.l2gd, {"theta": 0.9}),
    "fedphp": (
        FedPHP(horizon=3), personal.fedphp, {"lam": 0.05, "mu": 0.9, "horizon": 3, "transfer": "mmd"},
    ),
    "fedphp-strong": (
        FedPHP(0.7, 0.5, 2), personal.fedphp, {"lam": 0.7, "mu": 0.5, "horizon": 2, "transfer": "mmd"},
    ),
    "fedphp-kd": (
        FedPHP(0.4, 0.9, 2, "kd"), personal.fedphp, {"lam": 0.4, "mu": 0.9, "horizon": 2, "transfer": "kd"},
    ),
    "fedper": (FedPer(), personal.fedper, {}),
    "lgfedavg": (LGFedAvg(), personal.lgfedavg, {}),
    "fedrep": (FedRep(head_epochs=3), personal.fedrep, {"head_epochs": 3}),
    "fedrep-other": (
        FedRep(head_epochs=2, body_epochs=1, head_lr=0.1, tune_epochs=1), personal.fedrep,
        {"head_epochs": 2, "body_epochs": 1, "head_lr": 0.1, "tune_epochs": 1},
    ),
    "fedbabu": (FedBABU(), personal.fedbabu, {"tune_epochs": 5}),
    "fedbabu-slow": (FedBABU(tune_epochs=1, tune_lr=0.1), personal.fedbabu, {"tune_epochs": 1, "tune_lr": 0.1}),
    "fedbabu-global": (FedBABU(tune_epochs=0), personal.fedbabu, {"tune_epochs": 0}),
    "feddwa_plus-frozen": (
        FedDWAPlus(prior=20.0, freeze=1), reference.feddwa_plus,
        {"power": 2.0, "average": 0.1, "granularity": "layer", "prior": 20.0, "freeze": 1},
    ),
    "pfedgraph": (PFedGraph(), reference_partners.pfedgraph, {"alpha": 0.8, "lam": 0.01, "since": "initial"}),
    "pfedgraph-round": (
        PFedGraph(0.3, 0.5, "round"), reference_partners.pfedgraph, {"alpha": 0.3, "lam": 0.5, "since": "round"},
    ),
    "ifca": (IFCA(), reference_partners.ifca, {"clusters": 4}),
    "ifca-2": (IFCA(clusters=2), reference_partners.ifca, {"clusters": 2}),
    "fedala": (
        FedALA(), reference_partners.fedala, {"blend_lr": 1.0, "share": 0.8, "start_epochs": 11, "layers": "head"},
    ),
    "fedala-all": (
        FedALA(3.0, 0.5, 2, "all"), reference_partners.fedala,
        {"blend_lr": 3.0, "share": 0.5, "start_epochs": 2, "layers": "all"},
    ),
    "fedas": (
        FedAS(), reference_heads.fedas, {"align_epochs": 1, "align_lr": 0.01, "by_fisher": True},
    ),
    "fedas-far": (FedAS(2, 0.7), reference_heads.fedas, {"align_epochs": 2, "align_lr": 0.7, "by_fisher": True}),
    "fedas-size": (
        FedAS(align_lr=0.3, weights="size"), reference_heads.fedas,
        {"align_epochs": 1, "align_lr": 0.3, "by_fisher": False},
    ),
    "fedcp": (FedCP(), reference_heads.fedcp, {"lam": 5.0}),
    "fedcp-free": (FedCP(lam=0.0), reference_heads.fedcp, {"lam": 0.0}),
    "gpfl": (GPFL(), reference_heads.gpfl, {"lam": 0.01, "mu": 0.1}),
    "gpfl-strong": (GPFL(lam=0.5, mu=0.0), reference_heads.gpfl, {"lam": 0.5, "mu": 0.0}),
    "feddbe": (FedDBE(), personal.feddbe, {"lam": 0.1, "mu": 1.0}),
    "feddbe-slow": (FedDBE(2.0, 0.3), personal.feddbe, {"lam": 2.0, "mu": 0.3}),
    "fedpac": (FedPAC(), personal.fedpac, {"lam": 1.0, "head_epochs": 1, "head_lr": 0.1}),
    "fedpac-strong": (FedPAC(9.0, 2, 0.3), personal.fedpac, {"lam": 9.0, "head_epochs": 2, "head_lr": 0.3}),
    "fedem": (FedEM(), reference_partners.fedem, {"components": 3}),
    "fedem-2": (FedEM(2), reference_partners.fedem, {"components": 2}),
    "scaffold": (SCAFFOLD(), reference_global.scaffold, {"server_lr": 1.0, "option": "II"}),
    "scaffold-gradient": (
        SCAFFOLD(server_lr=0.6, option="I"), reference_global.scaffold, {"server_lr": 0.6, "option": "I"},
    ),
    "feddyn": (FedDyn(), reference_global.feddyn, {"alpha": 0.01}),
    "feddyn-strong": (FedDyn(alpha=0.4), reference_global.feddyn, {"alpha": 0.4}),
    "fednova": (FedNova(), reference_global.fednova, {}),
    "fedadagrad": (
        FedAdagrad(), reference_global.fedopt, {"kind": "adagrad", "server_lr": 0.1, "beta1": 0.0, "tau": 1e-3},
    ),
    **{
        f"fed{kind}": (
            algorithm(0.03, 0.8, 0.02, 0.7), reference_global.fedopt,
            {"kind": kind, "server_lr": 0.03, "beta1": 0.8, "tau": 0.02, "beta2": 0.7},
        )
        for kind, algorithm in [("adam", FedAdam), ("yogi", FedYogi)]
    },
}  # fmt: skip


def dataset(clients):
    """Learnable points; each client has its own mix of classes, and some classes not at all."""
    rng, sizes = np.random.default_rng(0), SIZES[:clients]
    centres = rng.normal(size=(CLASSES, INPUTS))
    mixed = [rng.choice((np.arange(3) + i) % CLASSES, size + TESTS) for i, size in enumerate(sizes)]
    labels = np.concatenate(
        [own[:size] for own, size in zip(mixed, sizes, strict=True)] + [own[-TESTS:] for own in mixed]
    )
    x = (centres[labels] + rng.normal(size=(len(labels), INPUTS))).astype(np.float32)
    cuts = np.cumsum([0, *sizes, *[TESTS] * clients])
    rows = [np.arange(a, b) for a, b in itertools.pairwise(cuts)]
    return Dataset("points", x, labels, sum(sizes), CLASSES), Partition(rows[:clients], rows[clients:])


def make_federation(algorithm, clients, participation):
    data = federate(*dataset(clients), torch.device("cpu"))
    data = algorithm.split(data, np.random.default_rng(1))
    torch.manual_seed(0)
    body = nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(INPUTS, HIDDEN), tanh=nn.Tanh()))
    module = network_of(algorithm, Network(body, HIDDEN, CLASSES), SEED)
    engine = Engine(module, data, Settings(EPOCHS, BATCH, LR), SEED, dtype=torch.float64)
    return Federation(algorithm, engine, participation)


def flat(model, row):
    return torch.cat([value[row].flatten() for value in model.values()]).numpy()


class Drawn(dict):
    """Arrays that are drawn when the reference first asks for them; most references ask for few."""

    def __init__(self, draw):
        self.draw = draw

    def __missing__(self, wanted):
        self.update(self.draw(*wanted))
        return self[wanted]


def record(federation):
    """Everything that the reference needs, as plain arrays."""
    engine, clients = federation.engine, range(federation.clients)
    data = engine.data

    def orders(purpose, split, rnd, _, epoch):
        index, _ = Batches(engine, torch.arange(len(clients)), rnd).order(split, purpose, epoch)
        return {
            (purpose, split, rnd, i, epoch): index[i, :size].numpy()
            for i, size in enumerate(data.splits[split].sizes.tolist())
        }

    def draws(rnd, i):
        key = keys.key(SEED, "fomo", rnd, i)
        return {(rnd, i): tuple(keys.uniform(keys.fold(key, n), torch.Size([len(clients)])).numpy() for n in range(3))}

    def gate_noise(rnd, i, epoch, step):
        """(B, 2, F) draws in [0, 1) for FedCP's gate: the first of the first pass in the first gradient of a batch."""
        key = keys.fold(Batches(engine, torch.tensor([i]), rnd).order("train", "train", epoch)[1][0], step)
        for first in (0, 0, 0):
            key = keys.fold(key, first)
        shape = torch.Size([min(BATCH, SIZES[i] - step * BATCH), 2, HIDDEN])
        return {(rnd, i, epoch, step): keys.uniform(key, shape).numpy().astype(np.float64)}

    splits = {name: [own.index[i, : own.sizes[i]].numpy() for i in clients] for name, own in data.splits.items()}
    cohorts = [federation._cohort(rnd).ids.tolist() for rnd in range(1, ROUNDS + 1)]
    initial = {name: value.unsqueeze(0) for name, value in engine.initial()[0].items()}
    return reference.Task(
        data.x.numpy().astype(np.float64), data.y.numpy(), splits, Drawn(orders), cohorts, Drawn(draws),
        flat(initial, 0), starts(federation), HIDDEN, CLASSES, LR, BATCH, EPOCHS,
        Drawn(gate_noise),
    )  # fmt: skip


def starts(federation):
    """Four permutations of the initial model, parameter by parameter: the keyed draws alone are the library's."""
    initial, made = federation.engine.initial()[0], []
    for number in range(4):
        own = []
        for place, value in enumerate(initial.values()):
            key = keys.key(SEED, "ifca", number, place).reshape(1)
            order = keys.permutations(key, torch.tensor([value.numel()]))[0].numpy()
            own.append(value.numpy().ravel()[order] if number else value.numpy().ravel())
        made.append(np.concatenate(own))
    return made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("clients", "participation"),
    [(5, 1.0), (7, 0.6), *(pytest.param(*other, marks=pytest.mark.slow) for other in ((5, 0.6), (7, 1.0)))],
)
def test_three_rounds_agree_with_the_reference(name, clients, participation):
    algorithm, oracle, hyper = CASES[name]
    federation = make_federation(algorithm, clients, participation)
    task = record(federation)
    for expected in oracle(task, **hyper):
        result = federation.step()
        model, buffers = federation.personal(federation.all_clients())
        for i, own in enumerate(expected.personal):
            np.testing.assert_allclose(flat({**model, **buffers}, i), own, rtol=1e-9, atol=1e-9)
        loss = expected.loss or reference.loss
        tested = [loss(task, v, task.rows["test"][i]) for v, i in zip(expected.trained, result.cohort.ids, strict=True)]
        np.testing.assert_allclose(result.after.loss.numpy(), tested, rtol=1e-9)
        now = [loss(task, v, task.rows["test"][i]) for i, v in enumerate(expected.personal)]
        np.testing.assert_allclose(federation.scores.loss.numpy(), now, rtol=1e-9)
        np.testing.assert_allclose(result.info["weights"].numpy(), expected.weights, rtol=1e-9, atol=1e-12)
    assert federation.round == ROUNDS


def test_every_algorithm_has_a_reference():
    """FedBN's has a network with BatchNorm: test_batchnorm.py."""
    assert {type(algorithm) for algorithm, _, _ in CASES.values()} | {FedBN} == set(ALGORITHMS.values())


def test_the_references_differ():
    """Two algorithms that agree by accident would test nothing."""
    held_out, halves = (record(make_federation(algorithm, 5, 0.6)) for algorithm in (FedFomo(), FedDWAPlus()))

    def task(algorithm):
        if adds_layers(algorithm):
            return record(make_federation(algorithm, 5, 0.6))
        return halves if algorithm.halves else held_out

    ends = {
        name: np.concatenate(list(oracle(task(algorithm), **hyper))[-1].personal)
        for name, (algorithm, oracle, hyper) in CASES.items()
    }
    names = list(ends)
    for a, first in enumerate(names):
        for second in names[a + 1 :]:
            same = ends[first].shape == ends[second].shape  # others are of other networks
            assert not same or np.abs(ends[first] - ends[second]).max() > 1e-6, (first, second)
