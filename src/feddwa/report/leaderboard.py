"""Methods at equal cost: what each has reached when it has spent what the most frugal of them spends in all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feddwa.report.reading import Method, Record

COSTS = ("bytes", "flops", "seconds")


@dataclass(frozen=True)
class Place:
    """One method's line; accuracies are percent, mean over clients and seeds."""

    name: str
    last: float  # after the last round, whatever it cost
    at: dict[str, float | None]  # cost -> accuracy within the budget; None: not one round was within it
    gain: float | None  # points over Local, mean over clients; None without a run of Local with the same seed
    worst: float | None  # mean gain of the tenth of the clients that gain least
    hurt: float | None  # share of the clients that are better off alone, percent


def spent(run: Record, cost: str) -> np.ndarray:
    """(R,) what had been spent, all clients together, when each line's accuracies were measured."""
    return np.array([0.0, *np.cumsum([_of_round(line, cost, run.lockstep) for line in run.lines[:-1]])])


def _of_round(line: dict[str, object], cost: str, lockstep: int) -> float:
    if cost == "seconds":
        return sum(line.get("seconds", {}).values()) / lockstep  # type: ignore[attr-defined]  # a mapping of phases
    parts = ("bytes_up", "bytes_down") if cost == "bytes" else (cost,)
    return float(sum(float(str(line.get(part, 0))) for part in parts) * float(str(line.get("participants", 0))))


def budgets(methods: Sequence[Method]) -> dict[str, float]:
    """Of each cost the least that a method spends in all its rounds, mean over its seeds; free ones do not count."""
    found = {}
    for cost in COSTS:
        totals = [float(np.mean([spent(run, cost)[-1] for run in method.runs])) for method in methods]
        found[cost] = min((total for total in totals if total > 0), default=0.0)
    return found


def leaderboard(methods: Sequence[Method]) -> list[Place]:
    """All methods, best accuracy at equal bytes first; `methods` are to be sound, for a broken one costs nothing."""
    limits = budgets(methods)
    alone = {run.config.seed: run.accuracy[-1] for method in methods for run in method.runs if _is_local(run)}
    places = [_place(method, limits, alone) for method in methods]
    return sorted(places, key=lambda place: -(place.at["bytes"] or 0.0))


def _is_local(run: Record) -> bool:
    return run.config.algorithm == "local"


def _place(method: Method, limits: dict[str, float], alone: dict[int, np.ndarray]) -> Place:
    at = {cost: _mean([_within(run, cost, limit) for run in method.runs]) for cost, limit in limits.items()}
    known = [run.accuracy[-1] - own for run in method.runs if _fits(run, own := alone.get(run.config.seed))]
    gains = np.sort(np.concatenate(known)) if known else np.zeros(0)
    gains = gains[np.isfinite(gains)]
    if not len(gains):
        return Place(method.name, method.last, at, None, None, None)
    tenth = gains[: max(1, len(gains) // 10)]
    hurt = 100 * float((gains < 0).mean())
    return Place(method.name, method.last, at, float(gains.mean()), float(tenth.mean()), hurt)


def _fits(run: Record, alone: np.ndarray | None) -> bool:
    return alone is not None and alone.shape == run.accuracy[-1].shape


def _within(run: Record, cost: str, limit: float) -> float | None:
    """The accuracy of the last models that were made within the limit; the initial ones do not count."""
    reached = np.flatnonzero(spent(run, cost) <= limit * (1 + 1e-9))
    return float(run.curve[reached[-1]]) if len(reached) and run.lines[reached[-1]]["round"] > 1 else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
