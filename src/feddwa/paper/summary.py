"""Results in numbers: means over seeds, confidence intervals and ties, gains over Local, gaps to the paper."""

import functools
import statistics
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

import numpy as np

from feddwa.paper.specs import Column, Experiment, Row, Scale
from feddwa.paper.store import Record, Store

GAP = 2.0  # points between ours and the paper's number that want a reason
LEVEL = 0.95  # of confidence intervals
MIB, GIGA = 2**20, 1e9


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


def difference(a: Spread, b: Spread) -> Spread | None:
    """Seed by seed, on the same data; None where no seed is common."""
    common = {seed: value - b.values[seed] for seed, value in a.values.items() if seed in b.values}
    return Spread(common) if common else None


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    low: float
    high: float


def interval(apart: Spread) -> Interval | None:
    """Confidence interval of the mean of paired differences over n seeds: mean ± t s / sqrt(n); None for one seed.

    t is Student's quantile with n - 1 degrees of freedom: 4.30 for three seeds, 2.26 for ten. An interval over three
    seeds is therefore wide, and says so.
    """
    if apart.std is None:
        return None
    from scipy.special import stdtrit  # only who compares pays for the import

    n = len(apart.values)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * apart.std / n**0.5
    return Interval(apart.mean - half, apart.mean + half)


def tie(a: Spread, b: Spread) -> bool:
    """Whether the interval of the paired difference includes 0; one seed tells neither a tie nor a lead."""
    apart = difference(a, b)
    return apart is not None and _includes_zero(apart)


def _includes_zero(apart: Spread) -> bool:
    ends = interval(apart)
    return ends is not None and ends.low <= 0 <= ends.high


def points(apart: Spread) -> str:
    """A difference in words: "0.65 points (95 % CI 0.31 to 0.99, n = 10)"."""
    ends, n = interval(apart), len(apart.values)
    told = "one seed" if ends is None else f"{100 * LEVEL:.0f} % CI {ends.low:.2f} to {ends.high:.2f}, n = {n}"
    return f"{apart.mean:.2f} points ({told})"


@dataclass(frozen=True)
class Gain:
    """What joining brings to single clients: accuracy at the end less that of Local on the same data, in points."""

    mean: float
    worst_decile: float  # mean of the worst tenth of the clients
    losers: float  # share of clients that lose by joining, in percent


@dataclass(frozen=True)
class Summary:
    """A cell over its seeds. Accuracies are percent. Best, last and gain: None where other models are measured."""

    measured: Spread  # the row's series, best round: the paper's metric
    best: Spread | None  # all clients, unweighted, best round
    last: Spread | None  # all clients, unweighted, the models that the run delivers
    gain: Gain | None
    mib: float  # up and down, per participating client and round
    gflops: float  # of a participating client's local training a round
    seconds: float  # of the first seed
    jobs: int  # stacks of runs at work at once then
    machines: tuple[str, ...]  # and the precision
    records: Mapping[int, Record]


def summarise(experiment: Experiment, column: Column, row: Row, store: Store, scale: Scale = "paper") -> Summary | None:
    """What a cell came to with the seeds of its column; None where it was not run."""
    records = _records(experiment, column, row, store, scale)
    if not records:
        return None
    alone = _records(experiment, column, Row("local", ""), store, scale) if row.method != "local" else {}
    everybody = {seed: record["series"]["all"] for seed, record in records.items()}
    first = records[min(records)]
    delivered = row.series == "paper"  # the models of `all`, not those that come out of local training
    return Summary(
        measured=Spread({seed: max(_known(record["series"][row.series])) for seed, record in records.items()}),
        best=Spread({seed: max(_known(series)) for seed, series in everybody.items()}) if delivered else None,
        last=Spread({seed: series[-1] for seed, series in everybody.items()}) if delivered else None,
        gain=gain_over(records, alone) if delivered else None,
        mib=_mean(record["bytes_down"] + record["bytes_up"] for record in records.values()) / MIB,
        gflops=_mean(record["flops"] for record in records.values()) / GIGA,
        seconds=first["seconds"],
        jobs=first.get("jobs", 1),
        machines=tuple(sorted({f"{record['hardware']}, {record['dtype']}" for record in records.values()})),
        records=records,
    )


def cells_of(experiment: Experiment, column: Column, store: Store, scale: Scale) -> dict[Row, Summary]:
    """What was run of a column. A sweep with a single value is none: that run is another table's."""
    found = {row: summarise(experiment, column, row, store, scale) for row in experiment.rows}
    known = {row: summary for row, summary in found.items() if summary is not None}
    return {} if experiment.kind == "sweep" and len(known) < 2 else known


def _records(experiment: Experiment, column: Column, row: Row, store: Store, scale: Scale) -> dict[int, Record]:
    """By seed. Seeds that another experiment has run besides would make means incomparable."""
    found = store.all(experiment.config(column, row, scale))
    return {seed: record for seed, record in found.items() if seed < column.seeds}


def gain_over(records: Mapping[int, Record], alone: Mapping[int, Record]) -> Gain | None:
    """The clients of all seeds that both were run with."""
    common = [seed for seed in records if seed in alone]
    if not common:
        return None
    gains = np.concatenate([np.subtract(records[seed]["clients"], alone[seed]["clients"]) for seed in common])
    worst = np.sort(gains)[: max(1, len(gains) // 10)]
    return Gain(float(gains.mean()), float(worst.mean()), 100 * float((gains < 0).mean()))


def leaders(cells: Mapping[Row, Summary]) -> set[str]:
    """The names of the rows with the highest measured mean, and of those that tie with it."""
    if not cells:
        return set()
    first = max(cells.values(), key=lambda summary: summary.measured.mean).measured
    return {row.name for row, summary in cells.items() if summary.measured is first or tie(first, summary.measured)}


@dataclass(frozen=True)
class Standing:
    """FedDWA's place in a column, by means over the seeds that it shares with each other method."""

    place: int
    of: int  # methods that were run
    rival: Row  # the best of the others
    behind: Spread  # the rival's number less FedDWA's, seed by seed; negative where FedDWA leads

    @property
    def tied(self) -> bool:
        """Whether seeds do not tell FedDWA and its rival apart."""
        return _includes_zero(self.behind)


def standing(cells: Mapping[Row, Summary]) -> Standing | None:
    """Where FedDWA stands in a column; None where it or everybody else was not run."""
    ours = next((summary.measured for row, summary in cells.items() if row.name == "feddwa"), None)
    if ours is None:
        return None
    found = {row: difference(summary.measured, ours) for row, summary in cells.items() if row.name != "feddwa"}
    ahead = {row: apart for row, apart in found.items() if apart is not None}
    if not ahead:
        return None
    rival, behind = max(ahead.items(), key=lambda item: item[1].mean)
    return Standing(1 + sum(apart.mean > 0 for apart in ahead.values()), len(ahead) + 1, rival, behind)


def finding(cells: Mapping[Row, Summary]) -> str | None:
    """The same as a sentence."""
    found = standing(cells)
    if found is None:
        return None
    tied = "; seeds do not tell the two apart" if found.tied else ""
    if found.place == 1:
        lead = points(Spread({seed: -value for seed, value in found.behind.values.items()}))
        return f"FedDWA is first, ahead of {found.rival.label} by {lead}{tied}."
    place = f"FedDWA, number {found.place} of {found.of},"
    return f"{found.rival.label} is first; {place} is behind by {points(found.behind)}{tied}."


@dataclass(frozen=True)
class Gap:
    """A cell that differs from the paper by more than GAP points."""

    experiment: Experiment
    column: Column
    row: Row
    ours: float
    paper: float
    reason: str | None


def gaps(experiment: Experiment, store: Store) -> list[Gap]:
    """Every large difference to the paper, with the sentence that explains it where there is one."""
    found = []
    for column in experiment.columns if experiment.trains else ():
        for row in experiment.rows:
            paper, summary = experiment.number(column, row), summarise(experiment, column, row, store)
            if paper is not None and summary is not None and abs(summary.measured.mean - paper) > GAP:
                reason = reason_for(experiment, column, row)
                found.append(Gap(experiment, column, row, summary.measured.mean, paper, reason))
    return found


def reason_for(experiment: Experiment, column: Column, row: Row) -> str | None:
    """The sentence for a cell, else that for its row in all columns, else that for its column."""
    tables = _reasons().get(experiment.name, {})
    own = tables.get(column.name, {})
    return own.get(row.name) or tables.get("*", {}).get(row.name) or own.get("*")


def why_not_run(column: Column) -> str:
    """The reason for a column without results, by its dataset."""
    return _reasons().get("not-run", {}).get(column.dataset, {}).get("*", "no reason is known")


@functools.cache
def _reasons() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(resources.files(__package__).joinpath("gaps.toml").read_text(encoding="utf-8"))


def rounds_until(series: Iterable[float], level: float) -> int | None:
    """The first round (from 1) from which a series stays at or above a level to the end."""
    values = list(series)
    below = [number for number, value in enumerate(values, 1) if value < level]
    first = below[-1] + 1 if below else 1
    return first if first <= len(values) else None


def _known(series: Iterable[float | None]) -> list[float]:
    return [value for value in series if value is not None] or [float("nan")]


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
