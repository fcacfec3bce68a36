"""Several methods on one task: their options, and the configuration that each of them is run with."""

import dataclasses
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from feddwa.config import RunConfig, options_of
from feddwa.errors import InputError, require
from feddwa.params import Option, fields_of
from feddwa.plugins import ALGORITHMS, label, located
from feddwa.seeds import SeededConfig
from feddwa.tune.space import best_in

if TYPE_CHECKING:
    from rich.console import Console

    from feddwa.data.task import Task


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


def prepared(
    console: "Console", config: Several, out: Path, task: "Task", brought: Container[str]
) -> tuple[Several, dict[str, RunConfig]]:
    """Options completed by the task, and the completed configuration of every remaining method.

    What was decided, measured and left out is printed. brought: names that a group stands for; those that do not suit
    the task are left out, others raise.
    """
    from feddwa.build import completed, make_network

    configs = {name: each.resolved() for name, each in method_configs(config, out).items()}
    first = next(iter(configs.values()))
    make_network(first, task.dataset)
    first = told(console, first, task)
    config = dataclasses.replace(config, lr=first.lr)
    configs = {name: completed(dataclasses.replace(each, lr=first.lr), task.dataset) for name, each in configs.items()}
    config = suited(console, config, configs, task, brought)
    configs = {name: each for name, each in configs.items() if name in map(label, config.algorithms)}
    measured = tolerance(console, config, configs, task)
    config = dataclasses.replace(config, param=(*config.param, *measured))
    configs = {name: completed(each.resolved(), task.dataset) for name, each in method_configs(config, out).items()}
    return filled_in(config, first), configs


def told(console: "Console", config: RunConfig, task: "Task") -> RunConfig:
    """A configuration completed by its data. Prints the chosen defaults and the changes made to the data."""
    from feddwa.rates import decided

    known, lines = decided(config, task)
    for line in (*task.notes, *lines):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return known


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
    """One configuration per algorithm. A --param of an algorithm goes to those that have it, any other to all."""
    require(len(config.algorithms) > 0, "--algorithms", config.algorithms, "one name or more")
    names = {label(name): located(name) for name in config.algorithms}
    labels = [label(name) for name in config.algorithms]
    keys = {name: list(fields_of(ALGORITHMS.find(names[name], "--algorithms"))) for name in labels}
    for name in labels:
        require(labels.count(name) == 1, "--algorithms", name, "given once")
    scheme = config.partition or config.usual_partition or "iid"  # none of own data has parameters
    owners = dataclasses.replace(config, algorithm=names[labels[0]], partition=scheme).owners()
    shared = {owner: list(fields_of(kind)) for owner, kind in list(owners.items())[1:]}  # by all methods
    chosen: dict[str, list[str]] = {name: [] for name in names}
    for entry in config.param:
        owner, _, key = entry.partition("=")[0].rpartition(".")
        takers = [name for name in keys if owner in ("", name) and key in keys[name]]
        if any(owner in ("", other) and key in own for other, own in shared.items()):
            takers = list(keys)
        if not takers:
            valid = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in {**keys, **shared}.items())
            raise InputError(f"--param {entry}: no such hyper-parameter; valid for {valid}")
        for name in takers:
            chosen[name].append(entry)
    options = options_of(config.run_config())
    options["seed"] = config.seed if config.seeds is None else config.seeds[0]
    configs = {
        name: RunConfig(**{**options, "algorithm": names[name], "out": str(out / name), "param": tuple(chosen[name])})
        for name in names
    }
    folder = getattr(config, "tuned", None)
    return configs if folder is None else {name: best_in(Path(folder) / name, own) for name, own in configs.items()}
