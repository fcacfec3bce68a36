"""The definition of a partition, and the basic operations of the schemes.

Schemes work on an *owner* array: owner[row] = client, or -1 for an unused row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, Self

import numpy as np

from feddwa.data.dataset import Dataset, NamedClients
from feddwa.errors import InputError, require

Reads = Literal["labels", "owners", "images", "nothing"]  # the part of the data that a scheme uses


@dataclass(frozen=True)
class Partition(NamedClients):
    """The division of a Dataset: row indices, one array per client."""

    train: list[np.ndarray]
    test: list[np.ndarray]
    groups: np.ndarray | None = None  # (N,) group of each client, unknown to every method; None: there are none
    turns: np.ndarray | None = None  # (N,) quarter turns (np.rot90, counter-clockwise) of the client's images
    relabel: np.ndarray | None = None  # (N, classes) the label client i sees for true label c is relabel[i, c]
    client_names: tuple[str, ...] = ()  # of the N clients, if the data name them
    newcomers: "Partition | None" = None  # held-out clients, not among the N

    @property
    def everybody(self) -> int:
        """Number of clients that share the data: N and the held-out ones."""
        return len(self.train) + (0 if self.newcomers is None else len(self.newcomers.train))

    def only(self, clients: np.ndarray) -> "Partition":
        """The rows of some clients (k,); clients without a name get their number as name."""
        arrays = {name: getattr(self, name) for name in ("groups", "turns", "relabel")}
        return Partition(
            train=[self.train[client] for client in clients],
            test=[self.test[client] for client in clients],
            **{name: None if value is None else value[clients] for name, value in arrays.items()},
            client_names=tuple(self.client_name(client) for client in clients),
        )

    def hold_out(self, clients: np.ndarray) -> "Partition":
        """The partition with some clients (k,) as newcomers."""
        others = np.setdiff1d(np.arange(len(self.train)), clients)
        return replace(self.only(others), newcomers=self.only(clients))


class Scheme:
    """A way to divide rows among clients: a frozen dataclass whose fields are its hyper-parameters.

    `__post_init__` checks the range of every field, `check` whether they suit the data.
    """

    reads: ClassVar[Reads]
    variant_of: ClassVar[Mapping[str, str]] = {}  # field -> the only value of the field `variant` that uses it

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise InputError if the hyper-parameters do not suit the data or the number of clients."""

    def check_variant(self, usual: Self) -> None:
        """Raise InputError if a field that the chosen variant does not use differs from that of `usual`."""
        for name, variant in self.variant_of.items():
            if vars(self)["variant"] != variant and vars(self)[name] != vars(usual)[name]:
                raise InputError(
                    f"--param {name}: only variant={variant} has it; give --param variant={variant} as well"
                )

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Divide rows [0, train_count) as training and the rest as test rows; pure function of its arguments.

        labels: (n,); for a scheme that reads "owners" the number of each row's owner.
        """
        raise NotImplementedError


def rows_of(owner: np.ndarray, clients: int, first_row: int = 0) -> list[np.ndarray]:
    """The rows of each client in ascending order; `first_row`: the row number of owner[0]."""
    order = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[start:stop] + first_row for start, stop in pairwise(cuts)]


def deal(count: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Owners of `count` rows divided at random; sizes differ by at most one."""
    return rng.permutation(np.arange(count) % clients)


def deal_both(labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
    """Training and test rows each divided at random, whatever their labels."""
    train, test = deal(train_count, clients, rng), deal(len(labels) - train_count, clients, rng)
    return Partition(rows_of(train, clients), rows_of(test, clients, train_count))


def hand_out(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owners such that client i gets counts[i, c] rows of class c, drawn at random; the other rows are unused."""
    owner = np.full(len(labels), -1)
    for c in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == c))[: counts[:, c].sum()]
        owner[rows] = np.repeat(np.arange(len(counts)), counts[:, c])
    return owner


def split_pooled(owner: np.ndarray, clients: int, share: float, rng: np.random.Generator) -> Partition:
    """Each client's rows split at random into training and test rows; at least one of each if it has two."""
    train, test = [], []
    for rows in rows_of(owner, clients):
        mixed = rng.permutation(rows)
        cut = int(np.clip(np.rint(share * len(rows)), 1, max(1, len(rows) - 1)))
        test.append(np.sort(mixed[:cut]))
        train.append(np.sort(mixed[cut:]))
    return Partition(train, test)


def check_groups(groups: int, clients: int) -> None:
    """Raise InputError if there are fewer clients than hidden groups."""
    require(groups <= clients, "--param groups", groups, f"at most the {clients} clients")


def check_classes(field: str, value: int, labels: np.ndarray) -> None:
    """Raise InputError if `value` exceeds the number of classes in `labels`."""
    classes = int(labels.max()) + 1
    require(value <= classes, f"--param {field}", value, f"at most {classes}, the classes of the data")


def block_groups(clients: int, groups: int) -> np.ndarray:
    """(N,) group of each client: consecutive blocks whose sizes differ by at most one."""
    return np.arange(clients) * groups // clients


def draw_classes(owners: int, per_owner: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """(owners, classes) bool: exactly `per_owner` distinct classes each, every class held equally often (up to one).

    Each owner takes the classes with the fewest holders so far, ties broken at random, so the sets are disjoint while
    classes are left, and no set structure is repeated.
    """
    held = np.zeros((owners, classes), dtype=bool)
    for i in range(owners):
        order = np.lexsort((rng.random(classes), held.sum(axis=0)))
        held[i, order[:per_owner]] = True
    return held
