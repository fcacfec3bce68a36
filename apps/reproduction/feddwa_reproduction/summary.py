"""Summaries of results: a cell over its seeds, FedDWA's rank in a column, differences to the paper."""

import functools
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from feddwa.results.compare import Gain, Spread, difference, gain_over, interval, over_seeds, points, tie
from feddwa.results.record import Record
from feddwa.results.store import Store
from feddwa_reproduction.grid import Column, Experiment, Row, Scale

GAP = 2.0  # a larger difference to the paper's number needs a reason, in points
MIB, GIGA = 2**20, 1e9


@dataclass(frozen=True)
class Summary:
    """A cell over its seeds. Accuracies in percent. best, last, gain: None if other models are measured."""

    measured: Spread  # the row's series, best or last round, as the source of published numbers has it
    best: Spread | None  # all clients, unweighted, best round
    last: Spread | None  # all clients, unweighted, the models that the run delivers
    gain: Gain | None
    mib: float  # up and down, per participating client and round
    gflops: float  # of a participating client's local training a round
    seconds: float  # of the first seed
    jobs: int  # stacks that ran in parallel
    machines: tuple[str, ...]  # with the precision
    records: Mapping[int, Record]


def summarise(experiment: Experiment, column: Column, row: Row, store: Store, scale: Scale = "paper") -> Summary | None:
    """Summary of a cell over the seeds of its column; None without results."""
    records = records_of(experiment, column, row, store, scale)
    if not records:
        return None
    alone = records_of(experiment, column, Row("local"), store, scale) if row.method != "local" else {}
    costs = records[min(records)].content["costs"]
    delivered, series = not row.after, experiment.series(row)  # the models that the run delivers
    report = _best if experiment.reported == "best" else _last
    return Summary(
        measured=Spread({seed: report(record.series[series]) for seed, record in records.items()}),
        best=Spread({seed: _best(record.curve) for seed, record in records.items()}) if delivered else None,
        last=over_seeds(records.values()) if delivered else None,
        gain=gain_over(records.values(), alone) if delivered else None,
        mib=fmean(record.traffic for record in records.values()) / MIB,
        gflops=fmean(record.content["costs"]["flops"] for record in records.values()) / GIGA,
        seconds=costs["seconds"],
        jobs=costs.get("jobs", 1),
        machines=tuple(sorted({_machine(record) for record in records.values()})),
        records=records,
    )


def _best(series: np.ndarray) -> float:
    """The highest known value; nan if there is none."""
    return max(series[np.isfinite(series)].tolist(), default=math.nan)


def _last(series: np.ndarray) -> float:
    return float(series[-1])


def _machine(record: Record) -> str:
    made = record.content["made"]
    return f"{made['hardware']}, torch {made['versions']['torch']}, {record.config.dtype}"


def cells_of(experiment: Experiment, column: Column, store: Store, scale: Scale) -> dict[Row, Summary]:
    """Summaries of a column by row. A sweep with one value counts as not run: that run belongs to another table."""
    found = {row: summarise(experiment, column, row, store, scale) for row in experiment.rows}
    known = {row: summary for row, summary in found.items() if summary is not None}
    return {} if experiment.kind == "sweep" and len(known) < 2 else known


def records_of(
    experiment: Experiment, column: Column, row: Row, store: Store, scale: Scale = "paper"
) -> dict[int, Record]:
    """The results of a cell by seed, for the column's seeds only, so that means are comparable."""
    found, series = store.all(experiment.config(column, row, scale)), experiment.series(row)
    return {seed: record for seed, record in found.items() if seed in column.seeds and series in record.series}


def leaders(cells: Mapping[Row, Summary]) -> set[str]:
    """The names of the rows with the highest measured mean, and of those that tie with it."""
    if not cells:
        return set()
    first = max(cells.values(), key=lambda summary: summary.measured.mean).measured
    return {row.name for row, summary in cells.items() if summary.measured is first or tie(first, summary.measured)}


@dataclass(frozen=True)
class Standing:
    """FedDWA's rank in a column, by means over the seeds that it shares with each other method."""

    place: int
    of: int  # methods with results
    rival: Row  # the best other method
    behind: Spread  # the rival's number minus FedDWA's, seed by seed; negative if FedDWA leads

    @property
    def tied(self) -> bool:
        """Whether the difference to the rival is within the seeds' spread."""
        ends = interval(self.behind)
        return ends is not None and ends.includes_zero


def standing(cells: Mapping[Row, Summary]) -> Standing | None:
    """FedDWA's rank in a column; None if it or every other method has no results."""
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
    """The rank as a sentence."""
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
    """Every large difference to the paper, with the sentence that explains it, if any."""
    found = []
    for column in experiment.columns if experiment.trains else ():
        for row in experiment.rows:
            paper, summary = experiment.number(column, row), summarise(experiment, column, row, store)
            if paper is not None and summary is not None and abs(summary.measured.mean - paper) > GAP:
                reason = reason_for(experiment, column, row)
                found.append(Gap(experiment, column, row, summary.measured.mean, paper, reason))
    return found


def reason_for(experiment: Experiment, column: Column, row: Row) -> str | None:
    """The sentence for a cell, else for its row in all columns, else for its column."""
    tables = _reasons().get(experiment.name, {})
    own = tables.get(column.name, {})
    return own.get(row.name) or tables.get("*", {}).get(row.name) or own.get("*")


def why_not_run(column: Column) -> str:
    """The reason for a column without results, by its dataset."""
    return _reasons().get("not-run", {}).get(column.dataset, {}).get("*", "no reason is known")


@functools.cache
def _reasons() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(Path(__file__).with_name("gaps.toml").read_text(encoding="utf-8"))


def partner_series(records: Iterable[Record], row: Row) -> list[list[float]]:
    """Of every record the share of partners inside a client's group by round, as the row has partners found."""
    key = "partners_by_affinity" if row.by_affinity else "partners"
    found = [record.content.get("in_group", {}).get(key) for record in records]
    return [series for series in found if series is not None]


def rounds_until(series: Iterable[float], level: float) -> int | None:
    """The first round (from 1) from which a series stays at or above a level to the end."""
    values = list(series)
    below = [number for number, value in enumerate(values, 1) if value < level]
    first = below[-1] + 1 if below else 1
    return first if first <= len(values) else None
