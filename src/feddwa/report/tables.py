"""Results as tables in the terminal, and the paths of what was written."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from feddwa import doctor
from feddwa.report.terminal import show_finding
from feddwa.report.units import human_bytes, human_seconds
from feddwa.results.compare import client_gains
from feddwa.results.methods import setting_name
from feddwa.results.plot import Panel, draw_weights, terminal_weights
from feddwa.results.record import Record

SHOWN_ROUNDS = (1, 5)  # besides the last: how early a method finds its partners
FIELDS = ("algorithm", "last", "best (after round)", "over Local", "traffic", "time")


def show_results(console: Console, runs: Mapping[str, Record]) -> None:
    """What went wrong, then accuracy, gain over Local, traffic and time of every run; all of one seed."""
    for name, run in runs.items():
        for finding in doctor.told(run):
            show_finding(console, finding, name)
    config = next(iter(runs.values())).config
    table = Table(title=f"{setting_name(config)}, {config.rounds} rounds, seed {config.seed}")
    for column in FIELDS:
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for name, run in runs.items():
        table.add_row(name, *_cells(run, runs.get("local")))
    console.print(table)
    console.print(
        "Accuracy in percent: each client's personalised model on its own test data,\n"
        "mean over all clients. Traffic: up + down, per participating client and round.",
        highlight=False,
    )
    for name, run in runs.items():
        if "before.honest" in run.series:
            honest = run.series["before.honest"]
            console.print(
                f"{name}: honest clients alone: last {honest[-1]:.2f}, best {honest.max():.2f}", highlight=False
            )


def _cells(run: Record, local: Record | None) -> tuple[str, ...]:
    best, after = run.best
    gain = client_gains(run, local if local is not None and local.sound else None)
    over = "" if local in (None, run) else "-" if gain is None else f"{gain.mean():+.2f}"
    return f"{run.last:.2f}", f"{best:.2f} ({after})", over, human_bytes(round(run.traffic)), human_seconds(run.seconds)


def show_weights(console: Console, runs: Mapping[str, Record], folder: Path) -> None:
    """Draw the weights in a file, and in the terminal those of the best run; list what was written."""
    best = max(runs, key=lambda name: (runs[name].sound, runs[name].last))
    panels = {name: _panels(name, run, early=name == best) for name, run in runs.items() if run.weights}
    if panels:
        drawn = [panel for own in panels.values() for panel in own]
        draw_weights(drawn, folder / "weights.png", next(iter(runs.values())).groups)
    if best in panels:
        last = panels[best][-1]
        small = terminal_weights(last, console.encoding)
        if small is not None:
            console.print(f"\nMixing weights ({last.title}; columns in the order of rows):", highlight=False)
            console.print(small)
    written = [f"{run.path}/" for run in runs.values()] + [str(folder / "weights.png")] * bool(panels)
    console.print("\nWritten:", *(f"\n  {path}" for path in written), highlight=False, soft_wrap=True, sep="")


def _panels(name: str, run: Record, early: bool) -> list[Panel]:
    """The weights of the last round, and of some before it."""
    numbers = [number for number in SHOWN_ROUNDS if early and number < len(run.weights)] + [len(run.weights)]
    names = () if run.partition is None else run.partition.client_names
    chosen = (run.weights[number - 1] for number in numbers)
    return [Panel(f"{name}, round {each.round}", each.matrix, each.cohort, names) for each in chosen]
