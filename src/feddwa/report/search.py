"""What a tuning came to: as a table, in the terminal and in Markdown, and as a page that tells how it was searched."""

import io
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from feddwa.results.methods import setting_name
from feddwa.results.palette import styles
from feddwa.storage import write_whole
from feddwa.tune.results import Tuned
from feddwa.tune.search import DEFAULT, TUNED
from feddwa.tune.space import in_words

COLUMNS = ("method", "rank", "validation, default", "validation, tuned", "test, default", "test, tuned", "gain", "best")


def rows_of(methods: Sequence[Tuned]) -> list[tuple[str, ...]]:
    """A row per method, best tuned first; rank: with its defaults -> tuned."""
    before = sorted(methods, key=lambda each: -each.measure.sign * each.test[DEFAULT].mean)
    return [
        (
            each.title,
            f"{before.index(each) + 1} -> {place}",
            *(_number(each, each.validation(kind)) for kind in (DEFAULT, TUNED)),
            *(f"{each.test[kind]:{each.measure.fine}}" for kind in (DEFAULT, TUNED)),
            "" if each.gain is None else each.measure.gain(each.measure.sign * each.gain.mean),
            in_words(each.values),
        )
        for place, each in enumerate(methods, 1)
    ]


def show_search(console: Console, methods: Sequence[Tuned]) -> None:
    """The table without the winners' values (80 columns are too few for them), and an explanation of its numbers."""
    table = Table(title=_title(methods), box=box.SIMPLE_HEAD)
    for column in COLUMNS[:-1]:
        short = column.replace("validation", "valid.").replace(", ", "\n")
        table.add_column(short, justify="left" if column == "method" else "right")
    for row in rows_of(methods):
        table.add_row(*row[:-1])
    console.print(table)
    console.print(_explained(methods[0]), highlight=False)


def write_table(methods: Sequence[Tuned], path: Path) -> None:
    """Write the table in Markdown."""
    lines = [COLUMNS, ["---", *["---:"] * (len(COLUMNS) - 2), "---"], *rows_of(methods)]
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    write_whole(path, f"{_title(methods)}. {_explained(methods[0])}\n\n{rows}")


def write_search(methods: Sequence[Tuned], path: Path) -> None:
    """Write the page."""
    style = resources.files("feddwa.report").joinpath("template/report.css").read_text(encoding="utf-8")
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows_of(methods))
    parts = [
        f"<h1>{escape(_title(methods))}</h1><p>{escape(_explained(methods[0]))}</p>",
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        f"<h2>Budget against {methods[0].measure.name}</h2>{_svg(_budget(methods))}",
        *(f"<h2>{escape(each.title)}</h2><p>{escape(_searched(each))}</p>{_svg(_slices(each))}" for each in methods),
    ]
    write_whole(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>feddwa tune</title><style>{style}\n'
        "main { max-width: 75rem; margin: auto; padding: 1rem } svg { max-width: 100%; height: auto }</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n",
    )


def _title(methods: Sequence[Tuned]) -> str:
    config = next(iter(methods[0].runs[TUNED].values())).config
    seeds = ", ".join(map(str, methods[0].runs[TUNED]))
    return f"{setting_name(config)}, {config.rounds} rounds, seeds {seeds}"


def _explained(first: Tuned) -> str:
    what = "Accuracy in percent" if first.measure.sign > 0 else "Loss, lower is better"
    return (
        f"{what}, mean over clients, of the models after the last round. Validation: of the search, by which the "
        "winner was chosen. Test: on fresh seeds, trained on all training data, mean ± standard deviation over seeds. "
        "Rank: by test, with defaults -> tuned."
    )


def _searched(each: Tuned) -> str:
    trials = each.found["trials"]
    failed, stopped = (sum(bool(trial[kind]) for trial in trials) for kind in ("failed", "stopped"))
    space = "; ".join(f"{key} {text}" for key, text in each.found["space"].items())
    more = f", {stopped} stopped early" * bool(stopped) + f", {failed} failed" * bool(failed)
    return (
        f"{len(trials)} trials{more}, {sum(trial['gradients'] for trial in trials):.3g} gradients of single samples. "
        f"Searched: {space}. Best: {in_words(each.values)}."
    )


def _budget(methods: Sequence[Tuned]) -> Figure:
    """Best validation score so far over the gradients spent, a line per method."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for each, style in zip(methods, styles([each.found["algorithm"] for each in methods]), strict=True):
        if each.so_far:
            spent, best = zip(*each.so_far, strict=True)
            axes.step(spent, best, where="post", label=each.title, color=style.light, linestyle=style.dash)
    axes.set_xlabel("gradients of single samples, all trials so far")
    axes.set_ylabel(f"best validation {methods[0].measure.name} so far")
    axes.legend(fontsize=8, ncols=2)
    return figure


def _slices(each: Tuned) -> Figure:
    """A picture per hyper-parameter: values against validation scores; and how much each of them matters."""
    keys, importance = list(each.found["space"]), each.found["importance"]
    figure = Figure(figsize=(3 * (len(keys) + bool(importance)), 2.6), layout="constrained")
    panels = figure.subplots(1, len(keys) + bool(importance), squeeze=False)[0]
    for axes, key in zip(panels, keys, strict=False):
        points = [
            (trial["values"][key], list(trial["curve"].values())[-1])
            for trial in each.found["trials"]
            if key in trial["values"] and trial["curve"] and not trial["failed"]
        ]
        words = any(isinstance(value, str | bool) for value, _ in points)
        axes.scatter([str(value) if words else value for value, _ in points], [score for _, score in points], s=12)
        axes.set_xscale("log" if each.found["space"][key].endswith(":log") else axes.get_xscale())
        axes.set_xlabel(key)
    panels[0].set_ylabel(f"validation {each.measure.name}")
    if importance:
        panels[-1].barh(list(importance), list(importance.values()))
        panels[-1].set_xlabel("importance")
    return figure


def _svg(figure: Figure) -> str:
    """A figure as inline SVG; equal figures give equal text."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "feddwa"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def _number(each: Tuned, value: float | None) -> str:
    return "not to the end" if value is None else each.measure.number(value)
