"""Commands that train: `feddwa run`, `compare`."""

import dataclasses
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from feddwa.cli.methods import RunOptions, SeveralOptions, method_configs, prepared, told
from feddwa.cli.outcome import resumable, show_outcome
from feddwa.cli.workers import WorkerOptions
from feddwa.config_file import to_toml
from feddwa.groups import expanded
from feddwa.plugins import ALGORITHMS, check_dataset, label
from feddwa.seeds import COMPARISON

if TYPE_CHECKING:
    from feddwa.result import Result, Results


@dataclass(frozen=True)
class SingleOptions(WorkerOptions, RunOptions):
    """One run. Without any option: FedDWA on digits, 20 clients in 4 groups whose images are turned differently."""


@dataclass(frozen=True)
class CompareConfig(WorkerOptions, SeveralOptions):
    """Several algorithms on the same data, from the same seeds."""

    tuned: str | None = None
    """Directory of `feddwa tune`: every algorithm with the rate and hyper-parameters that were best there."""


def run_command(options: SingleOptions) -> int:
    """`feddwa run`."""
    check_dataset(options.dataset)
    seeds = options.checked().seeds
    config = options.run_config().resolved()

    from feddwa.build import load_dataset, tasks_of
    from feddwa.experiment import run_seeds, run_task, watching
    from feddwa.report.progress import decoding, progress
    from feddwa.report.terminal import make_console
    from feddwa.results.runs import check_free, default_path

    path = Path(config.out) if config.out else default_path(config.algorithm, config.dataset)
    console = make_console(options.quiet)
    config = dataclasses.replace(config, out=str(path))
    check_free(config.out)
    config = dataclasses.replace(config, seed=config.seed if seeds is None else seeds[0])
    with decoding(options.quiet) as tell:
        dataset = load_dataset(config, tell)
    tasks = tasks_of(config, seeds or [config.seed], dataset)
    config = told(console, config, tasks[config.seed])
    with resumable(path), progress(console, label(config.algorithm), config.rounds or 0, options.quiet) as observe:
        result: Result | Results
        if seeds is None:
            result = run_task(config, tasks[config.seed], observe)
        else:
            result = run_seeds(config, tasks, path, watching(observe, tasks))
    status = show_outcome(console, {label(config.algorithm): result}, path)
    console.print(f"\nfeddwa report {path} makes a page of it", highlight=False, soft_wrap=True)
    if options.quiet:
        print(path)
    return status


def compare_command(config: CompareConfig) -> int:
    """`feddwa compare`."""
    check_dataset(config.dataset)
    names, brought = expanded(config.algorithms)
    config = dataclasses.replace(config, algorithms=names)
    for name in names:
        ALGORITHMS.check(name, "--algorithms")
    config.checked()

    from feddwa.results.runs import check_free, default_path

    out = Path(config.out) if config.out else default_path("compare", config.dataset)
    check_free(str(out))
    return compare_runs(config, out, brought)


def compare_runs(config: CompareConfig, out: Path, brought: Container[str] = ()) -> int:
    """All runs of a comparison: those that are finished are read back, those that were interrupted go on.

    brought: names that a group stands for; those that do not suit the task are left out.
    """
    from feddwa.build import load_dataset, tasks_of
    from feddwa.experiment import resume_task, run_seeds, run_task, watching
    from feddwa.report.page import write_report
    from feddwa.report.progress import decoding, jobs
    from feddwa.report.terminal import make_console
    from feddwa.results.record import read
    from feddwa.results.runs import CONFIG
    from feddwa.storage import write_whole

    console = make_console(quiet=config.quiet)
    results: dict[str, Result | Results] = {}
    seeds = config.checked().seeds
    first, *_ = [each.resolved() for each in method_configs(config, out).values()]  # all, before data are loaded
    with decoding(config.quiet) as tell:
        dataset = load_dataset(first, tell)
    tasks = tasks_of(first, seeds or [first.seed], dataset)
    task = tasks[first.seed]  # of the first seed: what is searched for or measured on its data holds for all
    config, configs = prepared(console, config, out, task, brought)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / COMPARISON, to_toml(config))
    with resumable(out), jobs(console, len(configs), quiet=config.quiet) as job:
        for name, each in configs.items():
            begun = (out / name / CONFIG).is_file()
            with job(name, each.rounds or 0) as observe:
                if seeds is not None:
                    results[name] = run_seeds(each, tasks, out / name, watching(observe, tasks))
                elif begun:
                    results[name] = resume_task(each, task, out / name, observe)
                else:
                    results[name] = run_task(each, task, observe)
    status = show_outcome(console, results, out)
    write_report(read([out]), out / "report.html")
    console.print(f"  {out / 'report.html'}   open it in a browser", highlight=False, soft_wrap=True)
    if config.quiet:
        print(out)
    return status
