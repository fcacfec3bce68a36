"""The command line. Exit status 0 = ok, 1 = failed, 2 = bad input, 130 = stopped by Ctrl-C."""

import errno
import io
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_type_hints

from feddwa import __version__
from feddwa.cli.workers import WorkerOptions, launched, with_workers
from feddwa.errors import InputError, InputWarning, one_line, shown


@dataclass(frozen=True)
class Command:
    """A command: the function NAME_command of a module of this package, whose argument is a dataclass of options.

    Both are imported when they are asked for: the overview and a misspelt command do not wait for them.
    """

    name: str
    module: str  # of this package, or a whole path: an application on top of it
    summary: str
    example: str
    more: tuple[str, ...] = ()  # examples for its own help
    extra: str = ""  # that brings the application

    @property
    def installed(self) -> bool:
        """Whether its module is there."""
        return not self.extra or find_spec(self.module.partition(".")[0]) is not None

    @property
    def function(self) -> Callable[[Any], int]:
        """What it does: options -> exit status."""
        if not self.installed:
            raise InputError(f"{self.name}: is not installed; pip install 'feddwa[{self.extra}]', or work in a clone")
        home = import_module(self.module if "." in self.module else f"feddwa.cli.{self.module}")
        found: Callable[[Any], int] = getattr(home, f"{self.name}_command")
        return found

    @property
    def options(self) -> type:
        """The dataclass of its options."""
        found: type = next(iter(get_type_hints(self.function).values()))
        return found


_COMMANDS = (
    Command(
        "run",
        "train",
        "train one algorithm",
        "--algorithm feddwa --rounds 20",
        ("--algorithm fedprox --param mu=0.1 --participation 0.5", "--config runs/DIR/config.toml --seed 1"),
    ),
    Command(
        "compare",
        "train",
        "train several, side by side",
        "--algorithms feddwa local fedavg",
        ("--partition groups --param feddwa.top_k=3 --quiet",),
    ),
    Command(
        "tune",
        "tune",
        "tune methods with equal budgets",
        "--algorithms feddwa fedavg local --trials 30",
        ("--algorithms fedprox --space mu=0.01..10:log --sampler halving", "--budget gradients=1e8 --jobs 2"),
    ),
    Command("resume", "resume", "continue an interrupted run", "runs/20260801-120000-feddwa-digits"),
    Command("partition", "partition", "see who has which data", "--partition groups --clients 20 --out p.png"),
    Command("list", "listing", "what there is", "algorithms", ("algorithms fedprox", "datasets --json")),
    Command("doctor", "doctor", "what may be wrong, and why", "--algorithm feddwa --lr 0.5"),
    Command("report", "report", "one HTML page about runs", "runs/DIR -o report.html"),
    Command("watch", "watch", "runs in a browser as they go", "runs"),
    Command("figure", "report", "a figure for a paper", "curves runs/DIR -o curves.pdf"),
    Command("leaderboard", "leaderboard", "methods at equal cost", "runs/DIR -o figures"),
    Command(
        "export",
        "export",
        "trained models as files",
        "runs/DIR --client hospital-3 -o model.safetensors",
        ("runs/DIR --client hospital-3 --format onnx -o model.onnx", "runs/DIR -o models"),
    ),
    Command("predict", "predict", "use a trained model", "runs/DIR new.csv --client hospital-3"),
    Command("audit", "audit", "what a run tells of its data", "privacy runs/DIR"),
    Command("adapt", "adapt", "a model for a newcomer", "runs/DIR --data new-client.csv -o adapted"),
    Command("federate", "federate", "a federation of processes", "--algorithm feddwa --nodes 3 --rounds 3"),
    Command(
        "reproduce",
        "feddwa_reproduction.command",
        "a table of the paper",
        "table1 --columns cifar10/pathological",
        extra="reproduce",
    ),
    Command("new", "new", "begin your own algorithm", "algorithm Ditto --out methods"),
    Command("completion", "completion", "the shell completes names", "bash"),
)
COMMANDS = {command.name: command for command in _COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `feddwa` command."""
    with warnings.catch_warnings():
        others = warnings.formatwarning
        warnings.formatwarning = lambda message, category, *rest: (
            f"feddwa: {one_line(message)}\n" if issubclass(category, InputWarning) else others(message, category, *rest)
        )
        try:
            return _main(argv)
        finally:
            warnings.formatwarning = others


def _main(argv: Sequence[str] | None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path that the terminal cannot show is no failure
    name, *arguments = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if name in ("-h", "--help"):
        print(usage(), end="")
        return 0
    if name == "--version":
        print(f"feddwa {__version__}")
        return 0
    try:
        command = COMMANDS.get(name)
        if command is None:
            raise InputError(f"{name}: unknown command; valid: {', '.join(COMMANDS)}")
        return _on_ranks(command, arguments) if launched() else _run(command, arguments)
    except InputError as error:
        _complain(f"{error}{_notes(error)}")
        return 2
    except KeyboardInterrupt as error:
        _complain(f"stopped{_notes(error)}")
        return 130
    except (OSError, RuntimeError, MemoryError) as error:  # a full disk, a GPU out of memory: no fault of the request
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _complain(f"{shown(error.filename)}: too long, no file or folder can have this name")
            return 2
        _complain(f"failed: {error}{_notes(error)}")
        return 1


def _run(command: Command, arguments: Sequence[str]) -> int:
    """A command with its arguments, its work shared by as many processes as they say."""
    from feddwa.cli.parser import parse

    options: Any = parse(command.name, command.options, arguments, (command.example, *command.more))
    if not isinstance(options, WorkerOptions):
        return command.function(options)
    options.check_workers()
    with with_workers(options.workers):
        return command.function(options)


def _on_ranks(command: Command, arguments: Sequence[str]) -> int:
    """The same in a process that torchrun has started: rank 0 runs the command, the others work for it."""
    from feddwa.ranks import from_torchrun
    from feddwa.workers import dividing, serve

    ranks = from_torchrun()
    shared = issubclass(command.options, WorkerOptions)
    if ranks.number:
        return serve(ranks) if shared else 0
    if not shared:
        raise InputError(f"{command.name}: its work is not divided among ranks; start it without torchrun")
    with dividing(ranks):
        return _run(command, arguments)


def _complain(what: object) -> None:
    """The one line on stderr, whatever characters are in it."""
    print(f"feddwa: {one_line(what)}", file=sys.stderr)


def _notes(error: BaseException) -> str:
    """What was noted on an error on its way, e.g. how to go on."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ()))


def usage() -> str:
    """The overview of all commands."""
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:<{width}}  {command.summary:<28}  feddwa {name} {command.example}"
        for name, command in COMMANDS.items()
    ]
    return "\n".join(
        [
            "usage: feddwa COMMAND [OPTIONS]\n",
            "Personalised federated learning: one model per client, trained together.\n",
            *lines,
            "\nfeddwa COMMAND --help lists a command's options; feddwa --version tells the version.",
            "",
        ]
    )
