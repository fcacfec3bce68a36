"""Windows cut from recordings: the end of every activity is the test part, without overlap with training."""

import numpy as np

from feddwa.data.dataset import hold_out_last


def split_in_time(
    owner: np.ndarray, recording: np.ndarray, kind: np.ndarray, start: np.ndarray, length: int
) -> tuple[np.ndarray, int]:
    """An order of the windows with the test part last, and the number of training windows.

    owner, recording, kind, start: (n,) each window's owner, recording, activity, and first measurement; length:
    measurements per window. The last fifth of every kind in every recording is the test part: people do one thing after
    another, and the end of a whole recording would contain only the last. Training windows that share a measurement
    with a test window are left out. An owner's windows are ordered by their relative position in their stretch, so that
    its last ones are again the last of every kind.
    """
    stretch = _numbers(owner, recording, kind)
    order = np.lexsort((start, stretch))
    sizes = np.bincount(stretch)
    rank = np.empty(len(start), dtype=np.int64)
    rank[order] = np.arange(len(start)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order, count = hold_out_last(owner, (rank + 0.5) / sizes[stretch])
    train, test = order[:count], order[count:]
    tape = _numbers(owner, recording) * (int(start.max()) + 2 * length) + start  # recordings on one axis
    train = train[~_overlap(tape[train], np.sort(tape[test]), length)]
    return np.concatenate([train, test]), len(train)


def _numbers(*columns: np.ndarray) -> np.ndarray:
    """(n,) numbers from 0 that identify equal rows of the columns (n,)."""
    numbers: np.ndarray = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
    return numbers


def _overlap(starts: np.ndarray, others: np.ndarray, length: int) -> np.ndarray:
    """(n,) whether a window shares a measurement with one of `others` (m,), which are sorted."""
    follows = np.append(others, np.iinfo(np.int64).max)  # a sentinel after the last one
    shared: np.ndarray = follows[np.searchsorted(others, starts - length, side="right")] < starts + length
    return shared
