"""A small federation of clients of unequal sizes, and the networks that show what an engine gets wrong."""

import contextlib
import gc
import itertools
import os
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa.algorithms import ALGORITHMS
from feddwa.data import cache
from feddwa.data.catalogue import DATASETS
from feddwa.data.dataset import Dataset
from feddwa.data.federated import FederatedData, federate
from feddwa.data.partition import Partition
from feddwa.engine import Engine, Parts, Settings
from feddwa.results import summary
from feddwa.trained import store
from feddwa.trained.store import TrainedModels

# The longest files, in this order. They begin first, so that no worker is left alone with one of them at the end.
LONG = [
    "flower/test_loopback.py", "oracles/test_oracles.py", "algorithms/test_parity.py", "engine/test_recipe.py",
    "test_docs.py", "reproduction/test_summary.py", "test_resume.py", "engine/test_stacked.py", "test_chaos.py",
    "test_export.py", "test_batchnorm.py", "algorithms/test_lockstep.py", "test_faults.py", "results/test_damage.py",
    "test_tune.py", "engine/test_optimizers.py", "flower/test_parity.py", "test_extend.py", "test_shards.py",
    "reproduction/test_reproduce.py", "test_screen.py",
]  # fmt: skip

ANYWHERE = [name for name in ALGORITHMS if name != "fedbn"]  # FedBN refuses networks without BatchNorm

# What is imported and collected stays until the end. Searching it for garbage, again and again, costs a tenth of all.
gc.disable()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by their length; the tests of a file keep their order.

    `make test` has every fourth algorithm of a test of all of them, in each such test other ones.
    """
    places = {f"tests/{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))
    for item in items:
        for mark in item.iter_markers("parametrize"):
            if mark.args[1] is ANYWHERE:
                place = ANYWHERE.index(item.callspec.params[mark.args[0]])
                if (place + zlib.crc32(item.originalname.encode())) % 4:
                    item.add_marker("slow")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _no_traces_in_the_users_cache(tmp_path_factory):
    """Own data that tests load are kept as long as the tests run. All workers share them, and the named datasets that
    this machine has decoded before."""
    several, folder = "PYTEST_XDIST_WORKER" in os.environ, tmp_path_factory.getbasetemp()
    shared = (folder.parent if several else folder) / "cache"
    shared.mkdir(exist_ok=True)
    for entry in cache.root().glob("*-*"):
        if entry.name.startswith(tuple(DATASETS)):
            with contextlib.suppress(FileExistsError):
                (shared / entry.name).symlink_to(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDDWA_CACHE", os.environ.get("FEDDWA_CACHE") or str(shared))
        yield


# Full batches of 10 only, a short batch, less than one batch, two clients alike, and one with 2 samples.
SIZES = (27, 40, 5, 32, 20, 2, 20, 10)


def small_data(sizes: tuple[int, ...] = SIZES, seed: int = 0, device: str = "cpu") -> FederatedData:
    """Learnable 8x8 images of 10 classes; client i has sizes[i] training and 5 + i test samples."""
    rng = np.random.default_rng(seed)
    tests = [5 + i for i in range(len(sizes))]
    labels = rng.integers(0, 10, sum(sizes) + sum(tests))
    prototypes = rng.normal(size=(10, 1, 8, 8))
    images = (prototypes[labels] + 0.5 * rng.normal(size=(len(labels), 1, 8, 8))).astype(np.float32)
    cuts = np.cumsum([0, *sizes, *tests])
    rows = [np.arange(a, b) for a, b in itertools.pairwise(cuts)]
    dataset = Dataset("small", images, labels, sum(sizes), 10)
    return federate(dataset, Partition(rows[: len(sizes)], rows[len(sizes) :]), torch.device(device))


def conv_net() -> nn.Module:
    """Convolution, pooling, BatchNorm and dropout, as the paper's CIFAR network has them."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(6),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(54, 16),
        nn.Dropout(0.5),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


def plain_net() -> nn.Module:
    """Neither buffers nor randomness."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def map_state(function: Callable[[torch.Tensor], torch.Tensor], state: Parts) -> Parts:
    """`function` of every tensor of a state."""
    return {part: {name: function(value) for name, value in rows.items()} for part, rows in state.items()}


FUZZED: Counter[str] = Counter()  # cases tried by the fuzzers, by what they try


def pytest_sessionfinish(session) -> None:
    """A worker of many tells what it has tried to the one that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzzed"] = dict(FUZZED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    FUZZED.update(getattr(node, "workeroutput", {}).get("fuzzed", {}))


def pytest_terminal_summary(terminalreporter) -> None:
    if FUZZED:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(FUZZED.items()))
        terminalreporter.write_line(f"fuzzed: {sum(FUZZED.values())} cases ({counts})")


NETWORKS = {"conv": conv_net, "plain": plain_net}


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws without a generator of its own is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def data() -> FederatedData:
    return small_data()


# Real runs to read and report on, made once: three methods, two seeds, eight clients in two groups.
ROUNDS = 6
SETTING = {"clients": 8, "rounds": ROUNDS, "param": ["groups=2"]}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder as `feddwa compare` leaves it, twice: runs/0/feddwa, ..., runs/1/fedavg."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for algorithm in ("feddwa", "local", "fedavg"):
            own = [*SETTING["param"], "top_k=3"] if algorithm == "feddwa" else SETTING["param"]
            out = str(folder / str(seed) / algorithm)
            feddwa.run(algorithm=algorithm, seed=seed, out=out, **{**SETTING, "param": own})
    return folder


@pytest.fixture(scope="session")
def absent(tmp_path_factory):
    """A run of which only half of the clients take part in a round."""
    folder = tmp_path_factory.mktemp("absent")
    feddwa.run(participation=0.5, out=str(folder / "run"), **SETTING)
    return folder / "run"


def no_models() -> TrainedModels:
    """What stands for the models of a run in which nothing happens."""
    engine = Engine(plain_net(), small_data(), Settings())
    sizes, blank = torch.tensor(SIZES), Dataset("blank", np.zeros((2, 1, 8, 8)), np.arange(2), 1, 10)
    config = feddwa.RunConfig(model="mlp").resolved()
    return store.absent(config, blank, engine, sizes, sizes, "nothing happened")


def finished(rounds: int) -> tuple[list[dict], dict]:
    """The lines of metrics.jsonl of a run in which nothing happens, and its summary."""
    series = dict.fromkeys(("all", "all_weighted", "participants", "participants_weighted"), 50.0)
    costs = {"bytes_up": 1, "bytes_down": 1, "flops": 1, "server_flops": 1, "seconds": {"train": 0.1}}
    lines = [
        {"round": number, "before": series, "after": series, "loss_before": 1.0, "participants": 1, **costs}
        for number in range(1, rounds + 1)
    ]
    lines.append({"round": rounds + 1, "before": {"all": 50.0, "all_weighted": 50.0}, "loss_before": 1.0})
    return lines, summary.summary({}, lines, torch.device("cpu"))
