"""What the commands that train say in the end, or where they are interrupted, and their exit status."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from feddwa.result import Result, Results


@contextmanager
def resumable(path: Path, search: bool = False) -> Iterator[None]:
    """Where the enclosed work is interrupted, the error says how to go on with it.

    search: it is one of `feddwa tune`, which goes on from whatever there is.
    """
    from feddwa.results import runs

    try:
        yield
    except (KeyboardInterrupt, OSError, RuntimeError) as error:
        if search or runs.unfinished(path):
            error.add_note(f"feddwa resume {path} continues it")
        raise


def show_outcome(console: "Console", results: "Mapping[str, Result | Results]", folder: Path) -> int:
    """Show what came out of some runs, led by what went wrong; 1 where one of them has failed, else 0.

    All of one seed, or all of the same several seeds.
    """
    from feddwa.report.tables import show_results, show_seeds, show_weights
    from feddwa.result import Results
    from feddwa.results.methods import Method
    from feddwa.results.record import read_run

    single = {name: result for name, result in results.items() if not isinstance(result, Results)}
    several = {name: result for name, result in results.items() if isinstance(result, Results)}
    runs = {name: read_run(Path(result.path or "")) for name, result in single.items()}
    if runs:
        show_results(console, runs)
        show_weights(console, runs, folder)
    if several:
        methods = [
            Method(name, [read_run(Path(result.path or "")) for result in own.values()])
            for name, own in several.items()
        ]
        show_seeds(console, methods)
        shown = {f"{method.name}, seed {method.runs[0].seed}": method.runs[0] for method in methods}
        show_weights(console, shown, folder, [f"{own.path}/seed-*/" for own in several.values()])
    by_seed = {f"{name}, seed {seed}": result for name, own in several.items() for seed, result in own.items()}
    return _status({**single, **by_seed})


def _status(results: "Mapping[str, Result]") -> int:
    """Say on standard error which runs have failed, and why."""
    from feddwa.results.findings import failure

    reasons: dict[str, list[str]] = {}
    for name, result in results.items():
        why = failure(result.metrics)
        if why is not None:
            reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        print(f"feddwa: failed: {', '.join(names)}: {why}", file=sys.stderr)
    return 1 if reasons else 0
