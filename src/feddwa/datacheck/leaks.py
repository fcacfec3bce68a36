"""Samples on both sides of the split: duplicates, overlapping windows, and recordings that were cut at random."""

from collections.abc import Iterator, Sequence

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.partition import Partition
from feddwa.data.task import Task
from feddwa.datacheck.rows import digests, distances, drawn, test_rows, thin
from feddwa.results.findings import Finding, clients_in_words

LEAK = 0.01  # share of duplicate samples above which it is no coincidence


def duplicates(task: Task) -> Iterator[Finding]:
    """Duplicate samples on both sides of the split, or with two clients."""
    dataset = task.dataset
    train, test = (drawn(rows, dataset) for rows in (np.arange(dataset.train_count), test_rows(dataset)))
    known = digests(dataset, train)
    trained = set(known)
    twice = [row for row, digest in zip(test, digests(dataset, test), strict=True) if digest in trained]
    share = len(twice) / len(test)
    if twice:
        yield Finding(
            "warning" if share >= LEAK else "note",
            f"{len(twice):,} of {len(test):,} test samples{_looked_at(test, dataset)} are in the training part, too "
            f"({100 * share:.3g} %; e.g. {_row_name(int(twice[0]), dataset)}): a model that memorises them is right; "
            "remove duplicates before splitting",
        )
    else:
        yield Finding("ok", "no test sample is in the training part")
    if dataset.client is not None:
        yield from _shared(dataset, train, known)


def _shared(dataset: Dataset, rows: np.ndarray, digests: Sequence[bytes]) -> Iterator[Finding]:
    """Training samples shared by several owners. rows: (k,) to check."""
    assert dataset.client is not None
    owners: dict[bytes, set[int]] = {}
    for owner, digest in zip(dataset.client[rows].tolist(), digests, strict=True):
        owners.setdefault(digest, set()).add(owner)
    several = [digest for digest in digests if len(owners[digest]) > 1]
    if len(several) / len(rows) >= LEAK:
        who = sorted(set().union(*(owners[digest] for digest in several)))
        names = [dataset.client_names[i] if dataset.client_names else str(i) for i in who]
        yield Finding(
            "warning",
            f"{len(several):,} of {len(rows):,} training samples are with more than one client "
            f"({clients_in_words(range(len(who)), names.__getitem__)}): clients look more alike than they are; give "
            "each sample one owner",
        )


def _row_name(row: int, dataset: Dataset) -> str:
    """The identification of a test sample: its index in the test part, and its class."""
    place = row - dataset.train_count + 1
    named = dataset.class_names and dataset.y.ndim == 1
    return f"test sample {place:,}" + (f", of class {dataset.class_names[int(dataset.y[row])]}" if named else "")


def _looked_at(rows: np.ndarray, dataset: Dataset) -> str:
    return " looked at" if len(rows) < len(dataset.y) - dataset.train_count else ""


def recordings(dataset: Dataset, partition: Partition) -> Iterator[Finding]:
    """Samples of a recording that was split at random: test samples lie between similar training samples."""
    overlapping = _overlapping(dataset) if len(dataset.shape) == 2 else 0.0
    if overlapping > 0.2 or _continuous(dataset, partition):
        how = (
            f"{100 * overlapping:.0f} % of the test windows overlap with training windows"
            if overlapping > 0.2
            else "samples next to each other in the file are much alike, and test samples lie between training samples"
        )
        yield Finding(
            "warning",
            f"{how}, as in a recording that was cut at random: accuracies will be too good; hold out the last part of "
            "each client with --split time",
        )


def _overlapping(dataset: Dataset, steps: int = 8) -> float:
    """The share of test windows (C, L) that share `steps` identical time steps with a training window."""
    length = dataset.shape[1]
    if length < 2 * steps:
        return 0.0
    train, test = (drawn(rows, dataset)[:4000] for rows in (np.arange(dataset.train_count), test_rows(dataset)))

    def pieces(row: int, starts: Sequence[int]) -> Iterator[bytes]:
        window = np.asarray(dataset.x[row])
        for start in starts:
            piece = window[:, start : start + steps]
            if (piece != piece[:, :1]).any():  # silence always matches
                yield piece.tobytes()

    known = {piece for row in train for piece in pieces(row, range(length - steps + 1))}
    ends = (0, length - steps)
    return float(np.mean([any(piece in known for piece in pieces(row, ends)) for row in test]))


def _continuous(dataset: Dataset, partition: Partition) -> bool:
    """Whether neighbours in file order are much more similar than other samples of their client and class.

    Besides, most test samples must have a training sample of their client that is as near as such neighbours are.
    """
    if dataset.classes == 0 or dataset.y.ndim != 1:
        return False
    rng, near, apart, reached = np.random.default_rng(0), [], [], []
    for client in rng.permutation(len(partition.train))[:20]:
        rows, tests = np.sort(partition.train[client])[:2000], partition.test[client][:50]
        if len(rows) < 20:
            continue
        x, y = thin(dataset, rows), dataset.y[rows]
        same = np.flatnonzero(y[1:] == y[:-1])
        others = rng.permutation(len(rows))
        alike = np.flatnonzero(y[others] == y)
        near += distances(x[same], x[same + 1]).tolist()
        apart += distances(x[alike], x[others[alike]])[alike != others[alike]].tolist()
        reached += [distances(x, each).min() for each in thin(dataset, tests)]
    if len(near) < 20 or len(apart) < 5 or not reached:
        return False
    step = float(np.median(near))
    return 0 < step < 0.35 * float(np.median(apart)) and float(np.mean(np.array(reached) <= 1.5 * step)) > 0.5
