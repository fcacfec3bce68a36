"""Commands that train: `feddwa run`, `compare`."""

import dataclasses
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from feddwa.cli.outcome import resumable, show_outcome
from feddwa.config import RunConfig, options_of
from feddwa.config_file import to_toml
from feddwa.errors import InputError, require
from feddwa.groups import expanded
from feddwa.params import Option, fields_of
from feddwa.plugins import ALGORITHMS, PARTITIONS, check_dataset, label, located
from feddwa.seeds import COMPARISON, SeededConfig

if TYPE_CHECKING:
    from rich.console import Console

    from feddwa.data.task import Task
    from feddwa.result import Result, Results


@dataclass(frozen=True)
class RunOptions(SeededConfig):
    """One run. Without any option: FedDWA on digits, 20 clients in 4 groups whose images are turned differently."""

    quiet: bool = False
    """Print nothing but the directory that was written."""


@dataclass(frozen=True)
class SeveralOptions(RunOptions):
    """Several algorithms on the same data."""

    algorithm: Annotated[str, Option(hidden=True)] = "feddwa"  # a run's config.toml may have it
    algorithms: tuple[str, ...] = ("feddwa", "local", "fedavg")
    """`feddwa list algorithms`: names, all, @paper, @global, ...; a --param goes to every one that has it."""


Several = TypeVar("Several", bound=SeveralOptions)


@dataclass(frozen=True)
class CompareConfig(SeveralOptions):
    """Several algorithms on the same data, from the same seeds."""


def run_command(options: RunOptions) -> int:
    """`feddwa run`."""
    check_dataset(options.dataset)
    seeds = options.checked().seeds
    config = options.run_config().resolved()

    from feddwa.build import load_dataset
    from feddwa.experiment import run_seeds, run_task, tasks_of, watching
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


def told(console: "Console", config: RunConfig, task: "Task") -> RunConfig:
    """A configuration with what its data decide; printed are what was left open and what was done to the data."""
    from feddwa.rates import decided

    known, lines = decided(config, task)
    for line in (*(f"{Path(config.dataset).name}: {note}" for note in task.dataset.notes), *lines):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return known


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
    from feddwa.build import load_dataset, make_network, settled
    from feddwa.experiment import resume_task, run_seeds, run_task, tasks_of, watching
    from feddwa.report.page import write_report
    from feddwa.report.progress import decoding, jobs
    from feddwa.report.terminal import make_console
    from feddwa.results.record import read
    from feddwa.results.runs import CONFIG
    from feddwa.storage import write_whole

    console = make_console(quiet=config.quiet)
    results: dict[str, Result | Results] = {}
    configs = {name: each.resolved() for name, each in method_configs(config, out).items()}
    seeds = config.checked().seeds
    first = next(iter(configs.values()))
    with decoding(config.quiet) as tell:
        dataset = load_dataset(first, tell)
    tasks = tasks_of(first, seeds or [first.seed], dataset)
    task = tasks[first.seed]  # of the first seed: what is searched for or measured on its data holds for all
    make_network(first, task.dataset)
    first = told(console, first, task)
    config = dataclasses.replace(config, lr=first.lr)
    configs = {name: settled(dataclasses.replace(each, lr=first.lr), task.dataset) for name, each in configs.items()}
    config = suited(console, config, configs, task, brought)
    configs = {name: each for name, each in configs.items() if name in map(label, config.algorithms)}
    measured = tolerance(console, config, configs, task)
    config = dataclasses.replace(config, param=(*config.param, *measured))
    configs = {name: settled(each.resolved(), task.dataset) for name, each in method_configs(config, out).items()}
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / COMPARISON, to_toml(filled_in(config, first)))
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


def suited(
    console: "Console", config: Several, configs: Mapping[str, RunConfig], task: "Task", brought: Container[str]
) -> Several:
    """Options without those of their groups' algorithms that do not suit network and data; others raise."""
    from feddwa.build import check_suited, make_engine

    kept = []
    for name in config.algorithms:
        own = configs[label(name)]
        try:
            check_suited(own, make_engine(own, task))
            kept.append(name)
        except InputError as error:
            if name not in brought:
                raise
            console.print(f"left out {name}: {error}", highlight=False, markup=False, soft_wrap=True)
    return dataclasses.replace(config, algorithms=tuple(kept))


def tolerance(console: "Console", config: SeveralOptions, configs: Mapping[str, RunConfig], task: "Task") -> list[str]:
    """ClusterFL's eps2 by our rule, as a --param, where it is compared and has none: its default fits no other task."""
    from feddwa.calibrate import update_norms

    given = {entry.partition("=")[0].removeprefix("clusterfl.") for entry in config.param}
    own = configs.get("clusterfl")
    if own is None or "eps2" in given or (own.rounds or 0) <= vars(own.make_algorithm())["warmup"]:
        return []
    eps2 = update_norms(own, task).eps2
    if eps2 is None:  # no update counted, which the runs will tell
        return []
    told = f"clusterfl: eps2={eps2}, measured on these data by the rule of docs/algorithms/clusterfl.md"
    console.print(f"{told}; --param eps2=... takes another", highlight=False, soft_wrap=True)
    return [f"clusterfl.eps2={eps2}"]


def filled_in(config: Several, first: RunConfig) -> Several:
    """Options of several runs with their defaults as they are now, whatever they will be when these are continued."""
    own = ("algorithm", "out", "param")
    known = {f.name: getattr(first, f.name) for f in dataclasses.fields(RunConfig) if f.name not in own}
    return dataclasses.replace(config, algorithms=tuple(map(located, config.algorithms)), **known)


def method_configs(config: SeveralOptions, out: Path) -> dict[str, RunConfig]:
    """One configuration per algorithm; a --param goes to the algorithms that have it, one of the partition to all."""
    require(len(config.algorithms) > 0, "--algorithms", config.algorithms, "one name or more")
    names = {label(name): located(name) for name in config.algorithms}
    labels = [label(name) for name in config.algorithms]
    keys = {name: list(fields_of(ALGORITHMS.find(names[name], "--algorithms"))) for name in labels}
    for name in labels:
        require(labels.count(name) == 1, "--algorithms", name, "given once")
    scheme = config.partition or config.usual_partition or "iid"  # none of own data has parameters
    partition, shared = label(scheme), list(fields_of(PARTITIONS.find(scheme)))
    chosen: dict[str, list[str]] = {name: [] for name in names}
    for entry in config.param:
        owner, _, key = entry.partition("=")[0].rpartition(".")
        takers = [name for name in keys if owner in ("", name) and key in keys[name]]
        if owner in ("", partition) and key in shared:
            takers = list(keys)
        if not takers:
            valid = "; ".join(
                f"{name}: {', '.join(own) or 'none'}" for name, own in {**keys, partition: shared}.items()
            )
            raise InputError(f"--param {entry}: no such hyper-parameter; valid for {valid}")
        for name in takers:
            chosen[name].append(entry)
    options = options_of(config.run_config())
    options["seed"] = config.seed if config.seeds is None else config.seeds[0]
    return {
        name: RunConfig(**{**options, "algorithm": names[name], "out": str(out / name), "param": tuple(chosen[name])})
        for name in names
    }
