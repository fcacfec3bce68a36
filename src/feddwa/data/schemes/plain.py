"""Partitions without skew or shift: rows divided evenly, or by the owners in the data."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Reads, Scheme, deal_both, rows_of
from feddwa.errors import require


@dataclass(frozen=True)
class Iid(Scheme):
    """Rows divided at random and evenly."""

    reads: ClassVar[Reads] = "nothing"

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Divide training and test rows; sizes differ by at most one."""
        return deal_both(labels, train_count, clients, rng)


@dataclass(frozen=True)
class Natural(Scheme):
    """The data's own client column: the first N owners with their rows."""

    reads: ClassVar[Reads] = "owners"  # the client column is passed in place of the labels

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless every client is an owner."""
        require(clients <= dataset.owners, "--clients", clients, f"at most {dataset.owners}, the owners in the data")

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """`labels` holds the owner of each row; nothing is drawn."""
        owner = np.where(labels < clients, labels, clients)  # rows of later owners fall after the last cut
        return Partition(rows_of(owner[:train_count], clients), rows_of(owner[train_count:], clients, train_count))
