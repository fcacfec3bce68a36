"""A task: data and their division among clients, from a name or from own arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
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


def from_arrays(clients: Sequence[Sequence[Any]]) -> Task:
    """Own arrays as a task: one client per entry, in order."""
    require(len(clients) > 0, "clients", len(clients), "a list with at least one (x, y)")
    train, test = [], []
    for number, entry in enumerate(clients):
        arrays = [np.asarray(part.cpu() if isinstance(part, torch.Tensor) else part) for part in entry]
        require(len(arrays) in (2, 4), f"clients[{number}]", len(arrays), "(x, y) or (x, y, x_test, y_test)")
        lengths = [len(array) for array in arrays]
        require(lengths[0::2] == lengths[1::2], f"clients[{number}]", lengths, "as many targets as samples")
        if len(arrays) == 2:
            require(lengths[0] >= 2, f"clients[{number}]", lengths[0], "at least 2 samples: one to train, one to test")
            order, cut = hold_out(np.zeros(lengths[0], dtype=np.int64), np.arange(lengths[0]))
            arrays = [arrays[0][order[:cut]], arrays[1][order[:cut]], arrays[0][order[cut:]], arrays[1][order[cut:]]]
        require(min(len(array) for array in arrays) > 0, f"clients[{number}]", 0, "at least one train and test sample")
        train.append(arrays[:2])
        test.append(arrays[2:])
    x, y = (_joined([part[which] for part in (*train, *test)], which) for which in (0, 1))
    sizes = [len(part[1]) for part in (*train, *test)]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    classes = int(y.max()) + 1 if np.issubdtype(y.dtype, np.integer) else 0
    dataset = Dataset("own", x, y, sum(sizes[: len(train)]), classes)
    return Task(dataset, Partition(rows[: len(train)], rows[len(train) :]))


def _joined(parts: list[np.ndarray], which: int) -> np.ndarray:
    shapes = {part.shape[1:] for part in parts}
    require(len(shapes) == 1, "clients", sorted(shapes), f"{'samples' if which == 0 else 'targets'} of one shape")
    joined = np.concatenate(parts)
    if joined.dtype == np.uint8 and which == 0:
        return joined
    kind = np.float32 if np.issubdtype(joined.dtype, np.floating) else np.int64
    return joined.astype(kind)
