"""Results as tables in the terminal, and the paths of what was written."""

from collections.abc import Mapping, Sequence
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


def show_results(console: Console, runs: Mapping[str, Record]) -> None:
    """What went wrong, then accuracy, gain over Local, traffic and time of every run; all of one seed."""
    for name, run in runs.items():
        for finding in doctor.told(run):
            show_finding(console, finding, name)
    config = next(iter(runs.values())).config
    table = Table(title=f"{setting_name(config)}, {config.rounds} rounds, seed {config.seed}")
    first = next(iter(runs.values()))
    measured = [name for name in first.metrics if all(name in run.metrics for run in runs.values())]
    over = "over Local" if first.measure.sign > 0 else "below Local"
    for column in ("algorithm", "last", "best (after round)", over, *measured, "traffic", "time"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for name, run in runs.items():
        table.add_row(name, *_cells(run, runs.get("local"), measured))
    console.print(table)
    what = "Accuracy in percent" if first.measure.sign > 0 else "Loss, lower is better"
    more = f" Last {' and '.join(measured)}: likewise." if measured else ""
    if config.validation:
        more += f"\nValidation: on {100 * config.validation:g} % of each client's training data, held out."
    console.print(
        f"{what}: each client's personalised model on its own test data,\n"
        f"mean over all clients. Traffic: up + down, per participating client and round.{more}",
        highlight=False,
    )
    for name, run in runs.items():
        if "before.honest" in run.series:
            honest = run.series["before.honest"]
            console.print(
                f"{name}: honest clients alone: last {honest[-1]:.2f}, best {honest.max():.2f}", highlight=False
            )


def _cells(run: Record, local: Record | None, metrics: Sequence[str]) -> tuple[str, ...]:
    (best, after), measure = run.best, run.measure
    gain = client_gains(run, local if local is not None and local.sound else None)
    over = "" if local in (None, run) else "-" if gain is None else measure.gain(gain.mean())
    own = (f"{run.metrics[name][-1]:.4g}" for name in metrics)
    costs = human_bytes(round(run.traffic)), human_seconds(run.seconds)
    return measure.number(run.last), f"{measure.number(best)} ({after})", over, *own, *costs


def show_weights(console: Console, runs: Mapping[str, Record], folder: Path) -> None:
    """Draw the weights in a file, and in the terminal those of the best run; list what was written."""
    best = max(runs, key=lambda name: (runs[name].sound, runs[name].measure.sign * runs[name].last))
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
