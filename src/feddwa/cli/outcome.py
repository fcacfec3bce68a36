"""What the commands that train say in the end, and their exit status."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from feddwa.experiment import Result


def show_outcome(console: "Console", results: "Mapping[str, Result]", folder: Path) -> int:
    """Show what came out of some runs, led by what went wrong; 1 where one of them has failed, else 0."""
    from feddwa.doctor import told
    from feddwa.report.reading import read_run
    from feddwa.report.tables import show_results, show_weights

    findings = {name: told(read_run(Path(result.path or ""))) for name, result in results.items()}
    show_results(console, results, findings)
    show_weights(console, results, folder, findings)
    return _status(results)


def _status(results: "Mapping[str, Result]") -> int:
    """Say on standard error which runs have failed, and why."""
    from feddwa.findings import failure

    reasons: dict[str, list[str]] = {}
    for name, result in results.items():
        why = failure(result.metrics)
        if why is not None:
            reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        print(f"feddwa: failed: {', '.join(names)}: {why}", file=sys.stderr)
    return 1 if reasons else 0
