"""Results as figures: SVG files that come out byte for byte the same from the same results."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feddwa.results.collaboration import between_groups, flow, rank_matrix, top_partners
from feddwa.results.palette import Style, styles
from feddwa.results.plot import group_borders, heat_map, saved_figure
from feddwa.results.record import Record
from feddwa.results.store import Store
from feddwa_reproduction.grid import Column, Experiment, Row, Scale
from feddwa_reproduction.grids import inside
from feddwa_reproduction.run import KEPT_ROUNDS
from feddwa_reproduction.summary import Summary, cells_of, partner_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PER_ROW = 3
LONG = 14  # characters of a label, above which two of them fill a line
LOG_TICKS = (1, 2, 5, 10, 20, 50, 100)
CHANCE = 0.368  # share of the top-5 partners in the client's group, of 20 clients in four groups, if they are drawn
MANY = 5  # times the weight of an even mixture, from which on colours are the same
EVEN = 0.25  # weight inside the client's group of an even mean over four equal groups


class Drawing(NamedTuple):
    """A figure that can be drawn."""

    suffix: str  # behind the experiment's name in that of the file
    width: float  # inches
    height: float
    paint: Callable[["Figure"], None]


Cells = dict[Column, dict[Row, Summary]]


def draw(experiment: Experiment, store: Store, folder: Path, scale: Scale = "paper") -> list[Path]:
    """Draw what there is of an experiment; nothing where nothing was run."""
    written = []
    for drawing in drawings(experiment, store, scale):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{experiment.name}{drawing.suffix}.svg"
        with saved_figure(path, drawing.width, drawing.height) as figure:
            drawing.paint(figure)
        written.append(path)
    return written


def drawings(experiment: Experiment, store: Store, scale: Scale = "paper") -> list[Drawing]:
    """The figures of an experiment, from what there is."""
    if experiment.kind == "in-group":
        return _in_group(experiment, store, scale)
    makers: dict[str, Callable[[Experiment, Cells], list[Drawing]]] = {
        "sweep": _sweep, "curves": _curves, "similarity": _similarity, "heatmaps": _heatmaps, "grid": _curves,
        "partners": _partners,
    }  # fmt: skip
    if experiment.kind not in makers:
        return []
    every = {column: cells_of(experiment, column, store, scale) for column in experiment.columns}
    found = {column: cells for column, cells in every.items() if cells}
    return makers[experiment.kind](experiment, found) if found else []


def _panels(
    count: int, paint: Callable[["Figure", list["Axes"]], None], suffix: str = "", width: float = 4.2,
    height: float = 2.8, per_row: int = 2,
) -> Drawing:  # fmt: skip
    """A figure of so many panels, which `paint` fills."""
    across = min(count, per_row)
    down = -(-count // across)

    def whole(figure: "Figure") -> None:
        axes = list(figure.subplots(down, across, squeeze=False).flat)
        for spare in axes[count:]:
            spare.set_axis_off()
        paint(figure, axes[:count])

    return Drawing(suffix, width * across, height * down, whole)


def _line(style: Style, method: str = "") -> dict[str, Any]:
    """How Matplotlib draws a line; the paper's method stands out."""
    first = {"linewidth": 2.2, "zorder": 3} if method == "feddwa" else {"linewidth": 1.3}
    return {"color": style.light, "linestyle": style.dash, **first}


def _sweep(experiment: Experiment, found: Cells) -> list[Drawing]:
    """A panel a column: the best round over what the rows vary, with the spread over seeds; all of one scale."""

    def paint(figure: "Figure", axes: list["Axes"]) -> None:
        (style,) = styles(["feddwa"])
        for (column, cells), axis in zip(found.items(), axes, strict=True):
            x = [int(row.values[-1].partition("=")[2]) for row in cells]
            spreads = [summary.measured for summary in cells.values()]
            means, errors = [spread.mean for spread in spreads], [spread.std or 0 for spread in spreads]
            axis.errorbar(x, means, errors, marker="o", markersize=3, capsize=2, **_line(style))
            _name(axis, column.name, experiment.axis, "best round, %")
            axis.set_xticks(x)
        limits = [axis.get_ylim() for axis in axes]
        half = max(top - bottom for bottom, top in limits) / 2
        for axis, (bottom, top) in zip(axes, limits, strict=True):
            axis.set_ylim((bottom + top) / 2 - half, (bottom + top) / 2 + half)

    return [_panels(len(found), paint)]


def _curves(experiment: Experiment, found: Cells) -> list[Drawing]:
    """A column of the table in two panels, all of it and its upper end: the paper's metric over rounds, seeds' mean."""
    lines = dict(zip(experiment.rows, styles([row.method for row in experiment.rows]), strict=True))
    several = len({row.method for row in experiment.rows}) > 1

    def paint(figure: "Figure", axes: list["Axes"]) -> None:
        for (column, cells), whole, upper in zip(found.items(), axes[::2], axes[1::2], strict=True):
            ends = []
            for row, summary in cells.items():
                series = np.mean([record.series[experiment.series(row)] for record in summary.records.values()], axis=0)
                for axis in (whole, upper):
                    look = _line(lines[row], row.method if several else "")
                    axis.plot(range(1, len(series) + 1), series, label=row.label, **look)
                ends.append(float(series[-1]))
            upper.set_ylim(*_upper_end(ends))
            for axis, title in ((whole, column.name), (upper, f"{column.name}, upper end")):
                _name(axis, title, "round", "accuracy, %")
        _legend(figure, axes)

    return [_panels(2 * len(found), paint)]


def _upper_end(ends: list[float]) -> tuple[float, float]:
    """Limits of accuracy between which the better half of the lines ends, with some room."""
    best = sorted(ends, reverse=True)[: max(2, -(-len(ends) // 2))]
    room = max(1.0, best[0] - best[-1])
    return best[-1] - room, best[0] + room


def _similarity(experiment: Experiment, found: Cells) -> list[Drawing]:
    """The share of partners in groups over rounds, and maps of everybody's top partners."""
    column, cells = next(iter(found.items()))

    def paint(figure: "Figure", axes: list["Axes"]) -> None:
        (axis,) = axes
        for (row, summary), style in zip(cells.items(), styles([row.method for row in cells]), strict=True):
            shares = partner_series(summary.records.values(), row)
            if shares:
                look, mean = _line(style, row.method), np.mean(shares, axis=0)
                axis.plot(range(1, len(mean) + 1), mean, label=row.label, **look)
        _level(axis, CHANCE, "chance")
        _log_rounds(axis)
        _name(axis, column.name, "round", "share of top-5 partners in own group")
        _legend(figure, axes)

    return [_panels(1, paint, width=5.6, height=3.9), *_partner_maps(cells)]


def _partner_maps(cells: dict[Row, Summary]) -> list[Drawing]:
    """Methods down, rounds across: black where a client is among another's top partners (first seed).

    Nothing where results keep no weights.
    """
    first = {row: next(iter(summary.records.values())) for row, summary in cells.items()}
    records = {row: record for row, record in first.items() if not row.by_affinity or "preferred" in record.content}
    kept = [{each.round for each in record.weights} for record in records.values()]
    rounds = [number for number in KEPT_ROUNDS if all(number in own for own in kept)]
    places = [(row, record, number) for row, record in records.items() for number in rounds]

    def paint(figure: "Figure", axes: list["Axes"]) -> None:
        for axis, (row, record, number) in zip(axes, places, strict=True):
            preferred = record.content.get("preferred", {})
            ranking = rank_matrix(preferred[str(number)]) if row.by_affinity else _kept(record, number)
            axis.imshow(top_partners(ranking), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            for border in group_borders(np.arange(len(ranking)), record.groups):
                axis.axhline(border, color="#999999", linewidth=0.5)
                axis.axvline(border, color="#999999", linewidth=0.5)
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"{row.label}, round {number}", fontsize=9)

    return [_panels(len(places), paint, "-maps", width=2.2, height=2.1, per_row=len(rounds))] if places else []


def _kept(record: Record, number: int) -> np.ndarray:
    """P (N, N) of a round whose weights a record keeps."""
    return next(each.matrix for each in record.weights if each.round == number)


def _heatmaps(experiment: Experiment, found: Cells) -> list[Drawing]:
    """One figure per dataset, divisions across: all weights of the first round, and those kept in the last."""
    rows = list(reversed(experiment.rows))
    datasets = dict.fromkeys(column.dataset for column in found)
    return [
        _heatmap_grid(rows, {column: cells for column, cells in found.items() if column.dataset == dataset}, dataset)
        for dataset in datasets
    ]


def _heatmap_grid(rows: Sequence[Row], found: Cells, dataset: str) -> Drawing:
    """Rows down, columns across."""
    places = [(row, column, cells.get(row)) for row in rows for column, cells in found.items()]

    def paint(figure: "Figure", axes: list["Axes"]) -> None:
        image = None
        for axis, (row, column, summary) in zip(axes, places, strict=True):
            record = None if summary is None else next(iter(summary.records.values()))
            if record is None or not record.weights:
                axis.set_axis_off()
                continue
            number = 1 if row.values else record.weights[-1].round
            matrix = _kept(record, number)
            image = heat_map(axis, matrix, np.arange(len(matrix)), record.groups)
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"{column.setting}\n{row.label}, round {number}", fontsize=9)
        if image is not None:
            figure.colorbar(image, ax=axes, label="aggregation weight", shrink=0.7)

    return _panels(len(places), paint, f"-{dataset}", width=2.6, height=2.7, per_row=len(found))


def _partners(experiment: Experiment, found: Cells) -> list[Drawing]:
    """A figure per column, a panel per row: weights of the last round (first seed), between groups where there are any.

    Nothing where no row has weights on others.
    """
    drawings = []
    for column, cells in found.items():
        first = {row: next(iter(summary.records.values())) for row, summary in cells.items()}
        mixing = {
            row: record for row, record in first.items() if record.weights and flow(record.weights[-1:], None)[0, 2]
        }
        drawings += [_partner_map(column, mixing)] if mixing else []
    return drawings


def _partner_map(column: Column, records: dict[Row, Record]) -> Drawing:
    def paint(figure: "Figure", axes: list["Axes"]) -> None:
        for axis, (row, record) in zip(axes, records.items(), strict=True):
            last = record.weights[-1]
            if record.groups is None:
                image, what = heat_map(axis, last.matrix, last.cohort, None), "aggregation weight"
            else:
                between = between_groups(last.matrix, record.groups)
                image, what = axis.imshow(between, vmin=0, vmax=MANY, cmap="viridis"), "weight over that by chance"
            axis.set(xticks=[], yticks=[])
            axis.set_title(row.label, fontsize=9)
        figure.colorbar(image, ax=axes, label=what, shrink=0.7)

    return _panels(len(records), paint, f"-{column.dataset}", width=2.6, height=2.7, per_row=PER_ROW)


def _in_group(experiment: Experiment, store: Store, scale: Scale) -> list[Drawing]:
    """Weight inside the client's group over rounds, a panel per dataset; a label has one colour in all panels."""
    found = inside(experiment, store, scale)
    labels = list(dict.fromkeys(label for lines in found.values() for label in lines))
    style_of = dict(zip(labels, styles(labels), strict=True))

    def paint(figure: "Figure", axes: list["Axes"]) -> None:
        for axis, (title, lines) in zip(axes, found.items(), strict=True):
            for label, values in lines.items():
                axis.plot(range(1, len(values) + 1), values, label=label, **_line(style_of[label]))
            _level(axis, EVEN, "even")
            _log_rounds(axis)
            axis.set_ylim(0, 1.03)
            _name(axis, title, "round", "weight inside own group")
        _legend(figure, axes)

    return [_panels(len(found), paint, height=3.0, per_row=PER_ROW)] if found else []


def _name(axis: "Axes", title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def _level(axis: "Axes", value: float, label: str) -> None:
    axis.axhline(value, color="#999999", linewidth=0.8, linestyle=":", label=label)


def _log_rounds(axis: "Axes") -> None:
    """Rounds on a logarithmic axis, as most change in the first ten."""
    axis.set_xscale("log")
    axis.set_xticks(LOG_TICKS, [str(tick) for tick in LOG_TICKS])
    axis.minorticks_off()


def _legend(figure: "Figure", axes: Sequence["Axes"]) -> None:
    """One legend for all panels, below them."""
    handles = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    across = 5 if max(map(len, handles)) < LONG else 2
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=across, fontsize=8, frameon=False)
