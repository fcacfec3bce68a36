"""The pathological setting: few classes per client (facts of the paper's first setting)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Reads, Scheme, check_classes, draw_classes, hand_out, rows_of
from feddwa.errors import InputError, require


@dataclass(frozen=True)
class Pathological(Scheme):
    """Few classes per client, without group structure."""

    reads: ClassVar[Reads] = "labels"
    variant_of: ClassVar[Mapping[str, str]] = {
        "shards_per_client": "shards",
        "classes_per_client": "classes",
        "amounts": "classes",
    }

    variant: Literal["shards", "classes"] = "shards"
    "shards of label-sorted rows, as the authors' code has it; or exactly so many classes, as the paper's text has it"
    shards_per_client: int = 2
    "variant shards: shards that a client is dealt"
    classes_per_client: int = 2
    "variant classes: distinct classes of a client (the paper's number where the dataset has one)"
    amounts: Literal["equal", "all"] = "equal"
    "variant classes: the same amount of each class for everyone, as the paper has it; or all rows, split among holders"

    def __post_init__(self) -> None:
        require(self.shards_per_client >= 1, "--param shards_per_client", self.shards_per_client, "at least 1")
        require(self.classes_per_client >= 1, "--param classes_per_client", self.classes_per_client, "at least 1")

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless there is a row for every shard, or enough classes for a client."""
        if self.variant == "classes":
            check_classes("classes_per_client", self.classes_per_client, dataset.y[: dataset.train_count])
        else:
            most = dataset.train_count // clients
            valid = f"at most {most}: {dataset.train_count} training rows, {clients} clients"
            require(self.shards_per_client <= most, "--param shards_per_client", self.shards_per_client, valid)

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Divide by shards or by classes; a client's test rows follow its training rows."""
        train, test = labels[:train_count], labels[train_count:]
        divide = self._shards if self.variant == "shards" else self._classes
        train_owner, test_owner = divide(train, test, clients, rng)
        return Partition(rows_of(train_owner, clients), rows_of(test_owner, clients, train_count))

    def _shards(
        self, train: np.ndarray, test: np.ndarray, clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sort by label, cut into equal shards, divide them; the test rows follow the training rows."""
        count = clients * self.shards_per_client
        small, larger = divmod(len(train), count)
        cuts = np.arange(1, count) * small + np.minimum(np.arange(1, count), larger)  # as np.array_split cuts
        holder = rng.permutation(np.arange(count) % clients)
        return _by_cuts(train, cuts, holder), _by_cuts(test, _same_cuts(cuts, train, test), holder)

    def _classes(
        self, train: np.ndarray, test: np.ndarray, clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same number of classes for each client, with equal amounts of each class or all rows of it."""
        classes = int(train.max()) + 1
        held = draw_classes(clients, self.classes_per_client, classes, rng)
        counts = equal_counts if self.amounts == "equal" else even_counts
        supply = (np.bincount(labels, minlength=classes)[:classes] for labels in (train, test))
        train_counts, test_counts = (counts(held, rows) for rows in supply)
        return hand_out(train, train_counts, rng), hand_out(test, test_counts, rng)


def _by_cuts(labels: np.ndarray, cuts: np.ndarray, holder: np.ndarray) -> np.ndarray:
    """Owner of each row when the label-sorted rows are cut at `cuts` and piece s belongs to holder[s]."""
    owner = np.empty(len(labels), dtype=np.int64)
    piece = np.searchsorted(cuts, np.arange(len(labels)), side="right")
    owner[np.argsort(labels, kind="stable")] = holder[piece]
    return owner


def _same_cuts(cuts: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Cuts of the sorted test rows, at the same fraction of each class as among the training rows.

    With equal class proportions (CIFAR, CINIC, Tiny-ImageNet) these are equal shards; with unequal ones (EMNIST
    byclass) a shard would otherwise hold test classes that its owner never trained on.
    """
    classes = int(max(train.max(), test.max())) + 1
    in_train, in_test = np.bincount(train, minlength=classes), np.bincount(test, minlength=classes)
    end_train, end_test = np.cumsum(in_train), np.cumsum(in_test)
    c = np.searchsorted(end_train, cuts, side="right")  # the class that the cut falls into
    fraction = (cuts - (end_train[c] - in_train[c])) / np.maximum(in_train[c], 1)
    shifted: np.ndarray = end_test[c] - in_test[c] + np.rint(fraction * in_test[c]).astype(np.int64)
    return shifted


def even_counts(held: np.ndarray, supply: np.ndarray) -> np.ndarray:
    """(N, C) rows of each class per client: supply[c] split among the holders of c, shares differing by at most one."""
    holders = held.sum(axis=0)
    rank = np.cumsum(held, axis=0) - 1  # a client's index among the holders
    share, rest = np.divmod(supply, np.maximum(holders, 1))
    return np.where(held, share + (rank < rest), 0)


def equal_counts(held: np.ndarray, supply: np.ndarray) -> np.ndarray:
    """(N, C) rows of each class per client: the same number for all held classes, the most that every class can
    provide.

    The remaining rows are left out: the paper's "the same amount of data on each class" requires this if classes differ
    in size or in the number of holders.
    """
    holders = held.sum(axis=0)
    share = np.where(holders > 0, supply // np.maximum(holders, 1), supply.max())
    scarce = int(share.argmin())
    if share[scarce] == 0:
        raise InputError(
            f"--param amounts: got equal, but class {scarce} has {supply[scarce]} training or test rows for the "
            f"{holders[scarce]} clients that hold it; take fewer clients or amounts=all"
        )
    return np.where(held, share[scarce], 0)
