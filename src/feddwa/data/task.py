"""A task: data and their division among clients, from a name or from own arrays."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from feddwa.data.dataset import Dataset, hold_out
from feddwa.data.partition import Partition
from feddwa.errors import require


@dataclass(frozen=True)
class Task:
    """Data and their division, which several runs may share."""

    dataset: Dataset
    partition: Partition
    _kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def keep(self, name: object, make: Callable[[], Any]) -> Any:
        """What was made under this name before, or is made now: samples on a device, programs compiled for them.

        Tasks that leave the samples as they are share it: all divisions of a dataset train with the same programs.
        """
        altered = self.partition.turns is not None or self.partition.relabel is not None
        kept = self._kept if altered else self.dataset.kept
        if name not in kept:
            kept[name] = make()
        return kept[name]

    def kept(self, name: object) -> Any:
        """What was made under this name before; None where nothing was."""
        return self._kept.get(name, self.dataset.kept.get(name))

    @property
    def clients(self) -> int:
        """The number of clients, N."""
        return len(self.partition.train)

    def fingerprint(self) -> str:
        """A sum of all samples, and of who has which: the same exactly where these are the same."""
        kept = self.dataset.kept
        if "digest" not in kept:  # all divisions of a dataset go on from there
            kept["digest"] = _add(hashlib.sha256(), self.dataset.x, self.dataset.y)
        division = self.partition.train, self.partition.test
        digest = _add(kept["digest"].copy(), *itertools.chain(*division), self.partition.turns, self.partition.relabel)
        return str(digest.hexdigest())


def _add(digest: Any, *arrays: np.ndarray | None) -> Any:
    for array in arrays:
        value = np.zeros(0) if array is None else np.ascontiguousarray(array)
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(value.data if value.size else b"")
    return digest


def from_arrays(clients: Iterable[Sequence[Any]] | Mapping[str, Sequence[Any]]) -> Task:
    """Own arrays as a task: one client per entry, in order; the keys of a mapping are the clients' names."""
    train, test = [], []
    names = tuple(map(str, clients)) if isinstance(clients, Mapping) else ()
    for number, entry in enumerate(clients.values() if isinstance(clients, Mapping) else clients):
        own = _with_test(_arrays(f"clients[{names[number]!r}]" if names else f"clients[{number}]", entry))
        train.append(own[:2])
        test.append(own[2:])
    require(len(train) > 0, "clients", len(train), "a list with at least one (x, y)")
    x, y = (_joined([part[which] for part in (*train, *test)], which) for which in (0, 1))
    sizes = [len(part[1]) for part in (*train, *test)]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    classes = int(y.max()) + 1 if np.issubdtype(y.dtype, np.integer) else 0
    dataset = Dataset("own", x, y, sum(sizes[: len(train)]), classes)
    return Task(dataset, Partition(rows[: len(train)], rows[len(train) :], client_names=names))


def _arrays(client: str, entry: Sequence[Any]) -> list[np.ndarray]:
    """x, y and perhaps x_test, y_test of one client, checked."""
    parts = list(entry) if isinstance(entry, Iterable) else []
    require(len(parts) in (2, 4), client, len(parts), "(x, y) or (x, y, x_test, y_test)")
    arrays = [np.asarray(part.detach().cpu() if isinstance(part, torch.Tensor) else part) for part in parts]
    for array in arrays:
        numbers = array.ndim > 0 and array.dtype.kind in "fiub"
        require(numbers, client, f"{array.dtype} {array.shape}", "arrays of numbers with a sample axis")
        require(bool(np.isfinite(array).all()), client, "NaN or infinity", "finite")
    lengths = [len(array) for array in arrays]
    require(lengths[0::2] == lengths[1::2], client, lengths, "as many targets as samples")
    require(len(arrays) == 4 or lengths[0] >= 2, client, lengths[0], "at least 2 samples: one to train, one to test")
    require(min(lengths) > 0, client, lengths, "at least one sample to train and one to test")
    return arrays


def _with_test(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """A fifth of the samples set apart for testing, spread evenly over the classes, unless there are test samples."""
    if len(arrays) == 4:
        return arrays
    x, y = arrays
    strata = y if y.ndim == 1 and y.dtype.kind in "iub" else np.zeros(len(y))
    order, cut = hold_out(np.zeros(len(y), dtype=np.int64), strata)
    return [x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]]


def _joined(parts: list[np.ndarray], which: int) -> np.ndarray:
    shapes = {part.shape[1:] for part in parts}
    require(len(shapes) == 1, "clients", sorted(shapes), f"{'samples' if which == 0 else 'targets'} of one shape")
    joined = np.concatenate(parts)
    if joined.dtype == np.uint8 and which == 0:
        return joined  # pixels
    return joined.astype(np.float32 if joined.dtype.kind == "f" else np.int64)
