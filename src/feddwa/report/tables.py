"""Results as tables in the terminal, and the paths of what was written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from feddwa.experiment import Result
from feddwa.findings import Finding
from feddwa.report.terminal import show_finding
from feddwa.report.units import human_bytes, human_seconds
from feddwa.report.weights import Panel, draw_weights, terminal_weights

SHOWN_ROUNDS = (1, 5)  # besides the last: how early a method finds its partners
FIELDS = ("algorithm", "last", "best (after round)", "over Local", "traffic", "time")


def show_results(
    console: Console, results: Mapping[str, Result], findings: Mapping[str, Sequence[Finding]] | None = None
) -> None:
    """What went wrong (`findings` of each run), then accuracy, gain over Local, traffic and time of every run."""
    found = findings or {}
    for name in results:
        for finding in found.get(name, ()):
            show_finding(console, finding, name)
    first = next(iter(results.values())).summary
    first = {**first, "dataset": Path(first["dataset"]).name}
    table = Table(title="{dataset}, {partition}, {clients} clients, {rounds} rounds, seed {seed}".format(**first))
    for column in FIELDS:
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for name, result in results.items():
        table.add_row(name, *_cells(result.summary, _over_local(name, results, found)))
    console.print(table)
    console.print(
        "Accuracy in percent: each client's personalised model on its own test data,\n"
        "mean over all clients. Traffic: up + down, per participating client and round.",
        highlight=False,
    )
    for name, result in results.items():
        for note in _notes(result.summary):
            console.print(f"{name}: {note}", highlight=False)


def _over_local(name: str, results: Mapping[str, Result], findings: Mapping[str, Sequence[Finding]]) -> str:
    """Points over Local; nothing where one of the two went wrong, for then the difference means nothing."""
    if name == "local" or "local" not in results:
        return ""
    if not (_sound(findings.get(name, ())) and _sound(findings.get("local", ()))):
        return "-"
    own, local = (results[each].summary["accuracy"]["last"] for each in (name, "local"))
    return "" if own is None or local is None else f"{own - local:+.2f}"


def _sound(findings: Sequence[Finding]) -> bool:
    return all(finding.level != "error" for finding in findings)


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """What of a run the table does not tell."""
    honest = summary["accuracy"]["series"].get("before.honest")
    if honest is None or honest["last"] is None:
        return []
    return [f"honest clients alone: last {honest['last']:.2f}, best {honest['best']:.2f}"]


def _cells(summary: Mapping[str, Any], over_local: str) -> tuple[str, ...]:
    accuracy = summary["accuracy"]
    traffic = human_bytes(summary["bytes_up_per_client_round"] + summary["bytes_down_per_client_round"])
    time = human_seconds(summary["seconds"])
    if accuracy["last"] is None:  # no classes
        return f"loss {summary['loss']['last']}", f"loss {summary['loss']['best']}", "", traffic, time
    best = f"{accuracy['best']:.2f} ({accuracy['best_round']})"
    return f"{accuracy['last']:.2f}", best, over_local, traffic, time


def best(results: Mapping[str, Result], findings: Mapping[str, Sequence[Finding]] | None = None) -> str:
    """The name of the run with the highest accuracy after the last round, before those that went wrong."""

    def rank(name: str) -> tuple[bool, float]:
        last = results[name].summary["accuracy"]["last"]
        return _sound((findings or {}).get(name, ())), -1.0 if last is None else last

    return max(results, key=rank)


def show_weights(
    console: Console,
    results: Mapping[str, Result],
    folder: Path,
    findings: Mapping[str, Sequence[Finding]] | None = None,
) -> None:
    """Draw the weights in a file, and in the terminal those of the best run; list what was written."""
    told = best(results, findings)
    panels = {name: _panels(name, result, early=name == told) for name, result in results.items() if result.weights}
    if panels:
        groups = next(iter(results.values())).partition.groups
        draw_weights([panel for own in panels.values() for panel in own], folder / "weights.png", groups)
    if told in panels:
        last = panels[told][-1]
        small = terminal_weights(last, console.encoding)
        if small is not None:
            console.print(f"\nMixing weights ({last.title}; columns in the order of rows):", highlight=False)
            console.print(small)
    written = [f"{result.path}/" for result in results.values()] + [str(folder / "weights.png")] * bool(panels)
    console.print("\nWritten:", *(f"\n  {path}" for path in written), highlight=False, soft_wrap=True, sep="")


def _panels(name: str, result: Result, early: bool) -> list[Panel]:
    """The weights of the last round, and of some before it."""
    rounds = [number for number in SHOWN_ROUNDS if early and number < len(result.weights)] + [len(result.weights)]
    chosen = ((number, *result.weights[number - 1]) for number in rounds)
    names = result.partition.client_names
    return [Panel(f"{name}, round {number}", weights, cohort, names) for number, cohort, weights in chosen]
