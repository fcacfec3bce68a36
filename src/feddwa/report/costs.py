"""The report's table: accuracy and cost of every method."""

from collections.abc import Sequence
from html import escape

import numpy as np

from feddwa.report import facts
from feddwa.report.markup import table
from feddwa.results.compare import (
    Spread,
    lead_in_words,
    over_seeds,
    over_whom,
    reference,
    seeds_lacking,
    unequal_seeds,
)
from feddwa.results.fairness import fairness
from feddwa.results.methods import Method
from feddwa.results.units import human_bytes, human_flops, human_seconds

COSTS = ("up + down<br>a client, a round", "traffic<br>in all", "compute<br>in all", "time")


def cost_table(methods: Sequence[Method]) -> str:
    """A row per method, and an explanation of the columns."""
    measure = methods[0].measure
    metrics = [name for name in methods[0].metrics if all(name in method.metrics for method in methods)]
    several, base = any(len(method.runs) > 1 for method in methods), reference(methods)
    gained = f"{escape(over_whom(base))}<br>± 95 % CI" if several else measure.gains.replace(", ", ",<br>")
    gains = (gained, *(["n"] if several else []), "clients<br>that gained")
    best = f"best{', %' if measure.unit else ''}<br>(after round)"
    heads = (
        "method",
        measure.head,
        best,
        *gains,
        "worst tenth<br>of clients",
        "std over<br>clients",
        *map(escape, metrics),
        *COSTS,
    )
    rows = [_cells(method, methods, metrics, several) for method in methods]
    note = (
        "± is the standard deviation over n seeds. CI: confidence interval of the mean difference, seed by seed. "
        f"{escape(unequal_seeds(methods))} "
    )
    note = note if several else ""
    return (
        f"{table(heads, rows)}"
        f'<p class="note">{note}Best: the {"highest" if measure.sign > 0 else "lowest"} mean over clients and the '
        "round after which it was reached. "
        "Picking the best round needs test data, so compare by the last.</p>"
    )


def _cells(method: Method, methods: Sequence[Method], metrics: Sequence[str], several: bool) -> list[str]:
    measure = method.measure
    best, rounds = Spread({run.seed: run.best[0] for run in method.runs}), [str(run.best[1]) for run in method.runs]
    gain = facts.all_gains(method, methods)
    over = "" if gain is None else measure.gain(gain.mean)
    count = f"{len(method.runs)}{'*' * (method.name in seeds_lacking(methods))}"
    return [
        _named(method),
        f"{over_seeds(method.runs):{measure.fine}}",
        f"{measure.number(best.mean)} ({', '.join(rounds)})",
        *([lead_in_words(method, reference(methods)), count] if several else [over]),
        "" if gain is None else f"{gain.winners} of {len(gain.clients)}",
        *_over_clients(method),
        *(f"{method.metrics[name][-1]:{measure.format_of(name)}}" for name in metrics),
        human_bytes(round(method.traffic)),
        human_bytes(round(method.total("bytes"))),
        human_flops(method.total("flops")),
        human_seconds(method.total("seconds")),
    ]


def _named(method: Method) -> str:
    """The name; under it what is the matter, where something is."""
    mark = method.standing if method.sound else "went wrong"
    return f'{escape(method.name)}<br><small class="mark">{escape(mark)}</small>' if mark else escape(method.name)


def _over_clients(method: Method) -> tuple[str, str]:
    """The worst tenth and the standard deviation over clients, mean over seeds."""
    found = [each for run in method.runs if (each := fairness(run.final, run.measure.sign)) is not None]
    if not found:
        return "", ""
    worst, std = (float(np.mean([getattr(each, name) for each in found])) for name in ("worst_tenth", "std"))
    return method.measure.number(worst), method.measure.number(std)
