"""Results as figures: SVG files that come out byte for byte the same from the same results."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddwa.paper.run import KEPT_ROUNDS, TOP, kept_preferences, kept_weights, partner_series
from feddwa.paper.specs import Column, Experiment, Row, Scale
from feddwa.paper.store import Record, Store
from feddwa.paper.summary import Summary, cells_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# After Okabe and Ito: colours that the colour-blind can tell apart. A method looks the same in all figures.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b4578a", "#b07d00", "#3a9bd9", "#6f4fb3", "#000000")
OF_METHOD: dict[str, dict[str, Any]] = {
    "feddwa": {"color": "#0072b2", "linewidth": 2.2, "zorder": 3},
    "local": {"color": "#6b7280", "linestyle": "--"},
    "fedavg": {"color": "#d55e00"},
    "fedavg_ft": {"color": "#d55e00", "linestyle": "--"},
    "pfedme": {"color": "#009e73"},
    "fedrod": {"color": "#b07d00"},
    "fedamp": {"color": "#6f4fb3"},
    "fedfomo": {"color": "#b4578a"},
    "l2c": {"color": "#000000"},
}
PER_ROW = 3
LONG = 14  # characters of a label, above which two of them fill a line
LOG_TICKS = (1, 2, 5, 10, 20, 50, 100)


def draw(experiment: Experiment, store: Store, folder: Path, scale: Scale = "paper") -> list[Path]:
    """Draw what there is of an experiment; nothing where nothing was run."""
    makers: dict[str, Callable[[Experiment, Store, Scale], dict[str, Any]]] = {
        "sweep": _sweep, "curves": _curves, "similarity": _similarity, "heatmaps": _heatmaps, "grid": _curves,
    }  # fmt: skip
    if experiment.kind not in makers:
        return []
    figures = makers[experiment.kind](experiment, store, scale)
    return [_save(figure, folder / f"{experiment.name}{suffix}.svg") for suffix, figure in figures.items()]


def _save(figure: "Figure", path: Path) -> Path:
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "feddwa", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    path.write_text(_numbered(path.read_text()))
    return path


def _numbered(svg: str) -> str:
    """Name its elements by number, in the order in which they appear.

    Matplotlib's names are hashes of coordinates, whose last bit is not the same on all processors.
    """
    names = dict.fromkeys(re.findall(r'(?<=\bid=")[a-z]+[0-9a-f]{10}(?=")', svg))
    numbers = {name: f"{name[:-10]}{number}" for number, name in enumerate(names, start=1)}
    return re.sub(r'(?<=["#])[a-z]+[0-9a-f]{10}(?=[")])', lambda found: numbers.get(found[0], found[0]), svg)


def _summaries(experiment: Experiment, store: Store, scale: Scale) -> dict[Column, dict[Row, Summary]]:
    """Columns of which there is something, with what there is."""
    found = {column: cells_of(experiment, column, store, scale) for column in experiment.columns}
    return {column: cells for column, cells in found.items() if cells}


def _panels(
    count: int, width: float = 4.2, height: float = 3.2, per_row: int = PER_ROW
) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure  # only who draws pays for the import

    across = min(count, per_row)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def _style(number: int, method: str = "") -> dict[str, Any]:
    """Of a method, or of the line with this number."""
    return {"linewidth": 1.3, **OF_METHOD.get(method, {"color": COLOURS[number % len(COLOURS)]})}


def _sweep(experiment: Experiment, store: Store, scale: Scale) -> dict[str, "Figure"]:
    """A panel a column: the best round over what the rows vary, with the spread over seeds; all of one scale."""
    found = _summaries(experiment, store, scale)
    if not found:
        return {}
    figure, axes = _panels(len(found), height=2.8, per_row=2)
    for (column, cells), axis in zip(found.items(), axes, strict=True):
        x = [int(row.param[-1].partition("=")[2]) for row in cells]
        spreads = [summary.measured for summary in cells.values()]
        means, errors = [spread.mean for spread in spreads], [spread.std or 0 for spread in spreads]
        axis.errorbar(x, means, errors, marker="o", markersize=3, capsize=2, **_style(0))
        axis.set_title(column.name, fontsize=10)
        axis.set_xlabel(experiment.axis)
        axis.set_ylabel("best round, %")
        axis.set_xticks(x)
    limits = [axis.get_ylim() for axis in axes]
    half = max(top - bottom for bottom, top in limits) / 2
    for axis, (bottom, top) in zip(axes, limits, strict=True):
        axis.set_ylim((bottom + top) / 2 - half, (bottom + top) / 2 + half)
    return {"": figure}


def _curves(experiment: Experiment, store: Store, scale: Scale) -> dict[str, "Figure"]:
    """A column of the table in two panels, all of it and its upper end: the paper's metric over rounds, seeds' mean."""
    found = _summaries(experiment, store, scale)
    if not found:
        return {}
    figure, axes = _panels(2 * len(found), height=2.8, per_row=2)
    several = len({row.method for row in experiment.rows}) > 1
    for (column, cells), whole, upper in zip(found.items(), axes[::2], axes[1::2], strict=True):
        ends = []
        for number, row in enumerate(experiment.rows):
            if row in cells:
                series = _mean([record["series"][row.series] for record in cells[row].records.values()])
                style = _style(number, row.method if several else "")
                for axis in (whole, upper):
                    axis.plot(range(1, len(series) + 1), series, label=row.label, **style)
                ends.append(series[-1])
        upper.set_ylim(*_upper_end(ends))
        for axis, title in ((whole, column.name), (upper, f"{column.name}, upper end")):
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("round")
            axis.set_ylabel("accuracy, %")
    _legend(figure, axes)
    return {"": figure}


def _upper_end(ends: list[float]) -> tuple[float, float]:
    """Limits of accuracy between which the better half of the lines ends, with some room."""
    best = sorted(ends, reverse=True)[: max(2, -(-len(ends) // 2))]
    room = max(1.0, best[0] - best[-1])
    return best[-1] - room, best[0] + room


def _similarity(experiment: Experiment, store: Store, scale: Scale) -> dict[str, "Figure"]:
    """The score over rounds, and maps of everybody's top partners."""
    found = _summaries(experiment, store, scale)
    if not found:
        return {}
    column, cells = next(iter(found.items()))
    figure, (axis,) = _panels(1, 5.6, 3.4)
    for number, (row, summary) in enumerate(cells.items()):
        found_by = partner_series(summary.records.values(), row)
        if found_by:
            series, line = _mean(found_by), {"linestyle": "--" if row.by_affinity else "-"}
            axis.plot(range(1, len(series) + 1), series, label=row.label, **{**line, **_style(number, row.method)})
    axis.axhline(0.368, color="#999999", linewidth=0.8, linestyle=":", label="chance")
    axis.set_xscale("log")
    axis.set_xticks(LOG_TICKS, [str(tick) for tick in LOG_TICKS])
    axis.minorticks_off()
    axis.set_xlabel("round")
    axis.set_ylabel("share of top-5 partners in own group")
    axis.set_title(column.name, fontsize=10)
    axis.legend(fontsize=8, frameon=False)
    return {"": figure, "-maps": _partner_maps(cells)}


def _partner_maps(cells: dict[Row, Summary]) -> "Figure":
    """Methods down, rounds across: black where a client is among another's top partners (first seed)."""
    from matplotlib.figure import Figure

    first = {row: next(iter(summary.records.values())) for row, summary in cells.items()}
    records = {row: record for row, record in first.items() if not row.by_affinity or "preferred" in record}
    rounds = [number for number in KEPT_ROUNDS if all(str(number) in record["weights"] for record in records.values())]
    figure = Figure(figsize=(2.1 * len(rounds) + 0.4, 2.1 * len(records)), layout="constrained")
    axes = figure.subplots(len(records), len(rounds), squeeze=False)
    for line, (row, record) in zip(axes, records.items(), strict=True):
        for axis, number in zip(line, rounds, strict=True):
            ranking = kept_preferences(record, number) if row.by_affinity else kept_weights(record, number)
            axis.imshow(top_partners(ranking), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            _frame(axis, record)
            axis.set_title(f"{row.label}, round {number}", fontsize=9)
    return figure


def top_partners(weights: np.ndarray, top: int = TOP) -> np.ndarray:
    """(N, N) ones where j is i itself or among the others with the largest positive weights."""
    others = np.where(np.eye(len(weights), dtype=bool), -np.inf, weights)
    best = np.argsort(-others, axis=1, kind="stable")[:, : top - 1]
    chosen = np.eye(len(weights))
    np.put_along_axis(chosen, best, (np.take_along_axis(others, best, 1) > 0).astype(float), 1)
    np.fill_diagonal(chosen, 1)
    return chosen


def _heatmaps(experiment: Experiment, store: Store, scale: Scale) -> dict[str, "Figure"]:
    """One figure per dataset, divisions across: all weights of the first round, and those kept in the last."""
    found = _summaries(experiment, store, scale)
    figures = {}
    for dataset in dict.fromkeys(column.dataset for column in found):
        own = {column: cells for column, cells in found.items() if column.dataset == dataset}
        figures[f"-{dataset}"] = _heatmap_grid(list(reversed(experiment.rows)), own)
    return figures


def _heatmap_grid(rows: Sequence[Row], columns: dict[Column, dict[Row, Summary]]) -> "Figure":
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.5 * len(columns) + 0.8, 2.7 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    image = None
    for line, row in zip(axes, rows, strict=True):
        for axis, (column, cells) in zip(line, columns.items(), strict=True):
            if row not in cells:
                axis.set_axis_off()
                continue
            record = next(iter(cells[row].records.values()))
            number = 1 if row.param else max(map(int, record["weights"]))
            # The square root shows a weight of 0.05 beside one of 0.8.
            norm = PowerNorm(0.5, 0, 1)
            image = axis.imshow(kept_weights(record, number), cmap="viridis", norm=norm, interpolation="nearest")
            _frame(axis, record)
            axis.set_title(f"{column.setting}\n{row.label}, round {number}", fontsize=9)
    if image is not None:
        figure.colorbar(image, ax=list(axes.flat), label="aggregation weight", shrink=0.7)
    return figure


def _frame(axis: "Axes", record: Record) -> None:
    """Lines between the true groups, no ticks."""
    groups = record["groups"]
    for place in range(1, len(groups)):
        if groups[place] != groups[place - 1]:
            axis.axhline(place - 0.5, color="#999999", linewidth=0.5)
            axis.axvline(place - 0.5, color="#999999", linewidth=0.5)
    axis.set_xticks([])
    axis.set_yticks([])


def _mean(series: Sequence[Sequence[float]]) -> list[float]:
    return [float(value) for value in np.mean([list(map(float, values)) for values in series], axis=0)]


def draw_series(
    panels: Mapping[str, Mapping[str, Sequence[float]]], path: Path, ylabel: str, levels: Mapping[str, float]
) -> Path:
    """Lines over rounds: panel title -> label -> a number per round; `levels` are dotted lines in every panel.

    A label has the same colour in all panels. Rounds are on a logarithmic axis, as most change in the first ten.
    """
    figure, axes = _panels(len(panels), height=3.0)
    labels = list(dict.fromkeys(label for series in panels.values() for label in series))
    for axis, (title, series) in zip(axes, panels.items(), strict=True):
        for label, values in series.items():
            axis.plot(range(1, len(values) + 1), values, label=label, **_style(labels.index(label)))
        for label, level in levels.items():
            axis.axhline(level, color="#999999", linewidth=0.8, linestyle=":", label=label)
        axis.set_xscale("log")
        axis.set_xticks(LOG_TICKS, [str(tick) for tick in LOG_TICKS])
        axis.minorticks_off()
        axis.set_ylim(0, 1.03)
        axis.set_xlabel("round")
        axis.set_ylabel(ylabel)
        axis.set_title(title, fontsize=10)
    _legend(figure, axes)
    return _save(figure, path)


def _legend(figure: "Figure", axes: Sequence["Axes"]) -> None:
    """One legend for all panels, below them."""
    handles = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    across = 5 if max(map(len, handles)) < LONG else 2
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=across, fontsize=8, frameon=False)
