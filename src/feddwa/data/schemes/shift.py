"""Two concept shifts used to test clustered federated learning, with equal label distributions."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Reads, Scheme, block_groups, check_groups, deal_both
from feddwa.errors import require


@dataclass(frozen=True)
class Rotations(Scheme):
    """Labels iid, but group g sees its images rotated by g quarter turns: sensors mounted in different orientations."""

    reads: ClassVar[Reads] = "images"

    groups: int = 4
    "hidden groups, in consecutive blocks of clients"

    def __post_init__(self) -> None:
        require(1 <= self.groups <= 4, "--param groups", self.groups, "1..4 (quarter turns)")

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless there is a client for every group."""
        check_groups(self.groups, clients)

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Divide rows iid; group g is rotated g times counter-clockwise."""
        groups = block_groups(clients, self.groups)
        return replace(deal_both(labels, train_count, clients, rng), groups=groups, turns=groups)


@dataclass(frozen=True)
class LabelPermutation(Scheme):
    """Labels iid, but every group names the classes by its own permutation (group 0 keeps the true names)."""

    reads: ClassVar[Reads] = "labels"

    groups: int = 4
    "hidden groups, in consecutive blocks of clients"

    def __post_init__(self) -> None:
        require(self.groups >= 1, "--param groups", self.groups, "at least 1")

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless there is a client for every group, and a permutation."""
        check_groups(self.groups, clients)
        classes = int(dataset.y.max()) + 1
        # 20! already exceeds any number of clients; the factorial of thousands of classes would only cost time.
        orders = math.factorial(min(classes, 20))
        require(self.groups <= orders, "--param groups", self.groups, f"at most {orders} (orders of {classes} labels)")

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Divide rows iid; relabel by a different random permutation in each group."""
        classes = int(labels.max()) + 1
        names = {tuple(range(classes)): None}  # an ordered set
        while len(names) < self.groups:
            names[tuple(rng.permutation(classes).tolist())] = None
        groups = block_groups(clients, self.groups)
        relabel = np.array(list(names))[groups]
        return replace(deal_both(labels, train_count, clients, rng), groups=groups, relabel=relabel)
