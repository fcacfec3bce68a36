"""Comparison of runs: seed by seed on the same data, client by client with Local, and at equal cost."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feddwa.results.measure import ACCURACY
from feddwa.results.methods import Method, on_a_par
from feddwa.results.record import Record

CONFIDENCE = 0.95  # level of intervals
COSTS = ("bytes", "flops", "seconds")
SLACK = 1e-3  # share by which a budget may be exceeded for one more round


@dataclass(frozen=True)
class Spread:
    """A number over seeds: each seed's value."""

    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """The standard deviation of a single run; None for one seed."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    def __format__(self, digits: str) -> str:
        spread = "" if self.std is None else f" ± {self.std:{digits}}"
        return f"{self.mean:{digits}}{spread}"


SHARED = ("rounds", "clients", "lockstep", "ranks")  # numbers of a summary that agree for all seeds


def merged(found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Summaries of several seeds as one: numbers become a `Spread`, other values are by seed, or single if equal."""
    first = next(iter(found.values()))
    names = [name for name in first if name != "seed" and all(name in own for own in found.values())]
    return {name: _merged(name, {seed: own[name] for seed, own in found.items()}) for name in names}


def _merged(name: str, values: Mapping[int, Any]) -> Any:
    kinds = {type(value) for value in values.values()}
    if kinds == {dict}:
        return merged(values)
    if kinds <= {int, float} and name not in SHARED:
        return Spread(values)
    first = next(iter(values.values()))
    return first if all(value == first for value in values.values()) else dict(values)


def difference(a: Spread, b: Spread) -> Spread | None:
    """The difference seed by seed, on the same data; None without a common seed."""
    common = {seed: value - b.values[seed] for seed, value in a.values.items() if seed in b.values}
    return Spread(common) if common else None


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    low: float
    high: float

    @property
    def includes_zero(self) -> bool:
        """Whether the seeds show no difference."""
        return self.low <= 0 <= self.high


def interval(apart: Spread) -> Interval | None:
    """Confidence interval of the mean of paired differences over n seeds: mean ± t s / sqrt(n); None for one seed.

    t is Student's quantile with n - 1 degrees of freedom: 4.30 for three seeds, 2.26 for ten.
    """
    if apart.std is None:
        return None
    from scipy.special import stdtrit  # slow import

    n = len(apart.values)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * apart.std / n**0.5
    return Interval(apart.mean - half, apart.mean + half)


def tie(a: Spread, b: Spread) -> bool:
    """Whether the interval of the paired difference includes 0; False for one seed."""
    apart = difference(a, b)
    ends = None if apart is None else interval(apart)
    return ends is not None and ends.includes_zero


def points(apart: Spread) -> str:
    """A difference as text: "0.65 points (95 % CI 0.31 to 0.99, n = 10)"."""
    ends, n = interval(apart), len(apart.values)
    told = "one seed" if ends is None else f"{100 * CONFIDENCE:.0f} % CI {ends.low:.2f} to {ends.high:.2f}, n = {n}"
    return f"{apart.mean:.2f} points ({told})"


def over_seeds(runs: Iterable[Record], metric: str | None = None) -> Spread:
    """By the runs' measure, or a metric, after the last round, mean over clients, per seed."""
    return Spread({run.seed: run.last if metric is None else float(run.metrics[metric][-1]) for run in runs})


# Methods, seed by seed.


@dataclass(frozen=True)
class Lead:
    """The lead of a method over another with the same seeds; for losses, how much lower it is."""

    apart: Spread
    ends: Interval | None  # None from one seed


def reference(methods: Sequence[Method]) -> Method:
    """The baseline of a comparison: the only sound Local, else the first method."""
    local = [method for method in methods if method.algorithm == "local" and method.sound]
    return local[0] if len(local) == 1 else methods[0]


def lead_over(method: Method, other: Method) -> Lead | None:
    """The lead over the seeds that both have run equally long and without failures; None if there are none."""
    if method is other or method.measure is not other.measure:
        return None
    theirs, sign = {run.seed: run for run in other.runs if run.sound}, method.measure.sign
    pairs = [(run, theirs[run.seed]) for run in method.runs if run.sound and run.seed in theirs]
    apart = Spread({run.seed: sign * (run.last - base.last) for run, base in pairs if on_a_par(run, base)})
    return Lead(apart, interval(apart)) if apart.values else None


def over_whom(base: Method) -> str:
    """The heading of a column of leads: "over Local", for losses "below Local"."""
    return f"{'over' if base.measure.sign > 0 else 'below'} {'Local' if base.algorithm == 'local' else base.name}"


def lead_in_words(method: Method, base: Method) -> str:
    """ "+7.62 ± 4.51": a lead and half of its interval in a table; "-" if unknown."""
    lead, measure = lead_over(method, base), method.measure
    if lead is None:
        return "" if method is base else "-"
    n = len(lead.apart.values)
    if lead.ends is None:
        return f"{measure.gain(lead.apart.mean)} (one seed)"
    half = f"{(lead.ends.high - lead.ends.low) / 2:{measure.apart}}"
    return f"{measure.gain(lead.apart.mean)} ± {half}{f' (n = {n})' if n < len(method.runs) else ''}"


def seeds_lacking(methods: Sequence[Method]) -> dict[str, list[int]]:
    """Method -> seeds that other methods have and it lacks; methods with all seeds are left out."""
    every = sorted({run.seed for method in methods for run in method.runs})
    own = {method.name: {run.seed for run in method.runs} for method in methods}
    found = {name: [seed for seed in every if seed not in seeds] for name, seeds in own.items()}
    return {name: seeds for name, seeds in found.items() if seeds}


def unequal_seeds(methods: Sequence[Method]) -> str:
    """A description of the methods that lack seeds; "" if all have the same."""
    alike: dict[str, list[str]] = {}
    for name, own in seeds_lacking(methods).items():
        alike.setdefault(f"seed{'s' * (len(own) > 1)} {_seeds(own)}", []).append(name)
    told = [f"without {seeds}: {', '.join(names)}" for seeds, names in alike.items()]
    return f"Unequal seeds (*): {'; '.join(told)}. Differences are over common seeds." if told else ""


def _seeds(numbers: Sequence[int]) -> str:
    few = ", ".join(map(str, numbers[:5]))
    return f"{few} and {len(numbers) - 5} more" if len(numbers) > 5 else few


# Gains over Local.


@dataclass(frozen=True)
class Gain:
    """The gain of single clients from joining: their final improvement over Local on the same data.

    In points of accuracy; for losses, the decrease.
    """

    clients: np.ndarray  # (seeds * N,) of every client and common seed
    level: float = ACCURACY.level  # largest difference that counts as level

    @property
    def mean(self) -> float:
        """The mean over clients and seeds."""
        return float(self.clients.mean())

    @property
    def worst_tenth(self) -> float:
        """Mean over the tenth of the clients with the smallest gains."""
        return float(np.sort(self.clients)[: max(1, len(self.clients) // 10)].mean())

    @property
    def losers(self) -> float:
        """Percentage of clients that lose by joining."""
        return 100 * float((self.clients < 0).mean())

    @property
    def winners(self) -> int:
        """Number of clients that gain."""
        return int((self.clients > self.level).sum())


def local_runs(methods: Sequence[Method]) -> dict[int, Record]:
    """Local's run of every seed, if exactly one Local is present; without failed runs."""
    found = [method for method in methods if method.algorithm == "local"]
    return {run.seed: run for run in found[0].runs if run.sound} if len(found) == 1 else {}


def client_gains(run: Record, local: Record | None) -> np.ndarray | None:
    """(N,) improvement of clients over Local after the last round; same seed, so the same data.

    None without a comparable run, or if a failure makes the difference meaningless.
    """
    if local is None or local is run or not run.sound or local.scores.shape[1] != run.scores.shape[1]:
        return None
    if not on_a_par(run, local):
        return None
    gain: np.ndarray = run.measure.sign * (run.scores[-1] - local.scores[-1])
    return gain


def gain_over(runs: Iterable[Record], local: Mapping[int, Record]) -> Gain | None:
    """The gain of all clients evaluated in both; None without a common seed."""
    runs = list(runs)
    found = [gain for run in runs if (gain := client_gains(run, local.get(run.seed))) is not None]
    known = np.concatenate(found) if found else np.zeros(0)
    return Gain(known[np.isfinite(known)], runs[0].measure.level) if np.isfinite(known).any() else None


# Equal cost.


class Reached(NamedTuple):
    """The result of a run within a budget."""

    score: float  # by the run's measure
    rounds: int


def within(run: Record, cost: str, budget: float) -> Reached | None:
    """The last models computed within a budget of all clients together; None if no round was within it."""
    affordable = run.spent(cost) <= budget * (1 + SLACK)
    rounds = int(np.flatnonzero(affordable & (np.isfinite(run.curve) | (run.rounds == 0)))[-1])
    return Reached(float(run.curve[rounds]), rounds) if rounds else None


@dataclass(frozen=True)
class Place:
    """One method's row in a leaderboard: values of its measure, mean over clients and seeds."""

    name: str
    last: Spread  # after the last round, whatever its cost
    at: dict[str, float | None]  # cost -> value within the budget; None if no round was within it
    gain: Gain | None  # over Local; None without a run of Local with the same seed
    lead: str  # over the baseline, with its interval
    seeds: str  # their number; "2*" if others have more


def budgets(methods: Sequence[Method]) -> dict[str, float]:
    """For each cost, the smallest total of a method over all its rounds, mean over seeds; zero costs are ignored."""
    found = {}
    for cost in COSTS:
        totals = [method.total(cost) for method in methods]
        found[cost] = min((total for total in totals if total > 0), default=0.0)
    return found


def leaderboard(methods: Sequence[Method]) -> list[Place]:
    """All methods, the best at equal bytes first; `methods` must be sound, because a failed one costs nothing."""
    limits, local, lacking = budgets(methods), local_runs(methods), seeds_lacking(methods)
    places = [
        Place(
            method.name,
            over_seeds(method.runs),
            {cost: _mean_within(method.runs, cost, limit) for cost, limit in limits.items()},
            gain_over(method.runs, local),
            lead_in_words(method, reference(methods)),
            f"{len(method.runs)}{'*' * (method.name in lacking)}",
        )
        for method in methods
    ]
    sign = methods[0].measure.sign if methods else 1
    return sorted(places, key=lambda place: -np.inf if (at := place.at["bytes"]) is None else sign * at, reverse=True)


def _mean_within(runs: Sequence[Record], cost: str, budget: float) -> float | None:
    found = [within(run, cost, budget) for run in runs]
    return None if None in found else statistics.fmean(each.score for each in found if each is not None)
