"""The tasks of benchmarks/field.py: network, samples, and the peers that can run them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.data import sources
from feddwa.data.dataset import Dataset
from feddwa.data.task import Task

CHOSEN = "FIELD_TASK"  # environment variable: NAME SHARE, which samples `samples` gives
MADE = "made"  # in place of a share: random images, so many training and test samples
MADE_ROWS, MADE_CLIENTS = (1_200, 240), 5


@dataclass(frozen=True)
class Recipe:
    """A benchmark of another library as options of `feddwa run`."""

    peers: tuple[str, ...]  # who can run it
    dataset: str
    shape: tuple[int, int, int]
    train: int  # training samples
    half: bool  # pixels less 0.5, over 0.5; else channels less their mean, over their spread
    rounds: int  # that the recipe has
    clients: int
    per_round: int
    samples_each: int | None  # training samples of a client; None: unequal, the number of clients is kept
    eval_every: int | None  # rounds; None: at the start and at the end alone
    options: Mapping[str, Any]

    def sized(self, share: str, clients: int | None) -> "Recipe":
        """The same with a share of the samples: of clients as many as are given, or the same number of samples each."""
        if clients is None:
            each = self.samples_each
            clients = (
                MADE_CLIENTS if share == MADE else round(float(share) * self.train) // each if each else self.clients
            )
        return replace(self, clients=clients, per_round=min(self.per_round, clients))

    def config(self, rounds: int, device: str, tensor_cores: bool, seed: int) -> RunConfig:
        """Our configuration."""
        return RunConfig(
            algorithm="fedavg",
            dataset=f"{Path(__file__).resolve()}:samples",
            clients=self.clients,
            participation=self.per_round / self.clients,
            rounds=rounds,
            seed=seed,
            device=device,
            dtype="tf32" if tensor_cores else "float32",
            eval="central",
            eval_every=min(self.eval_every or rounds, rounds),
            checkpoint_every=0,
            **self.options,
        ).resolved()


RECIPES = {
    "pfllib": Recipe(
        ("pfllib", "flower"),
        "fashion-mnist",
        (1, 28, 28),
        train=60_000,
        half=True,
        rounds=2000,
        clients=20,
        per_round=20,
        samples_each=None,
        eval_every=None,
        options={
            "model": "fedavg-cnn",
            "partition": "dirichlet",
            "param": ("dirichlet.alpha=0.1", "dirichlet.min_samples=40", "dirichlet.test_share=0.25"),
            "batch_size": 10,
            "lr": 0.005,
            "drop_last": True,
        },
    ),
    "pfl-cifar10": Recipe(
        ("pfl", "flower"),
        "cifar10",
        (3, 32, 32),
        train=50_000,
        half=False,
        rounds=1500,
        clients=1000,
        per_round=50,
        samples_each=50,
        eval_every=10,
        options={"model": "conv-dropout", "partition": "iid", "batch_size": 10, "lr": 0.1},
    ),
    "blazefl": Recipe(
        ("blazefl",),
        "cifar10",
        (3, 32, 32),
        train=50_000,
        half=True,
        rounds=5,
        clients=100,
        per_round=100,
        samples_each=500,
        eval_every=None,
        options={
            "model": f"{Path(__file__).resolve()}:TutorialCNN",
            "partition": "pathological",
            "param": ("pathological.shards_per_client=2",),
            "batch_size": 50,
            "epochs": 5,
            "lr": 0.1,
            "augment": "flip,crop",
        },
    ),
}


class TutorialCNN(nn.Module):
    """The network of PyTorch's CIFAR-10 tutorial, which BlazeFL's benchmark trains: 62,006 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, 32, 32)
        x = self.pool(F.relu(self.conv1(x)))  # (B, 6, 14, 14)
        x = self.pool(F.relu(self.conv2(x)))  # (B, 16, 5, 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


def samples() -> Dataset:
    """The samples of the task in the environment, as bytes, with the mean and spread that its peers normalise by."""
    name, share = os.environ[CHOSEN].split()
    recipe = RECIPES[name]
    dataset = made(recipe.shape) if share == MADE else part_of(sources.load(recipe.dataset), float(share))
    if recipe.half:
        return replace(dataset, mean=(0.5,) * recipe.shape[0], std=(0.5,) * recipe.shape[0])
    pixels = dataset.x[: dataset.train_count].astype(np.float64) / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    return replace(dataset, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def part_of(dataset: Dataset, share: float) -> Dataset:
    """The first `share` of the rows of both parts."""
    train, test = (round(share * count) for count in (dataset.train_count, len(dataset.y) - dataset.train_count))
    rows = np.r_[:train, dataset.train_count : dataset.train_count + test]
    return replace(dataset, x=dataset.x[rows], y=dataset.y[rows], train_count=train)


def made(shape: tuple[int, ...]) -> Dataset:
    """Noise on ten patterns, one for each class."""
    rng, (train, test) = np.random.default_rng(0), MADE_ROWS
    y = rng.integers(0, 10, train + test)
    x = rng.integers(0, 128, (10, *shape))[y] + rng.integers(0, 128, (train + test, *shape))
    return Dataset("made", x.astype(np.uint8), y, train, 10)


def load(name: str, share: str, config: RunConfig) -> Task:
    """The samples of a task and their division."""
    os.environ[CHOSEN] = f"{name} {share}"
    return load_task(config)


def work(recipe: Recipe, task: Task) -> tuple[float, float]:
    """Steps and samples of a round over all its clients; the mean if clients are sampled."""
    options = recipe.options
    width, epochs = options["batch_size"], options.get("epochs", 1)
    sizes = np.array([len(rows) for rows in task.partition.train])
    trained = sizes - sizes % width if options.get("drop_last") else sizes
    each = recipe.per_round / recipe.clients * epochs
    return float(each * (-(-trained // width)).sum()), float(each * trained.sum())
