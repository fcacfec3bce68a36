"""`feddwa report`: one HTML file that needs nothing but a browser. Words and tables are written here, charts there."""

import base64
import gzip
import json
import shlex
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from feddwa import __version__
from feddwa.config import RunConfig
from feddwa.config_file import to_toml
from feddwa.errors import InputError, counted
from feddwa.report import facts
from feddwa.report.collect import collect
from feddwa.results import newcomers
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
from feddwa.results.methods import Method, by_method, clients_in_words
from feddwa.results.record import Record
from feddwa.results.units import human_bytes, human_flops, human_seconds
from feddwa.storage import write_whole

SCRIPTS = ("core.js", "curves.js", "explorer.js", "others.js")
COSTS = ("up + down<br>a client, a round", "traffic<br>in all", "compute<br>in all", "time")


def write_report(records: Sequence[Record], path: str | Path) -> int:
    """Write the report of some runs of one setting; its size in bytes."""
    text = page(by_method(records))
    try:
        write_whole(Path(path), text)
    except OSError as error:
        raise InputError(f"-o {path}: cannot write there: {error.strerror}") from None
    return len(text.encode())


def page(methods: Sequence[Method]) -> str:
    """The page as text."""
    config, measure = methods[0].runs[0].config, methods[0].measure
    setting = f"{Path(config.dataset).name}, {config.partition}, {clients_in_words(config)}"
    numbers = {**collect(methods), "lead": methods.index(facts.lead(methods))}
    payload = json.dumps(numbers, separators=(",", ":"), allow_nan=False).encode()
    return Template(_file("report.html")).substitute(
        title=escape(f"{setting}: feddwa report"),
        setting=escape(f"{setting}, {_range(methods)}"),
        headline=_text(facts.headline(methods)),
        kind="" if all(method.sound for method in methods) else "wrong",
        warnings=_warnings(facts.warnings(methods)),
        story="".join(f"<p>{_text(sentence)}</p>" for sentence in facts.story(methods)),
        cards="".join(
            f'<div class="card"><b>{_text(card.value)}</b><span>{escape(card.label)}</span></div>'
            for card in facts.cards(methods)
        ),
        measure=measure.name,
        measured=measure.name.title(),
        better=measure.better,
        better_title=measure.better.title(),
        definition=escape(measure.words),
        point=" A <b>point</b> is one percent of test samples." if measure.sign > 0 else "",
        corner="up" if measure.sign > 0 else "down",
        partition=escape(_partition(methods[0].runs[0])),
        classes=_classes(methods),
        costs=_costs(methods),
        newcomers=_newcomers(methods),
        setup=_setup(methods),
        footer=f"Made by feddwa {__version__}. Charts: Apache ECharts 6.1.0 (Apache-2.0), inside this file.",
        style=_file("report.css"),
        payload=base64.b64encode(gzip.compress(payload, 9, mtime=0)).decode(),
        library=_file("echarts/echarts.min.js"),
        script="\n".join(map(_file, SCRIPTS)),
    )


def command(config: RunConfig, seeds: Sequence[int] = ()) -> str:
    """The command line that makes a run again, or those of several seeds: every option that is not the default."""
    named = {name: getattr(config, name) for name in ("algorithm", "dataset", "partition")}
    usual, first = RunConfig(**named).resolved(), RunConfig(partition=config.usual_partition)
    words = ["feddwa", "run", "--algorithm", config.algorithm]
    elsewhere = {"algorithm", "param", "metrics", "out", "track", "callbacks", *(["seed"] if seeds else [])}
    for name in RunConfig.__dataclass_fields__:
        value, default = getattr(config, name), getattr(first if name in named else usual, name)
        if name not in elsewhere and value != default:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += [word for entry in config.metrics for word in ("--metric", entry)]
    words += [word for entry in config.param if entry not in usual.param for word in ("--param", entry)]
    return shlex.join([*words, *(["--seeds", *map(str, seeds)] if seeds else [])])


def _file(name: str) -> str:
    return resources.files("feddwa.report").joinpath("template", *name.split("/")).read_text(encoding="utf-8")


def _text(words: str) -> str:
    """A sentence whose numbers are not torn from their percent signs at a line's end."""
    return escape(words).replace(" %", "&nbsp;%")


def _warnings(sentences: Sequence[str]) -> str:
    """A list of them; nothing where there are none."""
    entries = "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)
    return f'<ul class="warnings" aria-label="Warnings">{entries}</ul>' if entries else ""


def _range(methods: Sequence[Method]) -> str:
    """Rounds, methods and seeds in words."""
    runs = [run for method in methods for run in method.runs]
    rounds, seeds = max(int(run.rounds[-1]) for run in runs), {run.seed for run in runs}
    told = f"seeds {', '.join(map(str, sorted(seeds)))}" if len(seeds) > 1 else f"seed {seeds.pop()}"
    return f"{rounds} rounds, {len(methods)} method{'s' * (len(methods) > 1)}, {told}"


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
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in ("class", *(method.name for method in methods)))
    rows = "".join(
        f"<tr><td>{escape(class_name(c))}</td>" + "".join(f"<td>{_known(own[c])}</td>" for own in values) + "</tr>"
        for c in range(len(values[0]))
    )
    return (
        f"<h3>{escape(name)}</h3>"
        '<p class="note">Percent of a client\'s test samples of a class that its model answers rightly, after the last '
        "round: the mean over clients that have some.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _known(percent: float) -> str:
    """Nothing of what nobody has."""
    return f"{percent:.2f}" if np.isfinite(percent) else ""


def _costs(methods: Sequence[Method]) -> str:
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
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(f"<tr>{_cost_cells(method, methods, metrics, several)}</tr>" for method in methods)
    note = (
        "± is the standard deviation over n seeds. CI: confidence interval of the mean difference, seed by seed. "
        f"{escape(unequal_seeds(methods))} "
    )
    note = note if several else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="note">{note}Best: the {"highest" if measure.sign > 0 else "lowest"} mean over clients and the '
        "round after which it was reached. "
        "Picking the best round needs test data, so compare by the last.</p>"
    )


def _newcomers(methods: Sequence[Method]) -> str:
    """A section on held-out clients; nothing where nobody is held out."""
    methods = [method for method in methods if newcomers.served(method.runs)]
    if not methods:
        return ""
    measure, heads = methods[0].measure, ("method", *newcomers.HEADS.values(), "how they are served")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = ""
    for method in methods:
        spreads = newcomers.over_seeds(method.runs)
        values = (f"{spreads[when]:{measure.fine}}" for when in newcomers.HEADS)
        cells = escape(method.name), *values, escape(newcomers.ways(method.runs))
        rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return (
        '<section id="newcomers"><h2>Clients that were held out</h2>'
        f'<p class="note">{escape(newcomers.words(measure))}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>\n\n'
    )


def _cost_cells(method: Method, methods: Sequence[Method], metrics: Sequence[str], several: bool) -> str:
    measure = method.measure
    best, rounds = Spread({run.seed: run.best[0] for run in method.runs}), [str(run.best[1]) for run in method.runs]
    gain = facts.all_gains(method, methods)
    over = "" if gain is None else measure.gain(gain.mean)
    count = f"{len(method.runs)}{'*' * (method.name in seeds_lacking(methods))}"
    cells = [
        escape(method.name),
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
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _over_clients(method: Method) -> tuple[str, str]:
    """The worst tenth and the standard deviation over clients, mean over seeds."""
    found = [each for run in method.runs if (each := fairness(run.final, run.measure.sign)) is not None]
    if not found:
        return "", ""
    worst, std = (float(np.mean([getattr(each, name) for each in found])) for name in ("worst_tenth", "std"))
    return method.measure.number(worst), method.measure.number(std)


def _setup(methods: Sequence[Method]) -> str:
    """The options that all runs share, and the command of each."""
    runs = [run for method in methods for run in method.runs]
    shared = [
        (name.replace("_", " "), getattr(runs[0].config, name))
        for name in RunConfig.__dataclass_fields__
        if name not in ("out", "param") and len({getattr(run.config, name) for run in runs}) == 1
    ]
    rows = "".join(f"<tr><td>{name}</td><td>{escape(str(v))}</td></tr>" for name, v in shared if v is not None)
    seeds = [[run.seed for run in method.runs if len(method.runs) > 1] for method in methods]
    commands = "\n".join(command(method.runs[0].config, own) for method, own in zip(methods, seeds, strict=True))
    details = "".join(
        f"<details><summary>{escape(method.name)}, seed {run.seed}: all options"
        f"{'' if run.finished else f' (stopped after round {int(run.rounds[-1])})'}</summary>"
        f"<p class='note'>Read from {escape(str(run.path))}</p><pre>{escape(to_toml(run.config))}</pre></details>"
        for method in methods
        for run in method.runs
    )
    return (
        '<p class="note">The same commands give the same numbers, times apart.</p>'
        f'<pre id="commands">{escape(commands)}</pre>'
        '<div class="controls"><button type="button" data-copy="commands">Copy the commands</button></div>'
        f'<h3>What all runs share</h3><div class="scroll"><table class="plain"><tbody>{rows}</tbody></table></div>'
        f"<h3>Each run</h3>{details}"
    )
