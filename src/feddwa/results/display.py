"""Display of finished runs in Python: text, and HTML for notebooks with curves and a map.

Runs come as methods: name -> seed -> run. The HTML needs no network and takes its colours from the page.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from feddwa.data.partition import Partition
from feddwa.results.compare import Spread, difference, interval
from feddwa.results.findings import Finding, failure, went_wrong
from feddwa.results.measure import ACCURACY, LOSS, Measure
from feddwa.results.palette import Style, styles
from feddwa.results.plot import Panel
from feddwa.results.units import human_bytes, human_seconds
from feddwa.results.weights import Weights

WIDTH, HEIGHT, MARGIN = 320, 150, 34  # of the curves, in pixels; MARGIN: for the axis labels
LARGEST = 150  # pixels of the map; with more clients, one per client
BLUE = (0, 114, 178)
DASHES = {"solid": "none", "dashed": "6 3", "dotted": "2 3"}


class Finished(Protocol):
    """The part of a run that is displayed."""

    @property
    def summary(self) -> dict[str, Any]:
        """As in record.json."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""

    @property
    def weights(self) -> Sequence[Weights]:
        """P of every round."""

    @property
    def partition(self) -> Partition:
        """The division of the data."""


Methods = Mapping[str, Mapping[int, Finished]]


class Shown(NamedTuple):
    """The common content of text and HTML."""

    title: str
    head: list[str]  # column names
    rows: list[list[str]]  # one row per method, name first
    findings: list[str]  # failures and warnings
    words: str  # meaning of the numbers


def shown(methods: Methods) -> Shown:
    """Some methods as a table; all of one setting, each with one run or more."""
    first = next(iter(next(iter(methods.values())).values()))
    measure, several = measure_of(first), any(len(runs) > 1 for runs in methods.values())
    base = _local(methods) if len(methods) > 1 else None
    over = [] if base is None else ["over Local" if measure is ACCURACY else "below Local"]
    head = ["algorithm", f"last {measure.name}", *([] if several else ["best (after round)"]), *over, "traffic", "time"]
    rows = [_row(name, runs, measure, several, base) for name, runs in methods.items()]
    wrong = [
        f"{finding.level}: {name}, seed {seed}: {finding.text}"
        for name, runs in methods.items()
        for seed, run in runs.items()
        for finding in _findings(run)
    ]
    unit = "percent" if measure is ACCURACY else "the loss, lower is better"
    spread = ", then mean ± standard deviation over seeds" if several else ""
    words = f"In {unit}: each client's model on its own test data, mean over clients{spread}."
    return Shown(_title(methods), head, rows, wrong, f"{words} Traffic: of a client in a round, up and down.")


def text(methods: Methods, path: str | None = None) -> str:
    """For the interpreter: title, table, findings, path."""
    told = shown(methods)
    columns = [max(map(len, column)) for column in zip(told.head, *told.rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, columns, strict=True)) for row in (told.head, *told.rows))
    ]
    return "\n".join([told.title, *lines, *told.findings, *([f"in {path}"] if path else [])])


def html(methods: Methods, path: str | None = None) -> str:
    """For a notebook: the same with the curves over the rounds, and the weights of the best method's last round."""
    told = shown(methods)
    looks = dict(zip(methods, styles([_algorithm(runs) for runs in methods.values()]), strict=True))
    cell = 'style="text-align:{};padding:2px 10px"'
    marks = {
        name: f'<span style="color:{look.light}" aria-hidden="true">&#9632;</span> ' for name, look in looks.items()
    }
    head = "".join(
        f"<th {cell.format('right' if place else 'left')}>{name}</th>" for place, name in enumerate(told.head)
    )
    rows = "".join(
        "<tr>"
        + f"<td {cell.format('left')}>{marks[row[0]]}{escape(row[0])}</td>"
        + "".join(f"<td {cell.format('right')}>{escape(each)}</td>" for each in row[1:])
        + "</tr>"
        for row in told.rows
    )
    wrong = "".join(
        f'<p style="border-left:4px solid #d55e00;padding-left:8px">{escape(each)}</p>' for each in told.findings
    )
    where = f" In <code>{escape(path)}</code>." if path else ""
    return (
        f'<div class="feddwa"><p><b>{escape(told.title)}</b></p>{wrong}'
        f'<table style="color:inherit"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        '<div style="display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start">'
        f"{_curves(methods, looks)}{_map(methods)}</div>"
        f'<p style="opacity:.75;font-size:smaller">{escape(told.words)}{where}</p></div>'
    )


def measure_of(run: Finished) -> Measure:
    """The measure by which the run's models are compared."""
    return LOSS if run.summary["accuracy"]["best"] is None else ACCURACY


def curve(run: Finished) -> tuple[list[int], list[float]]:
    """(finished rounds, accuracy in percent or loss) of all evaluations, mean over all clients."""
    accuracy = measure_of(run) is ACCURACY
    values = ((line["round"] - 1, line["before"]["all"] if accuracy else line["loss_before"]) for line in run.metrics)
    known = [(number, value) for number, value in values if value is not None]
    return [number for number, _ in known], [value for _, value in known]


def last_panel(name: str, run: Finished) -> Panel | None:
    """P of the last round, sorted by groups; None if no round has weights."""
    if not len(run.weights):
        return None
    last = run.weights[-1]
    panel = Panel(f"{name}, round {last.round}", last.matrix, last.cohort, run.partition.client_names)
    return panel.by_group(run.partition.groups)


def best_method(methods: Methods) -> str | None:
    """The method with the best final value, without failed ones; None if there is none."""
    lasts = {name: _last(runs) for name, runs in methods.items() if not any(map(_failed, runs.values()))}
    sign = measure_of(next(iter(next(iter(methods.values())).values()))).sign
    known = {name: sign * spread.mean for name, spread in lasts.items() if spread is not None}
    return max(known, key=lambda name: known[name]) if known else None


def _row(
    name: str, runs: Mapping[int, Finished], measure: Measure, several: bool, base: Mapping[int, Finished] | None
) -> list[str]:
    last, (first, *_) = _last(runs), runs.values()
    cells = [name, "diverged" if last is None else f"{last:{measure.fine}}"]
    if not several:
        own = first.summary[measure.name]
        cells.append("-" if own["best"] is None else f"{measure.number(own['best'])} ({own['best_round']})")
    if base is not None:
        cells.append("" if runs is base else _over(runs, base, measure))
    ways = ("bytes_up_per_client_round", "bytes_down_per_client_round")
    traffic = np.mean([sum(run.summary[way] for way in ways) for run in runs.values()])
    seconds = np.mean([run.summary["seconds"] / run.summary.get("lockstep", 1) for run in runs.values()])
    return [*cells, human_bytes(round(float(traffic))), human_seconds(float(seconds))]


def _over(runs: Mapping[int, Finished], base: Mapping[int, Finished], measure: Measure) -> str:
    """The lead over Local, seed by seed; "-" if one of them failed or there is no common seed."""
    ours, theirs = ({seed: run for seed, run in each.items() if not _failed(run)} for each in (runs, base))
    last, other = _last(ours), _last(theirs)
    apart = None if last is None or other is None else difference(last, other)
    if apart is None:
        return "-"
    apart = Spread({seed: measure.sign * value for seed, value in apart.values.items()})
    ends = interval(apart)
    told = "" if ends is None else f" ({measure.gain(ends.low)} to {measure.gain(ends.high)})"
    return f"{measure.gain(apart.mean)}{told}"


def _last(runs: Mapping[int, Finished]) -> Spread | None:
    """Values by seed; None if a seed has no finite value."""
    values = {seed: run.summary[measure_of(run).name]["last"] for seed, run in runs.items()}
    return None if not values or None in values.values() else Spread(values)


def _local(methods: Methods) -> Mapping[int, Finished] | None:
    """The runs of Local, if there is exactly one."""
    found = [runs for runs in methods.values() if _algorithm(runs) == "local"]
    return found[0] if len(found) == 1 else None


def _algorithm(runs: Mapping[int, Finished]) -> str:
    return str(next(iter(runs.values())).summary["algorithm"])


def _failed(run: Finished) -> bool:
    return failure(run.metrics) is not None


def _findings(run: Finished) -> list[Finding]:
    names = run.partition.client_names
    return went_wrong(run.metrics, name=(lambda client: names[client]) if names else str)


def _title(methods: Methods) -> str:
    runs = [run for own in methods.values() for run in own.values()]
    told, seeds = runs[0].summary, sorted({seed for own in methods.values() for seed in own})
    setting = f"{Path(str(told['dataset'])).name}, {told['partition']}, {told['clients']} clients"
    rounds = max(run.summary["rounds"] for run in runs)
    return f"{setting}, {rounds} rounds, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _curves(methods: Methods, looks: Mapping[str, Style]) -> str:
    """One line per run."""
    lines = [(name, *curve(run)) for name, runs in methods.items() for run in runs.values()]
    values = [value for _, _, own in lines for value in own]
    if not values:
        return ""
    low, high, rounds = min(values), max(values), max(max(own, default=0) for _, own, _ in lines)
    span, width, height = (high - low) or 1.0, WIDTH - MARGIN - 6, HEIGHT - 32
    measure = measure_of(next(iter(next(iter(methods.values())).values())))
    drawn = "".join(
        f'<polyline fill="none" stroke="{looks[name].light}" stroke-width="1.8" '
        f'stroke-dasharray="{DASHES[looks[name].dash]}" points="'
        + " ".join(
            f"{MARGIN + width * x / max(rounds, 1):.1f},{8 + height * (high - y) / span:.1f}"
            for x, y in zip(own, ys, strict=True)
        )
        + '"/>'
        for name, own, ys in lines
    )
    words = [
        (MARGIN - 4, 12, "end", f"{high:.3g}"), (MARGIN - 4, 8 + height, "end", f"{low:.3g}"),
        (MARGIN, HEIGHT - 8, "start", "0"), (WIDTH - 6, HEIGHT - 8, "end", f"{rounds} rounds"),
        (MARGIN + width / 2, HEIGHT - 8, "middle", measure.head),
    ]  # fmt: skip
    labels = "".join(f'<text x="{x}" y="{y}" text-anchor="{side}">{escape(word)}</text>' for x, y, side, word in words)
    axes = f'<path d="M{MARGIN} 8V{8 + height}H{WIDTH - 6}" fill="none" stroke="currentColor" opacity=".4"/>'
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(measure.name)} over rounds" font-size="11" fill="currentColor">'
        f"{axes}{drawn}{labels}</svg>"
    )


def _map(methods: Methods) -> str:
    """P of the last round of the best method's first seed, a pixel a pair of clients."""
    name = best_method(methods)
    panel = None if name is None else last_panel(name, next(iter(methods[name].values())))
    if panel is None:
        return ""
    from PIL import Image

    strength = np.sqrt(np.abs(panel.weights)) / max(np.sqrt(np.abs(panel.weights)).max(), 1e-12)
    pixels = np.empty((*strength.shape, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = BLUE, np.rint(255 * strength)  # nothing is transparent: light and dark pages
    file, side = io.BytesIO(), max(LARGEST, len(strength))
    Image.fromarray(pixels, "RGBA").save(file, "PNG")
    image = base64.b64encode(file.getvalue()).decode()
    frame = "image-rendering:pixelated;border:1px solid rgba(128,128,128,.5);margin:0;background:none"
    return (
        f'<figure style="margin:0"><img width="{side}" height="{side}" style="{frame}" '
        f'alt="weights of the last round" src="data:image/png;base64,{image}">'
        f'<figcaption style="font-size:11px">{escape(panel.title)}: row = whose model,<br>'
        "column = whose weight in it</figcaption></figure>"
    )
