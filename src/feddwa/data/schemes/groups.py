"""Practical setting 1: groups of clients that share dominant classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.schemes import base
from feddwa.data.schemes.base import Partition, Reads, Scheme, rows_of
from feddwa.errors import InputError, require


@dataclass(frozen=True)
class Groups(Scheme):
    """Most of a client's data come from its group's dominant classes, the rest uniformly from all classes."""

    reads: ClassVar[Reads] = "labels"
    variant_of: ClassVar[Mapping[str, str]] = {"dominant_classes": "classes"}

    variant: Literal["chunks", "classes"] = "chunks"
    "dominant data = contiguous label chunks, as the authors' code has it; or drawn classes, as the paper's text has it"
    groups: int = 4
    "hidden groups, in consecutive blocks of clients"
    dominant_share: float = 0.8
    "share of a client's data that comes from its dominant classes"
    dominant_classes: int = 3
    "variant classes: dominant classes of a group (the paper's number where the dataset has one)"

    def __post_init__(self) -> None:
        require(self.groups >= 1, "--param groups", self.groups, "at least 1")
        require(0 <= self.dominant_share <= 1, "--param dominant_share", self.dominant_share, "between 0 and 1")
        require(self.dominant_classes >= 1, "--param dominant_classes", self.dominant_classes, "at least 1")

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless there is a client for every group, and enough classes for a group."""
        base.check_groups(self.groups, clients)
        if self.variant == "classes":
            base.check_classes("dominant_classes", self.dominant_classes, dataset.y)

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Divide training and test rows by the same rule."""
        train, test = labels[:train_count], labels[train_count:]
        if self.variant == "chunks":
            # The authors' blocks: N // G clients each, the last group takes the remainder.
            groups = np.minimum(np.arange(clients) // (clients // self.groups), self.groups - 1)
            owners = [self._chunks(part, groups, rng) for part in (train, test)]
        else:
            groups = base.block_groups(clients, self.groups)
            mix = self._mix(groups, int(labels.max()) + 1, rng)
            owners = [base.hand_out(part, counts_for(mix, part), rng) for part in (train, test)]
        train_owner, test_owner = owners
        return Partition(rows_of(train_owner, clients), rows_of(test_owner, clients, train_count), groups=groups)

    def _chunks(self, labels: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A random share of the rows is sorted by label and cut into one chunk per group; the rest is divided among
        all.
        """
        mixed = rng.permutation(len(labels))
        dominant, uniform = np.split(mixed, [int(self.dominant_share * len(labels))])
        by_label = dominant[np.argsort(labels[dominant], kind="stable")]
        owner = np.empty(len(labels), dtype=np.int64)
        owner[uniform] = base.deal(len(uniform), len(groups), rng)
        for g, chunk in enumerate(np.array_split(by_label, self.groups)):
            members = np.flatnonzero(groups == g)
            owner[chunk] = members[base.deal(len(chunk), len(members), rng)]
        return owner

    def _mix(self, groups: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
        """(N, C) label distribution of each client: dominant classes drawn per group, disjoint as far as possible."""
        dominant = base.draw_classes(self.groups, self.dominant_classes, classes, rng)[groups]
        mix: np.ndarray = self.dominant_share * dominant / self.dominant_classes + (1 - self.dominant_share) / classes
        return mix


def counts_for(mix: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N, C) row counts: every client has the same size, as large as the scarcest class allows, and follows `mix`."""
    supply = np.bincount(labels, minlength=mix.shape[1])
    demand = mix.sum(axis=0)  # rows of class c for all clients if each takes one row in total
    size = int((supply[demand > 0] / demand[demand > 0]).min())
    while size > 0:
        counts = _round_rows(mix, size)
        over = counts.sum(axis=0) - supply
        if over.max() <= 0:
            return counts
        size -= max(1, int(over.max() / demand.max() / 2))  # rounding can overdraw a class by a row or two per client
    raise InputError(f"--clients: {len(mix)} clients cannot share {len(labels)} rows in this mix; take fewer clients")


def _round_rows(mix: np.ndarray, size: int) -> np.ndarray:
    """Integer counts close to size * mix whose rows sum to `size` exactly (differences of rounded cumulative sums)."""
    running = np.rint(size * np.cumsum(mix, axis=1)).astype(np.int64)
    running[:, -1] = size
    return np.diff(running, axis=1, prepend=0)
