"""How the runs of a report are made again: their commands and options."""

import shlex
from collections.abc import Sequence
from html import escape

from feddwa.config import RunConfig
from feddwa.config_file import to_toml
from feddwa.report.markup import table
from feddwa.results.methods import Method, standing
from feddwa.results.record import Record


def command(config: RunConfig, seeds: Sequence[int] = ()) -> str:
    """The command line that repeats a run or its seeds: every option that differs from the default."""
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


def setup(methods: Sequence[Method]) -> str:
    """The commands, the options that all runs share, and those of each run."""
    runs = [run for method in methods for run in method.runs]
    shared = [
        [name.replace("_", " "), escape(str(getattr(runs[0].config, name)))]
        for name in RunConfig.__dataclass_fields__
        if name not in ("out", "param") and len({getattr(run.config, name) for run in runs}) == 1
        if getattr(runs[0].config, name) not in (None, "", ())
    ]
    seeds = [[run.seed for run in method.runs if len(method.runs) > 1] for method in methods]
    commands = "\n".join(command(method.runs[0].config, own) for method, own in zip(methods, seeds, strict=True))
    return (
        '<p class="note">The same commands give the same numbers, times apart.</p>'
        f'<pre id="commands">{escape(commands)}</pre>'
        '<div class="controls"><button type="button" data-copy="commands">Copy the commands</button></div>'
        f"<details><summary>Options that all runs share</summary>{table(('option', 'value'), shared)}</details>"
        f"{''.join(_details(method.name, run) for method in methods for run in method.runs)}"
    )


def _details(name: str, run: Record) -> str:
    """Where a run is, and all its options."""
    stands = "" if run.finished else f" ({standing(run)})"
    return (
        f"<details><summary>{escape(name)}, seed {run.seed}: all options{stands}</summary>"
        f"<p class='note'>Read from {escape(str(run.path))}</p><pre>{escape(to_toml(run.config))}</pre></details>"
    )
