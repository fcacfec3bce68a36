"""The samples used by checks: a bounded number, always the same."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from feddwa.data.dataset import Dataset

MOST_ROWS = 20_000  # largest number of samples in a check
MOST_BYTES = 2**28  # largest size of a check's samples
SHOWN = 4  # names in a finding


def drawn(rows: np.ndarray, dataset: Dataset) -> np.ndarray:
    """A bounded number of the rows, in order."""
    size = max(1, dataset.x.dtype.itemsize * int(np.prod(dataset.shape)))
    most = max(1, min(MOST_ROWS, MOST_BYTES // size))
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def test_rows(dataset: Dataset) -> np.ndarray:
    """The rows of the test part."""
    return np.arange(dataset.train_count, len(dataset.y))


def digests(dataset: Dataset, rows: np.ndarray) -> list[bytes]:
    """A digest of each row's sample: equal where samples are equal."""
    return [hashlib.blake2b(np.ascontiguousarray(dataset.x[row]).data, digest_size=16).digest() for row in rows]


def seen(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """Samples (n, *shape) in float64, standardised as for the network."""
    x: np.ndarray = dataset.x[rows].astype(np.float64)
    if not dataset.mean:
        return x
    places = (-1, *[1] * (x.ndim - 2))
    mean, std = (np.array(each).reshape(places) for each in (dataset.mean, dataset.std))
    scaled: np.ndarray = (x / (255 if dataset.x.dtype == np.uint8 else 1) - mean) / std
    return scaled


def thin(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """(n, at most 256) standardised values, evenly spaced over each sample."""
    flat = seen(dataset, rows).reshape(len(rows), -1)
    thinned: np.ndarray = flat[:, :: max(1, flat.shape[1] // 256)]
    return thinned


def distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n,) Euclidean distances between the rows of two arrays (n, k)."""
    distances: np.ndarray = np.sqrt(((left - right) ** 2).sum(-1))
    return distances


def listed(names: Sequence[str], one: str, many: str) -> str:
    """ "2 columns (a, b)": as many names as fit."""
    counted = list(Counter(names))
    more = ", ..." if len(counted) > SHOWN else ""
    return f"{len(names)} {one if len(names) == 1 else many} ({', '.join(counted[:SHOWN])}{more})"
