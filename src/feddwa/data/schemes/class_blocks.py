"""Few classes per client, in blocks of neighbours: the pathological setting of PFLlib."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Reads, Scheme, check_classes, hand_out, split_pooled
from feddwa.errors import require


@dataclass(frozen=True)
class ClassBlocks(Scheme):
    """Each class goes to the first clients that still lack one, so that neighbours share their classes.

    Training and test rows are pooled, then split. PFLlib's numbers: 2 classes of CIFAR-10 and Fashion-MNIST, 10 of
    CIFAR-100, 20 of Tiny-ImageNet.
    """

    reads: ClassVar[Reads] = "labels"

    classes_per_client: int = 2
    "distinct classes of a client"
    balance: bool = False
    "a class's rows in equal parts; otherwise parts drawn evenly from a tenth of that up to it, the rest for the last"
    min_samples: int = 40
    "unbalanced parts have at least min_samples / classes rows, where there are as many"
    test_share: float = 0.25
    "share of each client's rows that is held out for testing"

    def __post_init__(self) -> None:
        require(self.classes_per_client >= 1, "--param classes_per_client", self.classes_per_client, "at least 1")
        require(self.min_samples >= 0, "--param min_samples", self.min_samples, "0 or more")
        require(0 < self.test_share < 1, "--param test_share", self.test_share, "between 0 and 1")

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless every class gets a client, and every client its classes."""
        check_classes("classes_per_client", self.classes_per_client, dataset.y)
        classes = int(dataset.y.max()) + 1
        held = blocks(clients, classes, self.classes_per_client)
        fair = bool(held.any(axis=0).all() and (held.sum(axis=1) == self.classes_per_client).all())
        valid = f"such that clients x classes_per_client = {clients} x {self.classes_per_client} is enough for all "
        valid += f"{classes} classes; multiples of {classes} always are"
        require(fair, "--param classes_per_client", self.classes_per_client, valid)

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """The classes of each client are fixed; amounts and rows are drawn."""
        sizes = np.bincount(labels)
        held = blocks(clients, len(sizes), self.classes_per_client)
        counts = np.zeros(held.shape, dtype=np.int64)
        for c, size in enumerate(sizes):
            counts[held[:, c], c] = self._parts(size, int(held[:, c].sum()), len(sizes), rng)
        return split_pooled(hand_out(labels, counts, rng), clients, self.test_share, rng)

    def _parts(self, size: int, holders: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        """(holders,) sizes of the parts of a class; the last one is never smaller than an equal part."""
        equal = size // holders
        least = min(int(max(size / holders / 10, self.min_samples / classes)), equal)
        most = max(equal, least + 1)
        parts = np.full(holders - 1, equal) if self.balance else rng.integers(least, most, holders - 1)
        return np.append(parts, size - parts.sum())


def blocks(clients: int, classes: int, per_client: int) -> np.ndarray:
    """(N, C) bool, the clients' classes: each class goes to the first ceil(N / C * per_client) clients that lack
    classes.
    """
    held = np.zeros((clients, classes), dtype=bool)
    holders = math.ceil(clients / classes * per_client)
    for c in range(classes):
        lacking = np.flatnonzero(held.sum(axis=1) < per_client)
        held[lacking[:holders], c] = True
    return held
