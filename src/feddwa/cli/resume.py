"""`feddwa resume`: go on with what was interrupted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from feddwa.cli.outcome import resumable, show_outcome
from feddwa.cli.workers import WorkerOptions
from feddwa.config_file import from_toml
from feddwa.errors import InputError
from feddwa.params import Option
from feddwa.plugins import label
from feddwa.seeds import COMPARISON, SEEDS, SeededConfig


@dataclass(frozen=True)
class ResumeConfig(WorkerOptions):
    """Go on with an interrupted run, comparison or search, to the end that it would have had anyway."""

    directory: Annotated[str, Option(positional=True)]
    """The directory of the run, comparison or search."""


def resume_command(config: ResumeConfig) -> int:
    """`feddwa resume`."""
    from feddwa.cli.train import CompareConfig, compare_runs
    from feddwa.cli.tune import TUNING, TuneConfig, tune_methods
    from feddwa.experiment import resume
    from feddwa.report.progress import progress
    from feddwa.report.terminal import make_console
    from feddwa.results import runs

    path = Path(config.directory)
    if (path / TUNING).is_file():
        if config.workers > 1:
            raise InputError("--workers: does not divide a search; its methods are divided by `feddwa tune --jobs`")
        return tune_methods(from_toml(path / TUNING, TuneConfig), path)
    if (path / COMPARISON).is_file():
        return compare_runs(from_toml(path / COMPARISON, CompareConfig), path)
    several = (path / SEEDS).is_file()
    known = (from_toml(path / SEEDS, SeededConfig) if several else runs.read_config(path)).resolved()
    console = make_console()
    with resumable(path), progress(console, label(known.algorithm), known.rounds or 0) as observe:
        result = resume(path, observe=observe)
    return show_outcome(console, {label(known.algorithm): result}, path)
