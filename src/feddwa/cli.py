"""The command line: `feddwa run`, `compare`, `list`, `partition`. Exit status 0 = ok, 1 = failed, 2 = bad input."""

import contextlib
import dataclasses
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from rich.console import Console

from feddwa import __version__, models
from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig, from_toml
from feddwa.data.partition import PARTITIONS
from feddwa.data.sources import DATASETS
from feddwa.errors import InputError, require, unknown
from feddwa.params import fields_of, in_words
from feddwa.runs import check_free, default_path

Options = TypeVar("Options")

USAGE = """usage: feddwa COMMAND [OPTIONS]

Personalised federated learning: one model per client, trained together.

  run        train one algorithm             feddwa run --algorithm feddwa --rounds 20
  compare    train several, side by side     feddwa compare --algorithms feddwa local fedavg
  partition  see who has which data          feddwa partition --partition groups --clients 20 --out p.png
  list       what there is                   feddwa list algorithms

feddwa COMMAND --help lists a command's options; feddwa --version tells the version.
"""


@dataclass(frozen=True)
class CompareConfig(RunConfig):
    """Several algorithms on the same data, from the same seed."""

    algorithm: tyro.conf.Suppress[tyro.conf.Fixed[str]] = "feddwa"  # a run's config.toml may have it
    algorithms: tuple[str, ...] = ("feddwa", "local", "fedavg")
    """Names from `feddwa list algorithms`; a --param goes to every one of them that has it."""


@dataclass(frozen=True)
class PartitionConfig:
    """Draw who has which data, and say how different the clients are."""

    dataset: str = "digits"
    """Name from `feddwa list datasets`, or the path of own data."""
    data_dir: str | None = None
    """Folder with dataset files; default: the environment variable FEDDWA_DATA."""
    partition: str = "rotations"
    """Name from `feddwa list partitions`."""
    clients: int | None = None
    """Number of clients, N; default: 20, or with partition natural the data's owners."""
    seed: int = 0
    """The same seed as in `feddwa run` gives the same partition."""
    param: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE, a hyper-parameter of the partition. Repeatable."""
    out: str | None = None
    """Picture to write (.png, .svg or .pdf)."""


@dataclass(frozen=True)
class ListConfig:
    """List the names that options take."""

    what: tyro.conf.Positional[Literal["algorithms", "datasets", "models", "partitions"]]
    """What to list."""
    json: bool = False
    """As JSON: name -> description."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `feddwa` command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if arguments[0] == "--version":
        print(f"feddwa {__version__}")
        return 0
    try:
        command = COMMANDS.get(arguments[0])
        if command is None:
            raise InputError(f"{arguments[0]}: unknown command; valid: {', '.join(COMMANDS)}")
        return command(arguments[1:])
    except InputError as error:
        print(f"feddwa: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("feddwa: stopped", file=sys.stderr)
        return 130
    except (OSError, RuntimeError) as error:  # a full disk, a GPU out of memory: no fault of the request
        print(f"feddwa: failed: {error}", file=sys.stderr)
        return 1


def run_command(arguments: list[str]) -> int:
    """`feddwa run`."""
    from feddwa.experiment import run
    from feddwa.report.progress import progress
    from feddwa.report.tables import show_results, show_weights

    config = _parse("run", RunConfig, arguments).resolved()
    console = Console()
    with progress(console, config.algorithm, config.rounds or 0) as observe:
        result = run(config, observe=observe)
    show_results(console, {config.algorithm: result})
    show_weights(console, {config.algorithm: result}, Path(result.path or "."))
    return 0


def compare_command(arguments: list[str]) -> int:
    """`feddwa compare`."""
    from feddwa.experiment import load_task, make_network, run_task
    from feddwa.report.progress import progress
    from feddwa.report.tables import show_results, show_weights

    config = _parse("compare", CompareConfig, arguments)
    out = Path(config.out) if config.out else default_path("compare", config.dataset)
    configs = {name: each.resolved() for name, each in _split(config, out).items()}
    check_free(str(out))
    first = next(iter(configs.values()))
    task = load_task(first)
    make_network(first, task.dataset)
    console, results = Console(), {}
    for name, each in configs.items():
        with progress(console, name, each.rounds or 0) as observe:
            results[name] = run_task(each, task, observe)
    show_results(console, results)
    show_weights(console, results, out)
    return 0


def partition_command(arguments: list[str]) -> int:
    """`feddwa partition`."""
    from feddwa.data import describe
    from feddwa.experiment import load_task

    config = _parse("partition", PartitionConfig, arguments)
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "out"}
    task = load_task(RunConfig(algorithm="local", **shared).resolved())
    description = describe.describe(task.dataset, task.partition)
    console = Console()
    console.print(describe.table(description))
    for name, value in description.summary().items():
        console.print(f"{name.replace('_', ' ')}: {value:,.4g}", highlight=False)
    if config.out:
        describe.draw(description, config.out, f"{config.dataset}, {config.partition}, {task.clients} clients")
        console.print(f"wrote {config.out}", highlight=False, soft_wrap=True)
    return 0


def list_command(arguments: list[str]) -> int:
    """`feddwa list`."""
    config = _parse("list", ListConfig, arguments)
    tables = {
        "algorithms": {name: f"{kind.title}: {kind.summary}" for name, kind in ALGORITHMS.items()},
        "datasets": DATASETS,
        "models": {name: f"takes {model.takes}" for name, model in models.MODELS.items()},
        "partitions": {name: (kind.__doc__ or "").splitlines()[0] for name, kind in PARTITIONS.items()},
    }
    table = tables[config.what]
    if config.json:
        print(json.dumps(table, indent=2))
    else:
        width = max(map(len, table))
        print("\n".join(f"{name:<{width}}  {text}" for name, text in table.items()))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run_command,
    "compare": compare_command,
    "partition": partition_command,
    "list": list_command,
}


def _split(config: CompareConfig, out: Path) -> dict[str, RunConfig]:
    """One configuration per algorithm; a --param goes to the algorithms that have it, one of the partition to all."""
    require(len(config.algorithms) > 0, "--algorithms", config.algorithms, "one name or more")
    for name in config.algorithms:
        if name not in ALGORITHMS:
            raise unknown("--algorithms", name, ALGORITHMS)
    if config.partition not in PARTITIONS:
        raise unknown("--partition", config.partition, PARTITIONS)
    keys = {name: list(fields_of(ALGORITHMS[name])) for name in config.algorithms}
    shared = list(fields_of(PARTITIONS[config.partition]))
    chosen: dict[str, list[str]] = {name: [] for name in config.algorithms}
    for entry in config.param:
        owner, _, key = entry.partition("=")[0].rpartition(".")
        takers = [name for name in keys if owner in ("", name) and key in keys[name]]
        if owner in ("", config.partition) and key in shared:
            takers = list(keys)
        if not takers:
            valid = "; ".join(
                f"{name}: {', '.join(own) or 'none'}" for name, own in {**keys, config.partition: shared}.items()
            )
            raise InputError(f"--param {entry}: no such hyper-parameter; valid for {valid}")
        for name in takers:
            chosen[name].append(entry)
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(RunConfig)}
    return {
        name: RunConfig(**{**options, "algorithm": name, "out": str(out / name), "param": tuple(chosen[name])})
        for name in config.algorithms
    }


def _parse(command: str, kind: type[Options], arguments: list[str]) -> Options:
    """Options from the command line over those from --config FILE.toml over the defaults."""
    settings: dict[str, Any] = {}
    if kind is not ListConfig:
        file, arguments = _config_file(arguments)
        settings["default"] = kind() if file is None else from_toml(file, kind)
        settings["description"] = (
            f"{kind.__doc__}\n\n--config FILE.toml sets options by name; those given here prevail."
        )
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, prog=f"feddwa {command}", args=arguments, **settings)  # type: ignore[no-any-return]
    except SystemExit:
        if not errors.getvalue():
            raise  # --help
        complaint = _complaint(errors.getvalue(), kind, arguments)
        raise InputError(f"{complaint}; see feddwa {command} --help") from None


def _config_file(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of --config, and the other arguments."""
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--config":
            rest = arguments[place + 1 :]
            if not equals and (not rest or rest[0].startswith("--")):
                raise InputError("--config: no value, must be the path of a TOML file")
            return (value, arguments[:place] + rest) if equals else (rest[0], arguments[:place] + rest[1:])
    return None, arguments


def _complaint(box: str, kind: type, arguments: list[str]) -> str:
    """What a framed error of the option parser says, in one line, with what would be valid."""
    options = {f"--{field.replace('_', '-')}": type_ for field, (type_, _) in fields_of(kind).items()}
    lines = [line.strip("│╭╮╰╯─- ") for line in box.splitlines()]
    text = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines[1:])))
    about = re.match(
        r"Error parsing (--[\w-]+)|Missing value for argument '(--[\w-]+)|Unrecognized options: ([^ ,]+)", text
    )
    if about is None:
        return text
    wrong, lacking, foreign = about.groups()
    if foreign:
        valid = [option for option in options if option not in (foreign, "--what")]  # compare has no --algorithm
        return f"{foreign}: unknown option; valid: {', '.join(valid)}"
    if lacking:
        return f"{lacking}: no value, must be {in_words(options[lacking])}"
    return f"{wrong}: got {_value(wrong, arguments)!r}, must be {in_words(options[wrong])}"


def _value(option: str, arguments: list[str]) -> str:
    """What was given for an option, in either spelling: --rounds 3 or --rounds=3."""
    following = [new for old, new in itertools.pairwise(arguments) if old == option]
    return (following + [each.partition("=")[2] for each in arguments if each.startswith(f"{option}=")])[-1]
