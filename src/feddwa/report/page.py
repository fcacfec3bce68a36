"""`feddwa report`: one HTML file that needs nothing but a browser. Words and tables are written here, charts there."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from feddwa import __version__
from feddwa.errors import InputError, counted
from feddwa.report import facts
from feddwa.report.collect import collect
from feddwa.report.costs import cost_table
from feddwa.report.markup import library, sentence, table, template
from feddwa.report.setup import setup
from feddwa.results import newcomers
from feddwa.results.methods import Method, by_method, clients_in_words
from feddwa.results.record import Record
from feddwa.storage import write_whole

SHARED = ("numbers", "core", "csv")  # scripts of every page
SCRIPTS = ("curves", "clients", "map", "graph", "flow", "explorer", "client", "gain", "partition", "presence", "pareto")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def write_report(records: Sequence[Record], path: str | Path) -> int:
    """Write the report of some runs of one setting; its size in bytes."""
    return write_page(page(by_method(records)), path)


def write_page(text: str, path: str | Path) -> int:
    """Write a page; its size in bytes."""
    try:
        write_whole(Path(path), text)
    except OSError as error:
        raise InputError(f"-o {path}: cannot write there: {error.strerror}") from None
    return len(text.encode())


def page(methods: Sequence[Method], live: bool = False) -> str:
    """The page as text; live: it asks its server for what is new (`feddwa watch`)."""
    config, measure = methods[0].runs[0].config, methods[0].measure
    setting = f"{Path(config.dataset).name}, {config.partition}, {clients_in_words(config)}"
    numbers = {**collect(methods), "lead": methods.index(facts.lead(methods)), "chance": facts.guessing(methods)}
    cards = "".join(
        f'<div class="card"><b>{sentence(card.value)}</b><span>{escape(card.label)}</span></div>'
        for card in facts.cards(methods)
    )
    parts = {
        "setting": escape(f"{setting}, {_range(methods)}"),
        "headline": sentence(facts.headline(methods)),
        "kind": "" if all(method.sound for method in methods) else "wrong",
        "warnings": _warnings(facts.warnings(methods)),
        "story": "".join(f"<p>{sentence(each)}</p>" for each in facts.story(methods)),
        "cards": cards,
        "measure": measure.name,
        "measured": measure.name.title(),
        "better_title": measure.better.title(),
        "definition": escape(measure.words),
        "point": " A <b>point</b> is one percent of test samples." if measure.sign > 0 else "",
        "corner": "up" if measure.sign > 0 else "down",
        "partition": escape(_partition(methods[0].runs[0])),
        "classes": _classes(methods),
        "costs": cost_table(methods),
        "newcomers": _newcomers(methods),
        "setup": setup(methods),
    }
    body = Template(template("report.html")).substitute(parts)
    return document(f"{setting}: feddwa report", body, numbers, (*SCRIPTS, "start"), live)


def document(title: str, body: str, numbers: Mapping[str, Any], scripts: Sequence[str], live: bool = False) -> str:
    """A self-contained page with style, data, ECharts and `scripts`."""
    payload = json.dumps(numbers, separators=(",", ":"), allow_nan=False).encode()
    return Template(template("page.html")).substitute(
        title=escape(title),
        policy=f"{POLICY}; connect-src 'self'" if live else POLICY,
        style=template("report.css"),
        body=body,
        footer=f"Made by feddwa {__version__}. Charts: Apache ECharts 6.1.0 (Apache-2.0), inside this file.",
        payload=base64.b64encode(gzip.compress(payload, 9, mtime=0)).decode(),
        library=library(),
        script="\n".join(template(f"{name}.js") for name in (*SHARED, *(["live"] if live else []), *scripts)),
    )


def _warnings(sentences: Sequence[str]) -> str:
    """An HTML list; empty text for no items."""
    entries = "".join(f"<li>{sentence(each)}</li>" for each in sentences)
    return f'<ul class="warnings" aria-label="Warnings">{entries}</ul>' if entries else ""


def _range(methods: Sequence[Method]) -> str:
    """Text with finished and planned rounds, methods and seeds."""
    runs = [run for method in methods for run in method.runs]
    rounds, seeds = max(int(run.rounds[-1]) for run in runs), {run.seed for run in runs}
    told = f"seeds {', '.join(map(str, sorted(seeds)))}" if len(seeds) > 1 else f"seed {seeds.pop()}"
    planned = max(run.config.rounds or 0 for run in runs)
    done = f"{rounds} of {planned}" if rounds < planned else str(rounds)
    return f"{done} rounds, {len(methods)} method{'s' * (len(methods) > 1)}, {told}"


def _partition(run: Record) -> str:
    """Who has what, in a sentence."""
    part = run.partition
    if part is None:
        return ""
    train, test = part.train_sizes, part.test_sizes
    columns = ", each column a class" if part.classed else ""
    told = (
        f"Each row is a client{columns}. {len(train)} clients have {_span(train)} samples to train with "
        f"and {_span(test)} to test with."
    )
    if part.newcomers:
        told += f" Held out, and in none of these charts: {counted(len(part.newcomers), 'client')}."
    if part.groups is not None:
        told += f" They belong to {len(np.unique(part.groups))} groups, parted by lines, of which no method is told."
    if part.turns is not None:
        told += " The groups see their images turned by different angles; classes are spread alike."
    if part.relabel is not None:
        told += " The groups call the same class by different labels."
    return told


def _span(sizes: np.ndarray) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _classes(methods: Sequence[Method]) -> str:
    """A table of classes for each metric per class that all methods have."""
    return "".join(
        _class_table(name, methods)
        for name in methods[0].by_class
        if all(name in method.by_class for method in methods)
    )


def _class_table(name: str, methods: Sequence[Method]) -> str:
    """A row for every class, a column for every method."""
    class_name, values = methods[0].runs[0].class_name, [method.by_class[name] for method in methods]
    heads = [escape(each) for each in ("class", *(method.title for method in methods))]
    rows = [[escape(class_name(c)), *(_known(own[c]) for own in values)] for c in range(len(values[0]))]
    return (
        f"<h3>{escape(name)}</h3>"
        '<p class="note">Percent of a client\'s test samples of a class that its model answers correctly, after the '
        f"last round: the mean over clients that have some.</p>{table(heads, rows)}"
    )


def _known(percent: float) -> str:
    """Percent with two decimals; empty if unknown."""
    return f"{percent:.2f}" if np.isfinite(percent) else ""


def _newcomers(methods: Sequence[Method]) -> str:
    """The section on held-out clients; empty without any."""
    methods = [method for method in methods if newcomers.served(method.runs)]
    if not methods:
        return ""
    measure, heads = methods[0].measure, ("method", *newcomers.HEADS.values(), "how they are served")
    rows = []
    for method in methods:
        spreads = newcomers.over_seeds(method.runs)
        values = (f"{spreads[when]:{measure.fine}}" for when in newcomers.HEADS)
        rows.append([escape(method.title), *values, escape(newcomers.ways(method.runs))])
    return (
        '<section id="newcomers"><h2>Clients that were held out</h2>'
        f'<p class="note">{escape(newcomers.words(measure))}</p>{table(heads, rows)}</section>\n\n'
    )
