"""Results as tables in the terminal, and the paths of what was written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from feddwa.experiment import Result
from feddwa.report.units import human_bytes, human_seconds
from feddwa.report.weights import Panel, draw_weights, terminal_weights

SHOWN_ROUNDS = (1, 5)  # besides the last: how early a method finds its partners
FIELDS = ("algorithm", "last", "best (after round)", "over Local", "traffic", "time")


def show_results(console: Console, results: Mapping[str, Result]) -> None:
    """Accuracy, gain over Local, traffic and time of every run."""
    first = next(iter(results.values())).summary
    first = {**first, "dataset": Path(first["dataset"]).name}
    table = Table(title="{dataset}, {partition}, {clients} clients, {rounds} rounds, seed {seed}".format(**first))
    for column in FIELDS:
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    local = results["local"].summary["accuracy"]["last"] if "local" in results else None
    for name, result in results.items():
        table.add_row(name, *_cells(result.summary, None if name == "local" else local))
    console.print(table)
    console.print(
        "Accuracy in percent: each client's personalised model on its own test data,\n"
        "mean over all clients. Traffic: up + down, per participating client and round.",
        highlight=False,
    )
    for name, result in results.items():
        for note in _notes(result.summary):
            console.print(f"{name}: {note}", highlight=False)


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """What of a run the table does not tell."""
    notes, honest = [], summary["accuracy"]["series"].get("before.honest")
    if summary.get("missing"):
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(summary["missing"].items()))
        notes.append(f"updates that did not count: {reasons}")
    if honest is not None and honest["last"] is not None:
        notes.append(f"honest clients alone: last {honest['last']:.2f}, best {honest['best']:.2f}")
    return notes


def _cells(summary: Mapping[str, Any], local: float | None) -> tuple[str, ...]:
    accuracy = summary["accuracy"]
    traffic = human_bytes(summary["bytes_up_per_client_round"] + summary["bytes_down_per_client_round"])
    time = human_seconds(summary["seconds"])
    if accuracy["last"] is None:  # no classes
        return f"loss {summary['loss']['last']}", f"loss {summary['loss']['best']}", "", traffic, time
    best = f"{accuracy['best']:.2f} ({accuracy['best_round'] - 1})"
    return f"{accuracy['last']:.2f}", best, "" if local is None else f"{accuracy['last'] - local:+.2f}", traffic, time


def show_weights(console: Console, results: Mapping[str, Result], folder: Path) -> None:
    """Draw the weights in a file, and in the terminal those of FedDWA or the first run; list what was written."""
    told = "feddwa" if "feddwa" in results else next(iter(results))
    panels = {name: _panels(name, result, early=name == told) for name, result in results.items() if result.weights}
    if panels:
        groups = next(iter(results.values())).partition.groups
        draw_weights([panel for own in panels.values() for panel in own], folder / "weights.png", groups)
    if told in panels:
        last = panels[told][-1]
        small = terminal_weights(last, console.encoding)
        if small is not None:
            console.print(f"\nWho listens to whom ({last.title}; columns in the order of rows):", highlight=False)
            console.print(small)
    written = [f"{result.path}/" for result in results.values()] + [str(folder / "weights.png")] * bool(panels)
    console.print("\nWritten:", *(f"\n  {path}" for path in written), highlight=False, soft_wrap=True, sep="")


def _panels(name: str, result: Result, early: bool) -> list[Panel]:
    """The weights of the last round, and of some before it."""
    rounds = [number for number in SHOWN_ROUNDS if early and number < len(result.weights)] + [len(result.weights)]
    chosen = ((number, *result.weights[number - 1]) for number in rounds)
    names = result.partition.client_names
    return [Panel(f"{name}, round {number}", weights, cohort, names) for number, cohort, weights in chosen]
