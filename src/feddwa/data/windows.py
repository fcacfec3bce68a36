"""Windows cut from recordings: a test part at the end of every stretch that shares no measurement with training."""

import numpy as np

from feddwa.data.dataset import hold_out_last


def split_in_time(
    owner: np.ndarray, recording: np.ndarray, kind: np.ndarray, start: np.ndarray, length: int
) -> tuple[np.ndarray, int]:
    """An order of the windows with the test part last, and the number of training windows.

    owner, recording, kind, start: (n,) whose window it is, from which recording, what it shows, and its first
    measurement; length: measurements in a window. Of every kind in every recording the last fifth tests: people do one
    thing after another, and the end of a whole recording would show the last of them alone. Training windows that
    share a measurement with a test window are left out. An owner's windows are ordered by how far into their stretch
    they are, so that its last ones are again the last of every kind.
    """
    stretch = _numbers(owner, recording, kind)
    order = np.lexsort((start, stretch))
    sizes = np.bincount(stretch)
    rank = np.empty(len(start), dtype=np.int64)
    rank[order] = np.arange(len(start)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order, count = hold_out_last(owner, (rank + 0.5) / sizes[stretch])
    train, test = order[:count], order[count:]
    tape = _numbers(owner, recording) * (int(start.max()) + 2 * length) + start  # recordings on one time axis, apart
    train = train[~_overlap(tape[train], np.sort(tape[test]), length)]
    return np.concatenate([train, test]), len(train)


def _numbers(*columns: np.ndarray) -> np.ndarray:
    """(n,) the same number from 0 on exactly where all columns (n,) are the same."""
    numbers: np.ndarray = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
    return numbers


def _overlap(starts: np.ndarray, others: np.ndarray, length: int) -> np.ndarray:
    """(n,) whether a window shares a measurement with one of `others` (m,), which are sorted."""
    follows = np.append(others, np.iinfo(np.int64).max)  # behind the last one there is none
    shared: np.ndarray = follows[np.searchsorted(others, starts - length, side="right")] < starts + length
    return shared
