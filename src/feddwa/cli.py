"""The command line: `feddwa run`, `compare`, `list`, `partition`. Exit status 0 = ok, 1 = failed, 2 = bad input."""

import contextlib
import dataclasses
import io
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro
from rich.console import Console

from feddwa import __version__, models
from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig, from_toml
from feddwa.data.partition import PARTITIONS
from feddwa.data.sources import DATASETS
from feddwa.errors import InputError, require, unknown
from feddwa.params import fields_of

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
    """Several algorithms on the same data, from the same seed. --algorithm is not used here."""

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
    clients: int = 20
    """Number of clients, N."""
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
    out = Path(config.out or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-compare-{config.dataset}")
    configs = {name: each.resolved() for name, each in _split(config, out).items()}
    task = load_task(next(iter(configs.values())))
    make_network(next(iter(configs.values())), task.dataset)
    console, results = Console(), {}
    for name, each in configs.items():
        with progress(console, name, each.rounds or 0) as observe:
            results[name] = run_task(each, task, observe)
    show_results(console, results)
    show_weights(console, results, out)
    return 0


def partition_command(arguments: list[str]) -> int:
    """`feddwa partition`."""
    from feddwa.data import describe, sources
    from feddwa.data.partition import make

    config = _parse("partition", PartitionConfig, arguments)
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "out"}
    resolved = RunConfig(algorithm="local", **shared).resolved()
    dataset = sources.load(config.dataset, config.data_dir)
    partition = make(config.partition, resolved.partition_parameters(), dataset, config.clients, config.seed)
    description = describe.describe(dataset, partition)
    Console().print(describe.table(description))
    if config.out:
        describe.draw(description, config.out, f"{config.dataset}, {config.partition}, {config.clients} clients")
        print(f"wrote {config.out}")
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
    default = kind() if kind is not ListConfig else None
    if "--config" in arguments:
        place = arguments.index("--config")
        if place + 1 == len(arguments):
            raise InputError("--config: give the path of a TOML file")
        default = from_toml(arguments[place + 1], kind)  # type: ignore[arg-type, assignment]
        arguments = arguments[:place] + arguments[place + 2 :]
    extra = {} if default is None else {"default": default}
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, prog=f"feddwa {command}", args=arguments, **extra)  # type: ignore[call-overload, no-any-return]
    except SystemExit:
        if errors.getvalue():
            raise InputError(f"{_one_line(errors.getvalue())}; see feddwa {command} --help") from None
        raise  # --help


def _one_line(box: str) -> str:
    """What a framed error of the option parser says, in one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    essence = itertools.takewhile(lambda line: not line.startswith("─"), lines)
    return " ".join(line for line in essence if line and not line.startswith("- <class 'NoneType'>"))
