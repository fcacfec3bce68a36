"""Figures for papers: colour-blind safe, distinguishable by dashes and markers in grey print."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from feddwa.data.describe import Description, draw
from feddwa.data.labels import short
from feddwa.errors import InputError
from feddwa.report.collect import styles_of
from feddwa.report.facts import lead
from feddwa.results.collaboration import affinity
from feddwa.results.compare import gain_over, local_runs
from feddwa.results.methods import Method, clients_in_words, standing
from feddwa.results.plot import Panel, draw_weights, saved_figure
from feddwa.results.units import human_bytes, human_flops, human_seconds

MARKERS = "osD^vPX*<>pdh8"
EARLY = (1, 5)  # rounds whose weights are shown besides the last
SUFFIXES = (".png", ".svg", ".pdf")
PAPER: Any = {  # type that journals take, and sizes that are read in a column
    "font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.linewidth": 0.4,
    "grid.color": "#d5dae0", "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.3,
}  # fmt: skip


def _figure(path: str | Path, width: float, height: float) -> AbstractContextManager[Any]:
    return saved_figure(path, width, height, **PAPER)


def curves(methods: Sequence[Method], path: str | Path) -> None:
    """Accuracy, or the loss, over the rounds; the band is from the lowest to the highest seed."""
    longest = max(len(method.name) for method in methods)
    width, height = 4.6 + 0.06 * max(0, longest - 24), max(2.7, 0.3 + 0.16 * len(methods))  # the legend beside it fits
    with _figure(path, width, height) as figure:
        axis = figure.subplots()
        for place, (style, method) in enumerate(zip(styles_of(methods), methods, strict=True)):
            rounds = np.flatnonzero(np.isfinite(method.curve))  # those that were evaluated
            axis.plot(
                rounds, method.curve[rounds], color=style.light, linestyle=style.dash, label=method.name,
                marker=MARKERS[place % len(MARKERS)], markersize=3.5, markevery=(place % 5, max(1, len(rounds) // 8)),
            )  # fmt: skip
            if len(method.runs) > 1:
                axis.fill_between(
                    rounds, *(edge[rounds] for edge in method.band), color=style.light, alpha=0.15, linewidth=0
                )
        axis.set(xlabel="finished rounds", ylabel=methods[0].measure.head, xlim=(0, None))
        figure.legend(loc="outside right center", handlelength=2.6)


def weights(methods: Sequence[Method], path: str | Path) -> None:
    """P of the last round of every method, and of early ones of the best."""
    panels, best = [], lead(methods)
    for method in methods:
        run = method.runs[0]
        early = EARLY if method is best else ()
        chosen = [each for place, each in enumerate(run.weights, 1) if each.round in early or place == len(run.weights)]
        names = () if run.partition is None else run.partition.client_names
        panels += [Panel(f"{method.name}, round {each.round}", each.matrix, each.cohort, names) for each in chosen]
    if not panels:
        raise InputError(f"{methods[0].runs[0].path}: no weights are stored there, so there is nothing to draw")
    draw_weights(panels, path, methods[0].runs[0].groups)


def similarity(methods: Sequence[Method], path: str | Path) -> None:
    """How alike clients' data are, beside how much they weight one another in the end with the best method."""
    weighing = [method for method in methods if method.runs[0].weights]
    if not weighing:
        raise InputError(f"{methods[0].runs[0].path}: no weights are stored there, so there is nothing to draw")
    main = lead(weighing)
    run = main.runs[0]
    description = _description([main])
    alike, weight = likeness(description), affinity(run.weights, len(run.scores[0]))
    pairs = ~np.eye(len(alike), dtype=bool)
    order = np.arange(len(alike)) if description.groups is None else np.argsort(description.groups, kind="stable")
    with _figure(path, 6.4, 2.9) as figure:
        figures = zip(
            figure.subplots(1, 2),
            (alike, weight),
            ("data in common", f"{main.name}: mean weight in the last rounds"),
            strict=True,
        )
        for axis, matrix, title in figures:
            shown = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)[np.ix_(order, order)]
            image = axis.imshow(shown, cmap="cividis", vmin=0, vmax=max(float(matrix[pairs].max()), 1e-9))
            axis.set(title=title, xlabel="client")
            axis.grid(visible=False)
            _name(axis, order, description)
            figure.colorbar(image, ax=axis, shrink=0.85)
        figure.axes[0].set_ylabel("client")
        figure.suptitle(f"rank correlation of the two over all pairs: {_spearman(alike[pairs], weight[pairs])}")


def likeness(description: Description) -> np.ndarray:
    """(N, N) overlap of two clients' label distributions, times the share of classes that mean the same to both.

    Where images are turned differently nothing means the same.
    """
    shares = description.shares
    overlap: np.ndarray = np.stack([np.minimum(row, shares).sum(axis=1) for row in shares])
    if description.turns is not None:
        overlap = overlap * (description.turns[:, None] == description.turns)
    if description.relabel is not None:
        same = np.stack([(row == description.relabel).mean(axis=1) for row in description.relabel])
        overlap = overlap * same
    return overlap


def partition(methods: Sequence[Method], path: str | Path) -> None:
    """Who has which data."""
    config = methods[0].runs[0].config
    draw(_description(methods), path, f"{Path(config.dataset).name}, {config.partition}, {clients_in_words(config)}")


def gain(methods: Sequence[Method], path: str | Path) -> None:
    """Points over Local of every client, a row per method; the bar is the mean."""
    local = local_runs(methods)
    rows = []
    for method, style in zip(methods, styles_of(methods), strict=True):
        found = gain_over(method.runs, local)
        if found is not None:
            rows.append((method.name, style, found))
    if not rows:
        raise InputError("no run of local with the same seed among these runs; add one: feddwa run --algorithm local")
    with _figure(path, 4.6, 0.9 + 0.32 * len(rows)) as figure:
        axis = figure.subplots()
        for place, (_, style, found) in enumerate(rows):
            beside = place + 0.32 * _spread(found.clients)
            axis.scatter(found.clients, beside, s=11, color=style.light, alpha=0.65, linewidth=0)
            axis.vlines(found.mean, place - 0.4, place + 0.4, color="black", linewidth=1.6)
        axis.axvline(0, color="black", linewidth=0.8, linestyle="dashed")
        axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axis.invert_yaxis()
        what = "points over Local" if methods[0].measure.sign > 0 else "loss below Local's"
        axis.set(xlabel=f"{what}, a dot per client; bar: mean")


def pareto(methods: Sequence[Method], path: str | Path) -> None:
    """Accuracy, or the loss, against traffic, compute and time; the line joins what nothing cheaper or equal beats.

    Methods that went wrong are left out: one whose updates were all refused costs nothing and would be on the line. So
    are those that are not finished: they have not spent what they will.
    """
    sound = [method for method in methods if method.sound and method.finished]
    if not sound:
        run = methods[0].runs[0]
        raise InputError(f"{run.path}: {standing(run) if run.sound else run.findings[0].text}")
    looks = [style for style, method in zip(styles_of(methods), methods, strict=True) if method in sound]
    axes_of = (("bytes", "traffic", human_bytes), ("flops", "compute", human_flops), ("seconds", "time", human_seconds))
    with _figure(path, 7.0, 2.9) as figure:
        for axis, (cost, label, unit) in zip(figure.subplots(1, 3, sharey=True), axes_of, strict=True):
            points = [(method.total(cost), method.last) for method in sound]
            axis.plot(
                *zip(*front(points, sound[0].measure.sign), strict=True), color="#8a8f98", linestyle="dotted", zorder=1
            )
            for place, (x, y) in enumerate(points):
                axis.scatter(
                    x, y, s=26, color=looks[place].light, marker=MARKERS[place % len(MARKERS)], zorder=2,
                    label=sound[place].name if cost == "bytes" else None,
                )  # fmt: skip
            positive = [x for x, _ in points if x > 0]
            if positive and max(positive) > 4 * min(positive):
                axis.set_xscale("symlog" if min(x for x, _ in points) == 0 else "log", **_symlog(points))
            axis.xaxis.set_major_locator(_few(positive, any(x == 0 for x, _ in points)))
            axis.xaxis.set_minor_locator(_none())
            axis.xaxis.set_major_formatter(lambda value, _, unit=unit: unit(value) if value else "0")
            axis.set_xlabel(f"{label} in all")
        figure.axes[0].set_ylabel(sound[0].measure.head)
        figure.legend(loc="outside lower center", ncols=7, handletextpad=0.1, columnspacing=1)


def front(points: Sequence[tuple[float, float]], sign: int = 1) -> list[tuple[float, float]]:
    """The Pareto-optimal ones of (cost, value) pairs, cheapest first.

    sign: 1 where higher values are better, else -1.
    """
    best: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda each: (each[0], -sign * each[1])):
        if not best or sign * point[1] > sign * best[-1][1]:
            best.append(point)
    return best


FIGURES: dict[str, Callable[[Sequence[Method], str | Path], None]] = {
    "curves": curves,
    "weights": weights,
    "similarity": similarity,
    "partition": partition,
    "gain": gain,
    "pareto": pareto,
}


def _description(methods: Sequence[Method]) -> Description:
    run = methods[0].runs[0]
    if run.partition is None:
        raise InputError(f"{run.path}: does not tell who has which data; a run directory with partition.json does")
    return run.partition


def _spearman(one: np.ndarray, two: np.ndarray) -> str:
    from scipy.stats import spearmanr

    if np.ptp(one) == 0 or np.ptp(two) == 0:
        return "none, one of them is constant"
    return f"{spearmanr(one, two).statistic:.2f}"


def _spread(values: np.ndarray) -> np.ndarray:
    """Equal values side by side: offsets in -1..1."""
    offsets = np.zeros(len(values))
    for value in np.unique(np.round(values, 1)):
        same = np.flatnonzero(np.round(values, 1) == value)
        offsets[same] = (np.arange(len(same)) - (len(same) - 1) / 2) / max(8, len(same) / 2)
    return offsets


def _name(axis: Any, order: np.ndarray, description: Description) -> None:
    """Some clients' names, or numbers, along both sides of a map."""
    places = np.arange(0, len(order), max(1, len(order) // 5))
    names = [short(description.client_name(client)) for client in order[places]]
    axis.set_xticks(places, names, rotation=90 if description.client_names else 0, parse_math=False)
    axis.set_yticks(places, names, parse_math=False)


def _symlog(points: Sequence[tuple[float, float]]) -> dict[str, float]:
    positive = [x for x, _ in points if x > 0]
    return {"linthresh": min(positive)} if len(positive) < len(points) else {}


def _few(positive: Sequence[float], zero: bool) -> Any:
    from matplotlib.ticker import FixedLocator

    ends = [min(positive), max(positive)] if positive else []
    return FixedLocator([0.0] * zero + ends)


def _none() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
