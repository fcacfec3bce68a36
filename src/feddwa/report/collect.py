"""The numbers of a report, computed once, here: the page only draws them."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feddwa.data.describe import Description
from feddwa.report.palette import styles
from feddwa.report.reading import Method, Record, Weights

CELLS = 2_000_000  # weights that a report carries at most; beyond it some rounds are left out
PARTNERS = 24  # shown per client where there are more than CROWD of them
CROWD = 150
LATE = 10  # rounds over which "in the end" is averaged


def collect(methods: Sequence[Method]) -> dict[str, Any]:
    """Everything that the page draws, ready for JSON."""
    runs = [run for method in methods for run in method.runs]
    step = max(1, -(-sum(_cells(run) for run in runs) // CELLS))
    local = local_runs(methods)
    return {
        "clients": runs[0].accuracy.shape[1],
        "methods": [
            {**_method(method), **style._asdict()} for method, style in zip(methods, styles(methods), strict=True)
        ],
        "runs": [
            {"method": number, **_run(run, local.get(run.config.seed), step)}
            for number, method in enumerate(methods)
            for run in method.runs
        ],
        "partitions": {run.config.seed: _partition(run.partition) for run in runs if run.partition is not None},
        "step": step,
        "partners": PARTNERS if runs[0].accuracy.shape[1] > CROWD else None,
    }


def local_runs(methods: Sequence[Method]) -> dict[int, Record]:
    """Local's run of every seed, where there is just one Local to compare with; none that went wrong."""
    found = [method for method in methods if method.algorithm == "local"]
    return {run.config.seed: run for run in found[0].runs if run.sound} if len(found) == 1 else {}


def gains(run: Record, local: Record | None) -> np.ndarray | None:
    """(N,) points over Local after the last round, client by client; same seed, so the same data.

    None where there is nothing to compare with, or where what went wrong makes the difference meaningless.
    """
    if local is None or local is run or not run.sound or local.accuracy.shape[1] != run.accuracy.shape[1]:
        return None
    gain: np.ndarray = run.accuracy[-1] - local.accuracy[-1]
    return gain


def _method(method: Method) -> dict[str, Any]:
    curves = _padded([run.curve for run in method.runs])  # (seeds, R)
    clients = _padded([run.accuracy for run in method.runs])  # (seeds, R, N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rounds that no seed has reached
        mean = np.nanmean(curves, axis=0)
        low, high = np.nanmin(curves, axis=0), np.nanmax(curves, axis=0)
        spread = np.nanpercentile(clients, [10, 90], axis=(0, 2))
    return {
        "name": method.name,
        "sound": method.sound,
        "mean": _tidy(mean),
        "seeds": [_tidy(low), _tidy(high)],
        "spread": [_tidy(edge) for edge in spread],
        "bytes": _mean([run.total("bytes_up") + run.total("bytes_down") for run in method.runs]),
        "flops": _mean([run.total("flops") for run in method.runs]),
        "seconds": _mean([run.seconds for run in method.runs]),
    }


def _run(run: Record, local: Record | None, step: int) -> dict[str, Any]:
    gain = gains(run, local)
    groups = None if run.partition is None else run.partition.groups
    return {
        "seed": run.config.seed,
        "accuracy": [_tidy(clients, 1) for clients in run.accuracy.T],  # of a client, round by round
        "gain": None if gain is None else _tidy(gain, 2),
        "frames": [_frame(each, run.accuracy.shape[1]) for each in _chosen(run.weights, step)],
        "clusters": None if not run.weights else clusters(run.weights, run.accuracy.shape[1]).tolist(),
        "flow": [_tidy(share, 3) for share in flow(run.weights, groups).T] if run.weights else None,
    }


def _partition(partition: Description) -> dict[str, Any]:
    degrees = None if partition.turns is None else (90 * partition.turns % 360).tolist()
    return {
        "names": [partition.client_name(client) for client in range(len(partition.counts))],
        "classes": list(partition.class_names),
        "counts": partition.counts.tolist(),
        "train": partition.train_sizes.tolist(),
        "test": partition.test_sizes.tolist(),
        "groups": None if partition.groups is None else partition.groups.tolist(),
        "degrees": degrees,
    }


# Weights.


def flow(weights: Sequence[Weights], groups: np.ndarray | None) -> np.ndarray:
    """(rounds, 3) of all weight: what clients keep on themselves, give to others of their group, give to the rest.

    Without groups all others are "the rest". Signs are dropped, for FedAMP's weights may be negative.
    """
    shares = []
    for each in weights:
        size = np.abs(each.matrix)
        own = np.trace(size)
        kin = own if groups is None else size[groups[each.cohort][:, None] == groups[each.cohort]].sum()
        shares.append(np.array([own, kin - own, size.sum() - kin]) / max(size.sum(), 1e-12))
    return np.array(shares)


def affinity(weights: Sequence[Weights], clients: int) -> np.ndarray:
    """(N, N) mean weight of each pair of clients in the last rounds, over both directions; diagonal 0."""
    total, seen = np.zeros((clients, clients)), np.zeros((clients, clients))
    for each in weights[-LATE:]:
        pairs = np.ix_(each.cohort, each.cohort)
        total[pairs] += np.abs(each.matrix)
        seen[pairs] += 1
    mean = total / np.maximum(seen, 1)
    np.fill_diagonal(mean, 0)
    both: np.ndarray = (mean + mean.T) / 2
    return both


def clusters(weights: Sequence[Weights], clients: int) -> np.ndarray:
    """(N,) the cluster of each client: those who weight the same others, found without knowing the true groups.

    A client's profile is its affinity to everybody, on a scale on which its closest partner, and itself, are 1.
    Average linkage of the profiles' cosine distances, cut at one half.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if clients < 2:
        return np.zeros(clients, dtype=int)
    profile = affinity(weights, clients)
    profile /= np.maximum(profile.max(axis=1, keepdims=True), 1e-12)
    np.fill_diagonal(profile, 1)
    labels = fcluster(linkage(profile, "average", metric="cosine"), 0.5, "distance")
    first: dict[int, int] = {}  # clusters are numbered by their first client
    return np.array([first.setdefault(label, len(first)) for label in labels])


def _cells(run: Record) -> int:
    return sum(min(each.matrix.size, len(each.matrix) * _most(run)) for each in run.weights)


def _most(run: Record) -> int:
    clients = run.accuracy.shape[1]
    return PARTNERS if clients > CROWD else clients


def _chosen(weights: Sequence[Weights], step: int) -> Iterator[Weights]:
    """The first round, the last, and every `step`-th between them, one at a time."""
    return (each for place, each in enumerate(weights) if place % step == 0 or place == len(weights) - 1)


def _frame(weights: Weights, clients: int) -> dict[str, Any]:
    """One round for the page: of each row the columns and sqrt(|w|) in 255ths with w's sign; zeros are left out.

    A full row has no list of columns. The square root keeps small weights apart: 0.001 is 8/255.
    """
    code = np.rint(255 * np.sign(weights.matrix) * np.sqrt(np.abs(weights.matrix))).astype(int)
    rows = []
    for row in code:
        if clients > CROWD:  # only the strongest
            row = np.where(np.isin(np.arange(len(row)), np.argsort(-np.abs(row), kind="stable")[:PARTNERS]), row, 0)
        places = np.flatnonzero(row)
        rows.append([0 if len(places) == len(row) else places.tolist(), row[places].tolist()])
    everybody = len(weights.cohort) == clients
    return {"round": weights.round, "cohort": 0 if everybody else weights.cohort.tolist(), "rows": rows}


# Small things.


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Runs of different lengths as one array, nan where a run has not come."""
    longest = max(map(len, arrays))
    out = np.full((len(arrays), longest, *arrays[0].shape[1:]), np.nan)
    for place, array in enumerate(arrays):
        out[place, : len(array)] = array
    return out


def _tidy(values: np.ndarray, digits: int = 2) -> list[float | None]:
    return [round(value, digits) if np.isfinite(value) else None for value in values.tolist()]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
