"""Samples of one task as plain arrays, and the fixed hold-out for data without a test part."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from feddwa.data.form import InputForm
from feddwa.data.labels import PADDING
from feddwa.errors import InputError


class NamedClients:
    """Names of clients, if the data have them, for tables, figures, reports and errors."""

    client_names: tuple[str, ...]

    def client_name(self, client: int) -> str:
        """The name of a client, or its number without one."""
        return self.client_names[client] if self.client_names else str(client)


@dataclass(frozen=True)
class Dataset:
    """Samples of one task: the original training rows first, then the original test rows."""

    name: str
    x: np.ndarray  # (n, *shape): uint8 pixels (n, C, H, W), float32 features or int64 tokens; may be memory-mapped;
    # of a network with several inputs a structured array (n,) with a field for each ("0", "1", ... or keywords)
    y: np.ndarray  # (n,) int64 class labels; tokens (n, length) int64, PADDING where nothing is to be predicted; or
    # any other target array
    train_count: int  # rows [0, train_count) are training rows, the rest test rows
    classes: int  # number of classes; 0 where the targets are not class labels
    mean: tuple[float, ...] = ()  # per channel or feature, bytes as 0 to 1; () = only scale uint8 to [0, 1]
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    client: np.ndarray | None = None  # (n,) natural client number of each row, if the data have owners
    client_names: tuple[str, ...] = ()  # of client 0, 1, ...; () if owners are numbers
    form: InputForm | None = None  # how own files become samples, to read more of them later
    notes: tuple[str, ...] = ()  # changes to the data, as text: rows left out, values filled in
    in_time: bool = False  # an owner's rows are ordered in time, and held-out rows must be the last
    kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # see Task.keep

    def __post_init__(self) -> None:
        rows = len(self.x)
        for column in (self.y, self.client):
            if column is not None and len(column) != rows:
                raise InputError(f"dataset {self.name}: {rows} samples but {len(column)} labels or owners")
        if self.client_names and len(self.client_names) != self.owners:
            raise InputError(f"dataset {self.name}: {self.owners} owners but {len(self.client_names)} names of owners")
        if not 0 < self.train_count < rows:
            raise InputError(
                f"dataset {self.name}: {self.train_count} of {rows} rows are for training; "
                "at least one training and one test row are needed"
            )
        if self.classes:
            known = self.y if self.y.ndim == 1 else self.y[self.y != PADDING]
            low, high = known.min(initial=self.classes), known.max(initial=-1)
            if not 0 <= low <= high < self.classes:
                raise InputError(f"dataset {self.name}: labels go from {low} to {high}, must be 0..{self.classes - 1}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x.shape[1:]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of several inputs; () for a single input."""
        return self.x.dtype.names or ()

    @property
    def owners(self) -> int:
        """Number of natural clients, 0 without owners."""
        return 0 if self.client is None else int(self.client.max()) + 1


def refuse_padding(dataset: Dataset) -> None:
    """Raise if numeric targets contain padding."""
    if dataset.y.ndim > 1 and bool((dataset.y == PADDING).any()):
        raise InputError(
            f"dataset {dataset.name}: its targets have padding ({PADDING}), which is no number; the losses next-token "
            "and cross-entropy leave it out"
        )


def with_numbers(dataset: Dataset) -> Dataset:
    """The same data with class labels (n,) as regression targets."""
    if not dataset.classes:
        return dataset
    refuse_padding(dataset)
    try:
        values = np.array(dataset.class_names or range(dataset.classes), dtype=np.float32)
    except ValueError:
        raise InputError(
            f"dataset {dataset.name}: its labels are names, such as {dataset.class_names[0]}, not numbers"
        ) from None
    return replace(dataset, y=values[dataset.y], classes=0, class_names=())


def hold_out(owner: np.ndarray, label: np.ndarray, share: float = 0.2, first: int = 0) -> tuple[np.ndarray, int]:
    """An order of the rows with a stratified test part last, and the number of training rows before it.

    Every owner gives `share` of its rows (at least one, never all), spread evenly over its labels. The draw is fixed:
    the split belongs to the data, so that runs with different seeds have the same test rows. Owner i's picks are
    shifted by i positions (`first`: the number of owner 0); otherwise all small owners would be tested on their last
    label.
    """
    rng = np.random.default_rng(0)
    order = np.lexsort((rng.random(len(owner)), label, owner))  # by owner, then label, then at random
    sizes = np.bincount(owner[order])
    if (sizes == 1).any():
        lonely = int(np.flatnonzero(sizes == 1)[0])
        raise InputError(f"client {lonely} has 1 sample, must be at least 2 (train and test)")
    wanted = np.clip(np.rint(share * sizes), 1, np.maximum(sizes - 1, 1)).astype(np.int64)
    is_test = evenly(sizes, wanted, first + np.arange(len(sizes)))
    return np.concatenate([np.sort(order[~is_test]), np.sort(order[is_test])]), int((~is_test).sum())


def evenly(sizes: np.ndarray, wanted: np.ndarray, start: np.ndarray | int = 0) -> np.ndarray:
    """Picked rows, (sum of sizes,) bool: of owner i's sizes[i] rows wanted[i], evenly spaced.

    start: (N,) shift of each owner's picks; without a shift its last row is always picked.
    """
    place = _places(sizes) + np.repeat(np.broadcast_to(start, sizes.shape), sizes)
    quota, size = np.repeat(wanted, sizes), np.repeat(sizes, sizes)
    # Row p of s is picked if floor((p + 1) * q / s) increases there: exactly q of any s consecutive rows.
    picked: np.ndarray = (place + 1) * quota // size > place * quota // size
    return picked


def at_the_end(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The same with the last rows of every owner."""
    picked: np.ndarray = _places(sizes) >= np.repeat(sizes - wanted, sizes)
    return picked


def _places(sizes: np.ndarray) -> np.ndarray:
    """(sum of sizes,) the position of every row among its owner's."""
    places: np.ndarray = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def hold_out_last(owner: np.ndarray, when: np.ndarray | None = None, share: float = 0.2) -> tuple[np.ndarray, int]:
    """The same with the last rows of every owner as its test part, so that none is older than a training row.

    when: (n,) the order of the rows; None: they are in order. Rows stay in temporal order.
    """
    order = np.lexsort((np.arange(len(owner)), np.zeros(len(owner)) if when is None else when, owner))
    sizes = np.bincount(owner)
    wanted = np.clip(np.rint(share * sizes), 1, np.maximum(sizes - 1, 1)).astype(np.int64)
    is_test = at_the_end(sizes, wanted)
    return np.concatenate([order[~is_test], order[is_test]]), int((~is_test).sum())
