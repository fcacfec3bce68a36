"""`feddwa doctor`: what may be wrong with this machine, a configuration or a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.text import Text

from feddwa.cli.screen import make_console
from feddwa.cli.train import RunOptions

if TYPE_CHECKING:
    from feddwa.doctor import Finding

MARKS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("warn", "yellow"), "error": ("bad", "red")}
WIDTH = 100  # of a line, however wide the terminal


@dataclass(frozen=True)
class DoctorConfig(RunOptions):
    """Check this machine, and a configuration (the options of `feddwa run`) or finished runs for the classic traps."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Run directories to look at instead of a configuration."""


def doctor_command(config: DoctorConfig) -> int:
    """`feddwa doctor`: 1 where something cannot work, else 0."""
    from feddwa import doctor
    from feddwa.report.reading import read

    console = make_console()
    records = read(config.runs) if config.runs else []
    found = _show(console, "This machine", doctor.machine())
    for record in records:
        found += _show(console, str(record.path), doctor.finished_run(record))
    if not records:
        found += _show(console, "This configuration", doctor.configuration(config.run_config()))
    bad, warned = (sum(each.level == level for each in found) for level in ("error", "warning"))
    console.print(f"\n{bad} bad, {warned} to think about, {len(found) - bad - warned} fine", highlight=False)
    return 1 if bad else 0


def _show(console: Console, title: str, findings: "Iterable[Finding]") -> "list[Finding]":
    """Every finding as it is made."""
    console.print(f"\n{title}", style="bold", highlight=False)
    shown = []
    for finding in findings:
        word, colour = MARKS[finding.level]
        text = Text(f"{word:>5}  ", style=colour)
        text.append(finding.text, style="default")
        console.print(_hanging(text, min(WIDTH, console.width)))
        shown.append(finding)
    return shown


def _hanging(text: Text, width: int) -> Text:
    """Lines after the first begin where the first one's words do."""
    mark, words = text.divide([7])
    lines = words.wrap(Console(width=width), width - 8)
    return Text("\n       ").join([mark + lines[0], *lines[1:]]) if lines else mark
