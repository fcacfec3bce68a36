"""`feddwa doctor`: what may be wrong with this machine, a configuration or a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from feddwa.cli.methods import RunOptions
from feddwa.params import Option
from feddwa.plugins import check_dataset

if TYPE_CHECKING:
    from rich.console import Console

    from feddwa.results.findings import Finding


@dataclass(frozen=True)
class DoctorConfig(RunOptions):
    """Check this machine, and a configuration (the options of `feddwa run`) or finished runs for the classic traps."""

    runs: Annotated[tuple[str, ...], Option(metavar="[RUN ...]", positional=True)] = ()
    """Run directories to look at instead of a configuration."""


def doctor_command(config: DoctorConfig) -> int:
    """`feddwa doctor`: 1 where something cannot work, else 0."""
    if not config.runs:
        check_dataset(config.dataset)

    from feddwa import doctor
    from feddwa.report.terminal import make_console
    from feddwa.results.record import read

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


def _show(console: "Console", title: str, findings: "Iterable[Finding]") -> "list[Finding]":
    """Problems first, the rest in the order of the checks."""
    from feddwa.report.terminal import show_finding

    console.print(f"\n{title}", style="bold", highlight=False)
    shown = sorted(findings, key=lambda finding: {"error": 0, "warning": 1}.get(finding.level, 2))
    for finding in shown:
        show_finding(console, finding)
    return shown
