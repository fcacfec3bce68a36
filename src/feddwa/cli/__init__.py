"""The command line. Exit status 0 = ok, 1 = failed, 2 = bad input, 130 = stopped by Ctrl-C."""

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from feddwa import __version__
from feddwa.errors import InputError, one_line


@dataclass(frozen=True)
class Command:
    """A command: where its options (a dataclass) and its function are, and what the overview says of it.

    Both are imported when they are asked for: the overview and a misspelt command do not wait for torch.
    """

    module: str  # of this package, or a whole path: an application that is installed with the package
    options_name: str
    function_name: str
    summary: str
    example: str
    more: tuple[str, ...] = ()  # examples for its own help

    @property
    def options(self) -> type:
        """The dataclass of its options."""
        found: type = getattr(self._home, self.options_name)
        return found

    @property
    def function(self) -> Callable[[Any], int]:
        """What it does: options -> exit status."""
        found: Callable[[Any], int] = getattr(self._home, self.function_name)
        return found

    @property
    def _home(self) -> ModuleType:
        return import_module(self.module if "." in self.module else f"feddwa.cli.{self.module}")


COMMANDS = {
    "run": Command(
        "train",
        "RunOptions",
        "run_command",
        "train one algorithm",
        "--algorithm feddwa --rounds 20",
        ("--algorithm fedprox --param mu=0.1 --participation 0.5", "--config runs/DIR/config.toml --seed 1"),
    ),
    "compare": Command(
        "train",
        "CompareConfig",
        "compare_command",
        "train several, side by side",
        "--algorithms feddwa local fedavg",
        ("--partition groups --param feddwa.top_k=3 --quiet",),
    ),
    "resume": Command(
        "resume",
        "ResumeConfig",
        "resume_command",
        "continue an interrupted run",
        "runs/20260801-120000-feddwa-digits",
    ),
    "partition": Command(
        "data",
        "PartitionConfig",
        "partition_command",
        "see who has which data",
        "--partition groups --clients 20 --out p.png",
    ),
    "list": Command("data", "ListConfig", "list_command", "what there is", "algorithms"),
    "doctor": Command(
        "doctor", "DoctorConfig", "doctor_command", "what may be wrong, and why", "--algorithm feddwa --lr 0.5"
    ),
    "report": Command(
        "report", "ReportConfig", "report_command", "one HTML page about runs", "runs/DIR -o report.html"
    ),
    "figure": Command(
        "report", "FigureConfig", "figure_command", "a figure for a paper", "curves runs/DIR -o curves.pdf"
    ),
    "leaderboard": Command(
        "leaderboard", "LeaderboardConfig", "leaderboard_command", "methods at equal cost", "runs/DIR -o figures"
    ),
    "federate": Command(
        "federate",
        "FederateConfig",
        "federate_command",
        "a federation of processes",
        "--algorithm feddwa --nodes 3 --rounds 3",
    ),
    "reproduce": Command(
        "feddwa_reproduction.command",
        "ReproduceConfig",
        "reproduce_command",
        "a table of the paper",
        "table1 --columns cifar10/pathological",
    ),
    "new": Command("new", "NewConfig", "new_command", "begin your own algorithm", "algorithm Ditto --out methods"),
    "completion": Command("completion", "CompletionConfig", "completion_command", "the shell completes names", "bash"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `feddwa` command."""
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
        from feddwa.cli.options import parse

        return command.function(parse(name, command.options, arguments, (command.example, *command.more)))
    except InputError as error:
        _complain(f"{error}{_notes(error)}")
        return 2
    except KeyboardInterrupt as error:
        _complain(f"stopped{_notes(error)}")
        return 130
    except (OSError, RuntimeError, MemoryError) as error:  # a full disk, a GPU out of memory: no fault of the request
        _complain(f"failed: {error}{_notes(error)}")
        return 1


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
