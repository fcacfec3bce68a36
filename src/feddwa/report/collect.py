"""The numbers of a report, computed once, here: the page only draws them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feddwa.data.describe import Description
from feddwa.results.collaboration import clusters, flow
from feddwa.results.compare import COSTS, client_gains, local_runs
from feddwa.results.measure import ACCURACY, Measure
from feddwa.results.methods import Method, over_runs
from feddwa.results.palette import Style, styles
from feddwa.results.record import Record
from feddwa.results.weights import Weights

CELLS = 1_500_000  # weights that a report carries at most, up to 1.6 bytes each; beyond it rounds are left out
PARTNERS = 24  # shown per client where there are more than CROWD of them
CROWD = 150


def collect(methods: Sequence[Method]) -> dict[str, Any]:
    """Everything that the page draws, ready for JSON."""
    runs = [run for method in methods for run in method.runs]
    step = max(1, -(-sum(_cells(run) for run in runs) // CELLS))
    local = local_runs(methods)
    return {
        "clients": max(run.scores.shape[1] for run in runs),
        "measure": _measure(methods[0].measure),
        "methods": [
            {**method_numbers(method), **style._asdict()}
            for method, style in zip(methods, styles_of(methods), strict=True)
        ],
        "runs": [
            {"method": number, **_run(run, local.get(run.seed), step)}
            for number, method in enumerate(methods)
            for run in method.runs
        ],
        "partitions": {run.seed: _partition(run.partition) for run in runs if run.partition is not None},
        "step": step,
        "partners": PARTNERS if runs[0].scores.shape[1] > CROWD else None,
    }


def styles_of(methods: Sequence[Method]) -> list[Style]:
    """The look of each method."""
    return styles([method.algorithm for method in methods])


def _measure(measure: Measure) -> dict[str, Any]:
    """How the page writes values and differences."""
    own = ("name", "unit", "sign", "level", "head", "gains")
    return {name: getattr(measure, name) for name in own}


def method_numbers(method: Method) -> dict[str, Any]:
    """The chart data of a method; curves and cumulative costs have one value per round."""
    return {
        "name": method.name,
        "mark": method.standing if method.sound else "went wrong",
        "compared": method.sound and method.finished,
        "last": method.last if np.isfinite(method.last) else None,
        "curves": {name: _curve(values) for name, values in _measured(method).items()},
        "spent": {cost: _tidy(_spent(method, cost), 4) for cost in COSTS},
        **{cost: method.total(cost) for cost in COSTS},
    }


def _measured(method: Method) -> dict[str, list[np.ndarray]]:
    """Whatever has a value a round -> (R,) of every run: the measure, the loss, metrics that all runs have."""
    found = {method.measure.name: [run.curve for run in method.runs]}
    losses = [np.array([line.get("loss_before") for line in run.lines], dtype=float) for run in method.runs]
    if any(np.isfinite(own).any() for own in losses):
        found.setdefault("loss", losses)
    return found | {name: [run.metrics[name] for run in method.runs] for name in method.metrics}


def _curve(runs: Sequence[np.ndarray]) -> list[list[float | None]]:
    """Mean, lowest and highest over runs, round by round; of a single run itself alone."""
    reduced = (np.nanmean, np.nanmin, np.nanmax) if len(runs) > 1 else (np.nanmean,)
    return [_tidy(over_runs(reduce, runs), 6) for reduce in reduced]


def _spent(method: Method, cost: str) -> np.ndarray:
    return over_runs(np.nanmean, [run.spent(cost) for run in method.runs])


def _run(run: Record, local: Record | None, step: int) -> dict[str, Any]:
    gain, percent = client_gains(run, local), run.measure is ACCURACY
    return {
        "seed": run.seed,
        "scores": [_tidy(clients, 1 if percent else 6) for clients in run.scores.T],  # of a client, round by round
        "final": _tidy(run.final, 2 if percent else 6),
        "gain": None if gain is None else _tidy(gain, 15),  # exact: what counts as a gain is the same as in Python
        "frames": [_frame(each, run.scores.shape[1]) for each in _chosen(run.weights, step)],
        "clusters": None if not run.weights else clusters(run.weights, run.scores.shape[1]).tolist(),
        "rounds": [each.round for each in run.weights],  # of the flow: not every round has weights, or stores them
        "flow": [_tidy(share, 3) for share in flow(run.weights, run.groups).T] if run.weights else None,
        "presence": _presence(run),
    }


def _presence(run: Record) -> dict[str, Any] | None:
    """By round: clients whose updates counted, and the others by reason; None if all updates always counted."""
    rounds = [line for line in run.lines if "participants" in line]
    reasons = sorted({why for line in rounds for why in line.get("missing", {})})
    if not reasons:
        return None
    return {
        "rounds": [line["round"] for line in rounds],
        "counted": [line["participants"] for line in rounds],
        "missing": {why: [len(line.get("missing", {}).get(why, ())) for line in rounds] for why in reasons},
        "last": rounds[-1].get("missing", {}),  # reason -> clients
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


def _cells(run: Record) -> int:
    return sum(min(each.matrix.size, len(each.matrix) * _most(run)) for each in run.weights)


def _most(run: Record) -> int:
    clients = run.scores.shape[1]
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


def _tidy(values: np.ndarray, digits: int = 2) -> list[float | None]:
    return [round(value, digits) if np.isfinite(value) else None for value in values.tolist()]
