"""The command line. Exit status 0 = ok, 1 = failed, 2 = bad input, 130 = stopped by Ctrl-C."""

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from feddwa import __version__
from feddwa.cli.completion import CompletionConfig, completion_command
from feddwa.cli.data import ListConfig, PartitionConfig, list_command, partition_command
from feddwa.cli.doctor import DoctorConfig, doctor_command
from feddwa.cli.federate import FederateConfig, federate_command
from feddwa.cli.leaderboard import LeaderboardConfig, leaderboard_command
from feddwa.cli.new import NewConfig, new_command
from feddwa.cli.options import parse
from feddwa.cli.report import FigureConfig, ReportConfig, figure_command, report_command
from feddwa.cli.reproduce import ReproduceConfig, reproduce_command
from feddwa.cli.resume import ResumeConfig, resume_command
from feddwa.cli.train import CompareConfig, RunOptions, compare_command, run_command
from feddwa.errors import InputError, one_line


@dataclass(frozen=True)
class Command:
    """A command: its options (a dataclass), what it does with them, and what the overview says of it."""

    options: type
    function: Callable[[Any], int]  # options -> exit status
    summary: str
    example: str
    more: tuple[str, ...] = ()  # examples for its own help


COMMANDS = {
    "run": Command(
        RunOptions,
        run_command,
        "train one algorithm",
        "--algorithm feddwa --rounds 20",
        ("--algorithm fedprox --param mu=0.1 --participation 0.5", "--config runs/DIR/config.toml --seed 1"),
    ),
    "compare": Command(
        CompareConfig,
        compare_command,
        "train several, side by side",
        "--algorithms feddwa local fedavg",
        ("--partition groups --param feddwa.top_k=3 --quiet",),
    ),
    "resume": Command(
        ResumeConfig, resume_command, "go on after an interruption", "runs/20260801-120000-feddwa-digits"
    ),
    "partition": Command(
        PartitionConfig, partition_command, "see who has which data", "--partition groups --clients 20 --out p.png"
    ),
    "list": Command(ListConfig, list_command, "what there is", "algorithms"),
    "doctor": Command(DoctorConfig, doctor_command, "what may be wrong, and why", "--algorithm feddwa --lr 0.5"),
    "report": Command(ReportConfig, report_command, "one HTML page about runs", "runs/DIR -o report.html"),
    "figure": Command(FigureConfig, figure_command, "a figure for a paper", "curves runs/DIR -o curves.pdf"),
    "leaderboard": Command(LeaderboardConfig, leaderboard_command, "methods at equal cost", "runs/DIR -o figures"),
    "federate": Command(
        FederateConfig, federate_command, "a federation of processes", "--algorithm feddwa --nodes 3 --rounds 3"
    ),
    "reproduce": Command(
        ReproduceConfig, reproduce_command, "a table of the paper", "table1 --columns cifar10/pathological"
    ),
    "new": Command(NewConfig, new_command, "begin an own algorithm", "algorithm Ditto --out methods"),
    "completion": Command(CompletionConfig, completion_command, "the shell completes names", "bash"),
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
