"""Results as terminal tables, and the paths of written files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from feddwa import doctor
from feddwa.config import RunConfig
from feddwa.errors import counted
from feddwa.report.facts import attacked
from feddwa.report.terminal import show_finding
from feddwa.results import newcomers
from feddwa.results.compare import (
    client_gains,
    lead_in_words,
    over_seeds,
    over_whom,
    reference,
    seeds_lacking,
    unequal_seeds,
)
from feddwa.results.fairness import fairness
from feddwa.results.findings import Finding
from feddwa.results.methods import Method, setting_name
from feddwa.results.plot import Panel, draw_weights, terminal_weights
from feddwa.results.record import Record
from feddwa.results.units import human_bytes, human_seconds

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
    more += f"\n{held_out(config)}" if config.validation else ""
    console.print(
        f"{what}: each client's personalised model on its own test data,\n"
        f"mean over all clients. Traffic: up + down, per participating client and round.{more}",
        highlight=False,
    )
    for line in (*_fairness(runs), *_by_class([Method(name, [run]) for name, run in runs.items()])):
        console.print(line, highlight=False, markup=False)
    _show_newcomers(console, {name: [run] for name, run in runs.items()})
    for line in attacked({name: run.config for name, run in runs.items()}):
        console.print(line, highlight=False, markup=False)


def _fairness(runs: Mapping[str, Record]) -> Iterator[str]:
    """How unequal clients are served, a line for every run in which somebody was evaluated."""
    for name, run in runs.items():
        found = fairness(run.final, run.measure.sign, client_gains(run, runs.get("local")))
        if found is not None:
            alone = "" if found.below_local is None else f", {found.below_local:.0f} % of clients below Local"
            worst, std = map(run.measure.number, (found.worst_tenth, found.std))
            yield f"{name}: worst tenth of clients {worst}, standard deviation {std}{alone}"


def _by_class(methods: Sequence[Method]) -> Iterator[str]:
    """Best and worst classes, a line per method and per-class metric."""
    for method in methods:
        for metric, values in method.by_class.items():
            if np.isfinite(values).any():
                ends = {"lowest": int(np.nanargmin(values)), "highest": int(np.nanargmax(values))}
                told = (f"{end} {values[c]:.2f} ({method.runs[0].class_name(c)})" for end, c in ends.items())
                yield f"{method.name}: {metric}: {', '.join(told)}"


def show_seeds(console: Console, methods: Sequence[Method]) -> None:
    """The same of methods that were run with several seeds: means, spreads and paired intervals."""
    for method in methods:
        told: dict[Finding, list[str]] = {}
        for run in method.runs:
            for finding in doctor.told(run):
                told.setdefault(finding, []).append(str(run.seed))
        for finding, own in told.items():
            show_finding(console, finding, f"{method.name}, seed{'s' * (len(own) > 1)} {', '.join(own)}")
    config, measure, base = methods[0].runs[0].config, methods[0].measure, reference(methods)
    lacking, count = seeds_lacking(methods), len({run.seed for method in methods for run in method.runs})
    seeds = f"{count} seed{'s' * (count > 1)}"
    table = Table(title=f"{setting_name(config)}, {config.rounds} rounds, {seeds}")
    over = [over_whom(base)] if len(methods) > 1 else []
    for column in ("algorithm", "last", *over, "n", "traffic", "time"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for method in methods:
        table.add_row(
            method.name,
            f"{over_seeds(method.runs):{measure.fine}}",
            *(lead_in_words(method, base) for _ in over),
            f"{len(method.runs)}{'*' * (method.name in lacking)}",
            human_bytes(round(method.traffic)),
            human_seconds(float(np.mean([run.seconds for run in method.runs]))),
        )
    console.print(table)
    what = "Accuracy in percent" if measure.sign > 0 else "Loss, lower is better"
    ends = [f"\n{each[0].upper()}{each[1:]}: seed by seed, ± half of the 95 % confidence interval." for each in over]
    console.print(
        f"{what}: each client's personalised model on its own test data,\n"
        "mean over all clients, then mean ± standard deviation over n seeds.",
        *ends,
        "\nTraffic: up + down, per participating client and round.",
        sep="",
        highlight=False,
    )
    _show_metrics(console, methods)
    for line in _by_class(methods):
        console.print(line, highlight=False, markup=False)
    _show_newcomers(console, {method.name: method.runs for method in methods})
    if lacking:
        console.print(unequal_seeds(methods), highlight=False)
    for line in attacked({method.name: method.runs[0].config for method in methods}):
        console.print(line, highlight=False, markup=False)


def _show_newcomers(console: Console, runs: Mapping[str, Sequence[Record]]) -> None:
    """Scores of held-out clients and how each method serves them; empty without held-out clients."""
    runs = {name: own for name, own in runs.items() if newcomers.served(own)}
    if not runs:
        return
    first = next(iter(runs.values()))[0]
    table = Table(title=f"{counted(len(next(iter(first.newcomers.values()))), 'held-out client')}")
    for column in ("algorithm", *newcomers.HEADS.values()):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for name, own in runs.items():
        spreads = newcomers.over_seeds(own)
        table.add_row(name, *(f"{spreads[when]:{first.measure.fine}}" for when in newcomers.HEADS))
    console.print(table)
    console.print(newcomers.words(first.measure), highlight=False)
    for name, own in runs.items():
        console.print(f"{name}: {newcomers.ways(own)}", highlight=False)


def _show_metrics(console: Console, methods: Sequence[Method]) -> None:
    """A separate table of the further metrics, as means and spreads need a terminal's width."""
    names = [name for name in methods[0].metrics if all(name in method.metrics for method in methods)]
    if not names:
        return
    config, measure, table = methods[0].runs[0].config, methods[0].measure, Table()
    for column in ("algorithm", *names):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for method in methods:
        values = (f"{over_seeds(method.runs, name):{measure.format_of(name)}}" for name in names)
        table.add_row(method.name, *values)
    console.print(table)
    if config.validation:
        console.print(held_out(config), highlight=False)


def held_out(config: RunConfig) -> str:
    """On what validation is."""
    return f"Validation: on {100 * config.validation:g} % of each client's training data, held out."


def _cells(run: Record, local: Record | None, metrics: Sequence[str]) -> tuple[str, ...]:
    (best, after), measure = run.best, run.measure
    gain = client_gains(run, local if local is not None and local.sound else None)
    over = "" if local in (None, run) else "-" if gain is None else measure.gain(gain.mean())
    own = (f"{run.metrics[name][-1]:{measure.format_of(name)}}" for name in metrics)
    costs = human_bytes(round(run.traffic)), human_seconds(run.seconds)
    return measure.number(run.last), f"{measure.number(best)} ({after})", over, *own, *costs


def show_weights(console: Console, runs: Mapping[str, Record], folder: Path, written: Sequence[str] = ()) -> None:
    """Draw the weights in a file, and in the terminal those of the best run; list what was written.

    written: directories, where they are others than those of `runs`.
    """
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
    paths = [*(written or (f"{run.path}/" for run in runs.values())), *[str(folder / "weights.png")] * bool(panels)]
    console.print("\nWritten:", *(f"\n  {path}" for path in paths), highlight=False, soft_wrap=True, sep="")


def _panels(name: str, run: Record, early: bool) -> list[Panel]:
    """The weights of the last round, and of some before it."""
    numbers = [number for number in SHOWN_ROUNDS if early and number < len(run.weights)] + [len(run.weights)]
    names = () if run.partition is None else run.partition.client_names
    chosen = (run.weights[number - 1] for number in numbers)
    return [Panel(f"{name}, round {each.round}", each.matrix, each.cohort, names) for each in chosen]
