"""Runs compared: seed by seed on the same data, client by client with Local, and at equal cost."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feddwa.results.measure import ACCURACY
from feddwa.results.methods import Method, on_a_par
from feddwa.results.record import Record

CONFIDENCE = 0.95  # of intervals
COSTS = ("bytes", "flops", "seconds")
SLACK = 1e-3  # share of a budget that may be missing for one round more


@dataclass(frozen=True)
class Spread:
    """A number over seeds: each seed's value."""

    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """Of a single run, estimated from several; None from one."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    def __format__(self, digits: str) -> str:
        spread = "" if self.std is None else f" ± {self.std:{digits}}"
        return f"{self.mean:{digits}}{spread}"


SHARED = ("rounds", "clients", "lockstep", "ranks")  # numbers of a summary that are the same for all seeds


def merged(found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Summaries of several seeds as one: a `Spread` in the place of a number; what is no number by seed, or once."""
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
    """Seed by seed, on the same data; None where no seed is common."""
    common = {seed: value - b.values[seed] for seed, value in a.values.items() if seed in b.values}
    return Spread(common) if common else None


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    low: float
    high: float

    @property
    def includes_zero(self) -> bool:
        """Whether seeds tell no difference."""
        return self.low <= 0 <= self.high


def interval(apart: Spread) -> Interval | None:
    """Confidence interval of the mean of paired differences over n seeds: mean ± t s / sqrt(n); None for one seed.

    t is Student's quantile with n - 1 degrees of freedom: 4.30 for three seeds, 2.26 for ten. An interval over three
    seeds is therefore wide, and says so.
    """
    if apart.std is None:
        return None
    from scipy.special import stdtrit  # only who compares pays for the import

    n = len(apart.values)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * apart.std / n**0.5
    return Interval(apart.mean - half, apart.mean + half)


def tie(a: Spread, b: Spread) -> bool:
    """Whether the interval of the paired difference includes 0; one seed tells neither a tie nor a lead."""
    apart = difference(a, b)
    ends = None if apart is None else interval(apart)
    return ends is not None and ends.includes_zero


def points(apart: Spread) -> str:
    """A difference in words: "0.65 points (95 % CI 0.31 to 0.99, n = 10)"."""
    ends, n = interval(apart), len(apart.values)
    told = "one seed" if ends is None else f"{100 * CONFIDENCE:.0f} % CI {ends.low:.2f} to {ends.high:.2f}, n = {n}"
    return f"{apart.mean:.2f} points ({told})"


def over_seeds(runs: Iterable[Record], metric: str | None = None) -> Spread:
    """By the runs' measure, or a metric, after the last round, mean over clients, by seed."""
    return Spread({run.seed: run.last if metric is None else float(run.metrics[metric][-1]) for run in runs})


# Methods, seed by seed.


@dataclass(frozen=True)
class Lead:
    """By how much a method is better than another one with the same seeds; of a loss it is by how much it is lower."""

    apart: Spread
    ends: Interval | None  # None from one seed


def reference(methods: Sequence[Method]) -> Method:
    """Whom the others are compared with: Local where there is just one that went well, else the first."""
    local = [method for method in methods if method.algorithm == "local" and method.sound]
    return local[0] if len(local) == 1 else methods[0]


def lead_over(method: Method, other: Method) -> Lead | None:
    """Of the seeds that both were run with as long and in which nothing went wrong; None where there is none."""
    if method is other or method.measure is not other.measure:
        return None
    theirs, sign = {run.seed: run for run in other.runs if run.sound}, method.measure.sign
    pairs = [(run, theirs[run.seed]) for run in method.runs if run.sound and run.seed in theirs]
    apart = Spread({run.seed: sign * (run.last - base.last) for run, base in pairs if on_a_par(run, base)})
    return Lead(apart, interval(apart)) if apart.values else None


def over_whom(base: Method) -> str:
    """What a column of leads is called: "over Local", of losses "below Local"."""
    return f"{'over' if base.measure.sign > 0 else 'below'} {'Local' if base.algorithm == 'local' else base.name}"


def lead_in_words(method: Method, base: Method) -> str:
    """ "+7.62 ± 4.51": a lead and half of its interval in a table; "-" where it is not known."""
    lead, measure = lead_over(method, base), method.measure
    if lead is None:
        return "" if method is base else "-"
    n = len(lead.apart.values)
    if lead.ends is None:
        return f"{measure.gain(lead.apart.mean)} (one seed)"
    half = f"{(lead.ends.high - lead.ends.low) / 2:{measure.apart}}"
    return f"{measure.gain(lead.apart.mean)} ± {half}{f' (n = {n})' if n < len(method.runs) else ''}"


def seeds_lacking(methods: Sequence[Method]) -> dict[str, list[int]]:
    """Method -> the seeds of others that it was not run with; methods with all seeds are left out."""
    every = sorted({run.seed for method in methods for run in method.runs})
    own = {method.name: {run.seed for run in method.runs} for method in methods}
    found = {name: [seed for seed in every if seed not in seeds] for name, seeds in own.items()}
    return {name: seeds for name, seeds in found.items() if seeds}


def unequal_seeds(methods: Sequence[Method]) -> str:
    """Which methods lack seeds that others have, in words; "" where all have the same."""
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
    """What joining brings to single clients: by how much they are better at the end than with Local on the same data.

    Accuracies differ in points; of losses it is by how much they are lower.
    """

    clients: np.ndarray  # (seeds * N,) of every client of every seed that both were run with
    level: float = ACCURACY.level  # up to which clients are called level

    @property
    def mean(self) -> float:
        """Over clients and seeds."""
        return float(self.clients.mean())

    @property
    def worst_tenth(self) -> float:
        """Mean of the tenth of the clients that gain least."""
        return float(np.sort(self.clients)[: max(1, len(self.clients) // 10)].mean())

    @property
    def losers(self) -> float:
        """Share of clients that lose by joining, in percent."""
        return 100 * float((self.clients < 0).mean())

    @property
    def winners(self) -> int:
        """How many clients gain."""
        return int((self.clients > self.level).sum())


def local_runs(methods: Sequence[Method]) -> dict[int, Record]:
    """Local's run of every seed, where there is just one Local to compare with; none that went wrong."""
    found = [method for method in methods if method.algorithm == "local"]
    return {run.seed: run for run in found[0].runs if run.sound} if len(found) == 1 else {}


def client_gains(run: Record, local: Record | None) -> np.ndarray | None:
    """(N,) by how much clients are better than with Local after the last round; same seed, so the same data.

    None where there is nothing to compare with, or where what went wrong makes the difference meaningless.
    """
    if local is None or local is run or not run.sound or local.scores.shape[1] != run.scores.shape[1]:
        return None
    if not on_a_par(run, local):
        return None
    gain: np.ndarray = run.measure.sign * (run.scores[-1] - local.scores[-1])
    return gain


def gain_over(runs: Iterable[Record], local: Mapping[int, Record]) -> Gain | None:
    """Of all clients that were evaluated in both; None where no seed was run with both."""
    runs = list(runs)
    found = [gain for run in runs if (gain := client_gains(run, local.get(run.seed))) is not None]
    known = np.concatenate(found) if found else np.zeros(0)
    return Gain(known[np.isfinite(known)], runs[0].measure.level) if np.isfinite(known).any() else None


# Equal cost.


class Reached(NamedTuple):
    """What a run has reached within a budget."""

    score: float  # by the run's measure
    rounds: int


def within(run: Record, cost: str, budget: float) -> Reached | None:
    """The last models that were made within a budget of all clients together; None: not one round was within it."""
    affordable = run.spent(cost) <= budget * (1 + SLACK)
    rounds = int(np.flatnonzero(affordable & (np.isfinite(run.curve) | (run.rounds == 0)))[-1])
    return Reached(float(run.curve[rounds]), rounds) if rounds else None


@dataclass(frozen=True)
class Place:
    """One method's line in a leaderboard: values of its measure, mean over clients and seeds."""

    name: str
    last: Spread  # after the last round, whatever it cost
    at: dict[str, float | None]  # cost -> what was reached within the budget; None: not one round was within it
    gain: Gain | None  # over Local; None without a run of Local with the same seed
    lead: str  # over whom methods are compared with, and its interval
    seeds: str  # how many; "2*" where others have more


def budgets(methods: Sequence[Method]) -> dict[str, float]:
    """Of each cost the least that a method spends in all its rounds, mean over its seeds; free ones do not count."""
    found = {}
    for cost in COSTS:
        totals = [method.total(cost) for method in methods]
        found[cost] = min((total for total in totals if total > 0), default=0.0)
    return found


def leaderboard(methods: Sequence[Method]) -> list[Place]:
    """All methods, the best at equal bytes first; `methods` are to be sound, for a broken one costs nothing."""
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
