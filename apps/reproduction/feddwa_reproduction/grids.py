"""Tables of the last round over all clients: docs/beyond.md, docs/field.md, docs/natural.md and users' own."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np

from feddwa.results.collaboration import flow
from feddwa.results.compare import Spread, difference, gain_over, interval, over_seeds, within
from feddwa.results.fairness import fairness
from feddwa.results.record import Record
from feddwa.results.store import Store
from feddwa_reproduction.grid import Column, Experiment, Row, Scale
from feddwa_reproduction.summary import records_of
from feddwa_reproduction.table import Table

NOTHING = "-"  # a cell that was not run
SHOWN = (1, 2, 5, 10, 20, 40, 100)  # rounds of the weight inside groups

Cells = dict[Column, dict[int, Record]]  # of a row


def accuracy(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """Mean and standard deviation over seeds; rows without results are skipped."""
    rows = [
        (row.label, *(_mean_of(_last(own)) for own in cells.values()))
        for row, cells in _grid(experiment, store, scale).items()
        if any(cells.values())
    ]
    gains = [_gain(experiment, column, store, scale) for column in experiment.columns] if experiment.gains else []
    if any(gain != NOTHING for gain in gains):
        rows.append((f"{experiment.rows[0].label} over Local: mean client / worst tenth", *gains))
    return [_table(experiment, "", rows)]


def _mean_of(spread: Spread) -> str:
    if not spread.values:
        return NOTHING
    return f"{spread:.1f}" if len(spread.values) > 1 else f"{spread:.1f} (one seed)"


def _gain(experiment: Experiment, column: Column, store: Store, scale: Scale) -> str:
    """Of the first row over Local, in points: mean over clients and seeds / mean of the worst tenth."""
    ours, alone = (records_of(experiment, column, row, store, scale) for row in (experiment.rows[0], Row("local")))
    gain = gain_over(ours.values(), alone)
    return NOTHING if gain is None else f"{gain.mean:+.1f} / {gain.worst_tenth:+.1f}"


def paired(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """The first row minus the best other row, and minus the rows in `beside`, seed by seed; a line per column."""
    cells, (ours, *others) = _grid(experiment, store, scale), experiment.rows
    beside = [row for name in experiment.beside for row in others if row.name == name]
    lines = []
    for column, name in zip(experiment.columns, _names(experiment.columns), strict=True):
        spreads = {row: _last(cells[row][column]) for row in experiment.rows}
        pairs = {row: difference(spreads[ours], spreads[row]) for row in others}
        known = {row: apart for row, apart in pairs.items() if apart is not None}
        if known:
            best, lead = min(known.items(), key=lambda item: item[1].mean)
            place = f"{1 + sum(apart.mean < 0 for apart in known.values())} of {len(known) + 1}"
            apart = [_apart(pairs[row]) for row in beside]
            lines.append((name, place, best.label, _apart(lead), *apart, str(len(lead.values))))
    header = ("", "place", "best other method", "less that", *(f"less {row.label}" for row in beside), "n")
    return [Table(experiment.title, header, lines)]


def less_first_row(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """The other rows minus the first one, seed by seed."""
    (first, reference), *others = _grid(experiment, store, scale).items()
    rows = [
        (row.label, *(_apart(difference(_last(own), _last(reference[column]))) for column, own in cells.items()))
        for row, cells in others
        if any(cells.values())
    ]
    return [_table(experiment, f"less {first.label}", rows)]


def _apart(apart: Spread | None) -> str:
    """+0.58 (-0.28 to +1.43): a difference with its interval; emphasised if the interval excludes 0."""
    if apart is None:
        return NOTHING
    ends = interval(apart)
    if ends is None:
        return f"{apart.mean:+.2f}"
    return f"{apart.mean:+.2f} ({ends.low:+.2f} to {ends.high:+.2f})" + "*" * (not ends.includes_zero)


def equal_cost(cost: str) -> Callable[[Experiment, Store, Scale], list[Table]]:
    """Accuracy and round at which a cost reaches the total cost of the `budget` row."""

    def made(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
        budget = Row(experiment.budget)
        measure = {column: records_of(experiment, column, budget, store, scale) for column in experiment.columns}
        rows = [
            (row.label, *(_within(own, measure[column], cost) for column, own in cells.items()))
            for row, cells in _grid(experiment, store, scale).items()
        ]
        return [_table(experiment, "accuracy, rounds", rows)]

    return made


def _within(runs: Mapping[int, Record], measure: Mapping[int, Record], cost: str) -> str:
    """Mean over seeds; the budget of a run is the other method's cost with the same seed."""
    common = [seed for seed in runs if seed in measure]
    found = [within(runs[seed], cost, float(measure[seed].spent(cost)[-1])) for seed in common]
    known = [each for each in found if each is not None]
    if not known:
        return NOTHING
    fewest, most = (pick(each.rounds for each in known) for pick in (min, max))
    rounds = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{fmean(each.score for each in known):.1f}, {rounds}"


def in_group(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """Share of a client's weight inside its group by round."""
    rows = [
        (f"{title}, {label}", *(f"{values[n - 1]:.2f}" if n <= len(values) else "" for n in SHOWN))
        for title, lines in inside(experiment, store, scale).items()
        for label, values in lines.items()
    ]
    return [Table(experiment.title, ("", *(f"round {number}" for number in SHOWN)), rows)]


def inside(experiment: Experiment, store: Store, scale: Scale) -> dict[str, dict[str, np.ndarray]]:
    """Title of a dataset -> label -> (R,) the share of a client's weight inside its group, itself included.

    Mean over clients and seeds; a line per column and row.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    for row, cells in _grid(experiment, store, scale).items():
        for column, records in cells.items():
            shares = [record.content["in_group"]["weight"] for record in records.values()]
            if shares:
                label = ", ".join([column.label, row.label][: min(2, len(experiment.rows))])
                found.setdefault(column.title, {})[label] = np.mean(shares, axis=0)
    return found


def unequal(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """Fairness over clients: accuracy of the worst tenth, and share of clients below Local."""
    alone = {column: records_of(experiment, column, Row("local"), store, scale) for column in experiment.columns}
    rows = [
        (row.label, *(cell for column, own in cells.items() for cell in _fairness(own, alone[column])))
        for row, cells in _grid(experiment, store, scale).items()
        if any(cells.values())
    ]
    names = [f"{name}: {what}" for name in _names(experiment.columns) for what in ("worst tenth", "below Local")]
    return [Table(experiment.title, ("", *names), rows)]


def _fairness(records: Mapping[int, Record], alone: Mapping[int, Record]) -> tuple[str, str]:
    known = [found.worst_tenth for record in records.values() if (found := fairness(record.final)) is not None]
    gain = gain_over(records.values(), alone)
    worst = Spread(dict(enumerate(known)))
    return f"{worst:.1f}" if known else NOTHING, NOTHING if gain is None else f"{gain.losers:.0f} %"


def partners(experiment: Experiment, store: Store, scale: Scale) -> list[Table]:
    """Aggregation weight on itself, its group and the rest in the last round; a line per column and row."""
    lines = []
    for row, cells in _grid(experiment, store, scale).items():
        for records, name in zip(cells.values(), _names(experiment.columns), strict=True):
            kept = [(record.weights[-1], record.groups) for record in records.values() if record.weights]
            if kept:
                shares = np.mean([flow([last], groups)[0] for last, groups in kept], axis=0)
                lines.append((f"{name}, {row.label}", *_shares(shares, kept[0][1])))
    header = ("", "itself", "its group", "others", "of the weight on others: its group", "by chance")
    return [Table(experiment.title, header, lines)]


def _shares(shares: np.ndarray, groups: np.ndarray | None) -> list[str]:
    """shares: (3,) weight on the client itself, on others of its group, on the rest; groups: (N,)."""
    own, kin, rest = shares
    if groups is None:
        return [f"{own:.2f}", NOTHING, f"{rest:.2f}", NOTHING, NOTHING]
    pairs = (groups[:, None] == groups).sum() - len(groups)
    even = pairs / (len(groups) * (len(groups) - 1))
    inside = f"{kin / (kin + rest):.2f}" if kin + rest > 0.005 else NOTHING  # else nearly all weight is on itself
    return [f"{own:.2f}", f"{kin:.2f}", f"{rest:.2f}", inside, f"{even:.2f}"]


def _last(records: Mapping[int, Record]) -> Spread:
    """Accuracy after the last round by seed."""
    return over_seeds(records.values())


def _grid(experiment: Experiment, store: Store, scale: Scale) -> dict[Row, Cells]:
    return {
        row: {column: records_of(experiment, column, row, store, scale) for column in experiment.columns}
        for row in experiment.rows
    }


def _table(experiment: Experiment, corner: str, rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(experiment.title, (corner, *_names(experiment.columns)), rows)


def _names(columns: Sequence[Column]) -> list[str]:
    """Names of the settings, with the dataset if there are several."""
    several = len({column.dataset for column in columns}) > 1
    return [f"{column.title}, {column.label}" if several else column.label for column in columns]


MAKERS: dict[str, Callable[[Experiment, Store, Scale], list[Table]]] = {
    "accuracy": accuracy,
    "paired": paired,
    "less-first-row": less_first_row,
    "equal-bytes": equal_cost("bytes"),
    "equal-flops": equal_cost("flops"),
    "in-group": in_group,
    "unequal": unequal,
    "partners": partners,
}
