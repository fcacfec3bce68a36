"""Run experiments from configuration and data, or resume them."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from feddwa import checkpoint, rates
from feddwa.build import completed, divided, load_dataset, make_engine, program_kind, tasks_of
from feddwa.callbacks import Callback, Callbacks, Run
from feddwa.checkpoint import Checkpoint
from feddwa.config import RunConfig, options_of
from feddwa.config_file import from_toml, to_toml
from feddwa.data.dataset import Dataset
from feddwa.data.describe import describe
from feddwa.data.task import Task
from feddwa.engine import Engine
from feddwa.engine.fast import lockstep
from feddwa.engine.places import DamagedRows
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.ranks import CURRENT
from feddwa.result import Result, Results
from feddwa.results import runs
from feddwa.results.provenance import check_same, provenance
from feddwa.results.recorder import Observer, SimulatedRounds, record
from feddwa.results.weights import read as read_weights
from feddwa.seeds import FEDERATIONS, SEEDS, SeededConfig, each_seed
from feddwa.storage import write_whole
from feddwa.trackers import callbacks_of
from feddwa.trained import store
from feddwa.trained.newcomers import HeldOut
from feddwa.workers import federation_of


def run_task(config: RunConfig, task: Task, observe: Observer = lambda line: None) -> Result:
    """Run a resolved configuration on loaded data."""
    return run_tasks([config], [task], [observe])[0]


def watching(observe: Callable[..., None], seeds: Iterable[int]) -> list[Observer]:
    """An observer for each seed that passes the seed on."""
    return [partial(observe, seed=seed) for seed in seeds]


def run_seeds(
    config: RunConfig,
    tasks: Mapping[int, Task],
    path: Path | None,
    observers: Sequence[Observer] = (),
    callbacks: Sequence[Callback] = (),
) -> Results:
    """Run a completed configuration on the data of several seeds, in lockstep.

    Finished runs in `path` are read back, interrupted ones resumed. All seeds have one rate.
    """
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        known = options_of(config, leaving_out=("seed", "out"))
        write_whole(path / SEEDS, to_toml(SeededConfig(**known, seeds=tuple(tasks))))
    configs = each_seed(config, list(tasks), path)
    begun = [own for own in configs if own.out and (Path(own.out) / runs.CONFIG).is_file()]
    found = run_tasks(configs, list(tasks.values()), observers, begun, path is not None, callbacks)
    return Results(dict(zip(tasks, found, strict=True)), None if path is None else str(path))


def run_tasks(
    configs: Sequence[RunConfig],
    tasks: Sequence[Task],
    observers: Sequence[Observer] = (),
    begun: Collection[RunConfig] = (),
    written: bool = True,
    callbacks: Sequence[Callback] = (),
) -> list[Result]:
    """Run configurations of one network in lockstep: equal training of their clients is one stack.

    Networks with different frozen parameters run one after another, as do runs whose clients are divided among ranks.
    `begun` runs continue from the last checkpoint in their directory. observers: of the first runs, as many as given.
    written: whether there are run directories. callbacks: of all runs, in addition to those in the configurations.
    """
    new = _run if written else _run_unwritten
    jobs = [partial(_resume if config in begun else new, callbacks=callbacks) for config in configs]
    pairs = [
        (
            rates.chosen(completed(dataclasses.replace(config, clients=task.partition.everybody), task.dataset), task),
            task,
        )
        for config, task in zip(configs, tasks, strict=True)
    ]
    engines = [make_engine(config, task) for config, task in pairs]
    kinds = {program_kind(config, engine) for (config, _), engine in zip(pairs, engines, strict=True)}
    watching = [*observers, *[lambda line: None] * (len(pairs) - len(observers))]
    alone = len(pairs) == 1 or len(kinds) > 1 or CURRENT.get() is not None
    if alone or any(engine.sequential for engine in engines):
        return [job(*rest) for job, *rest in zip(jobs, *zip(*pairs, strict=True), engines, watching, strict=True)]
    samples = [task.keep("identity of the samples", object) for task in tasks]  # one object if samples are shared
    name = ("stack", *kinds, *(samples if len(set(samples)) > 1 else samples[:1]))
    stack = tasks[0].keep(name, lambda: lockstep.stacked_engine(engines))
    members = lockstep.lockstep_engines(engines)
    work = [
        partial(job, *pair, engine, watcher)
        for job, pair, engine, watcher in zip(jobs, pairs, members, watching, strict=True)
    ]
    return lockstep.run_in_lockstep(stack, members, work)


def _run(
    config: RunConfig, task: Task, engine: Engine, observe: Observer, callbacks: Sequence[Callback] = ()
) -> Result:
    source = _rounds(config, task, engine)
    facts = provenance(config, task) if config.checkpoint_every else {}
    with runs.RunDirectory.create(config, describe(task.dataset, task.partition), facts) as directory:
        rates.write(directory.path, config, task)
        source.federation.placement.move(directory.path / runs.CHECKPOINTS)
        return _finish(config, source, task, observe, callbacks, directory)


def _run_unwritten(
    config: RunConfig, task: Task, engine: Engine, observe: Observer, callbacks: Sequence[Callback] = ()
) -> Result:
    return _finish(config, _rounds(config, task, engine), task, observe, callbacks)


def _resume(
    config: RunConfig, task: Task, engine: Engine, observe: Observer, callbacks: Sequence[Callback] = ()
) -> Result:
    path, facts = Path(str(config.out)), provenance(config, task)
    if (path / runs.RECORD).exists():
        runs.check_sums(path)  # before anything is read, so that changed files are named
    content = runs.read_record(path)
    if content is not None:
        return _read(path, content, task, facts)
    source = _rounds(config, task, engine)
    source.federation.placement.move(path / runs.CHECKPOINTS)
    with runs.RunDirectory.reopen(config, facts) as directory:
        past = directory.rewind(_restore(source.federation, path, facts))
        return _finish(config, source, task, observe, callbacks, directory, past)


def _read(path: Path, content: Mapping[str, Any], task: Task, facts: Mapping[str, Any]) -> Result:
    """A finished run if it has these facts; content: of its record."""
    card = store.read_card(path)
    if card.run:  # a run without checkpoints has not recorded its facts
        check_same(card.run, facts, path)
    runs.tidy(path)
    trained = None if card.missing else store.read(path).in_memory()
    models, buffers = ({}, {}) if trained is None else trained.parts()
    lines, weights = runs.read_lines(path / runs.METRICS), read_weights(path)
    newcomers = content.get("newcomers")
    return Result(content["summary"], lines, weights, models, buffers, task.partition, str(path), trained, newcomers)


def resume(
    path: str | Path,
    *,
    observe: Callable[..., None] = lambda line, seed=0: None,
    callbacks: Sequence[Callback] = (),
) -> Result | Results:
    """Continue the run in a directory from its last checkpoint, with the same result as without interruption.

    A finished run is read back, with its models if they were stored. In a directory of several seeds all runs are
    resumed. callbacks: in addition to those in the configuration.
    """
    path = Path(path)
    if (path / SEEDS).is_file():
        several = from_toml(path / SEEDS, SeededConfig).resolved()
        config, seeds = several.run_config(), several.seeds or ()
        tasks = tasks_of(config, seeds, _found_again(config, path / SEEDS))
        return run_seeds(config, tasks, path, watching(observe, tasks), callbacks)
    if (path / runs.FEDERATION).exists() or (path / FEDERATIONS).exists():
        raise InputError(f"{path}: is a federation's; it continues when it is started again with --out {path}")
    config = runs.read_config(path).resolved()
    return resume_task(config, divided(config, _found_again(config, path / runs.CONFIG)), path, observe, callbacks)


def _found_again(config: RunConfig, file: Path) -> Dataset:
    """The data of a resumed run; file: of its configuration."""
    try:
        return load_dataset(config)
    except InputError as error:
        raise InputError(f"{error} (if the data have moved, change {file})") from None


def resume_task(
    config: RunConfig,
    task: Task,
    path: Path,
    observe: Observer = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """The same on loaded data."""
    config = dataclasses.replace(config, out=str(path))
    return run_tasks([config], [task], [observe], begun=[config], callbacks=callbacks)[0]


def _restore(federation: Federation, path: Path, facts: Mapping[str, Any]) -> Checkpoint | None:
    """Restore the last checkpoint of a run directory if it belongs to the federation; otherwise the federation stays
    new.
    """
    folder = path / runs.CHECKPOINTS
    found = checkpoint.latest(folder)
    while found is not None:
        check_same(found.facts, facts, path)
        older = checkpoint.latest(folder, below=found.round)
        try:
            federation.restore(found.round, found.tree, [] if older is None else [older.tree])
            break
        except (OSError, DamagedRows) as error:
            checkpoint.to_stderr(f"{found.path}: damaged checkpoint, not used: {error}")
            found = older
    return found


def _rounds(config: RunConfig, task: Task, engine: Engine) -> SimulatedRounds:
    """The rounds of a run before the first one, and the clients evaluated after the last."""
    held_out = HeldOut.of(config, engine, task)
    return SimulatedRounds(federation_of(config, task, engine), store.card_of(config, task.dataset, engine), held_out)


def _finish(
    config: RunConfig,
    source: SimulatedRounds,
    task: Task,
    observe: Observer,
    callbacks: Sequence[Callback],
    directory: runs.RunDirectory | None = None,
    past: Sequence[dict[str, Any]] = (),
) -> Result:
    """Run and record all remaining rounds, and return the final models."""
    names, device, rounds = source.names(config), source.federation.engine.data.device, config.rounds or 0
    path = None if directory is None else directory.path
    told = Callbacks(Run(config, path, past), [*callbacks_of(config), *callbacks])
    found = record(source, rounds, names, device, observe, directory, past, config.early_stop, told)
    came_out = found.summary, found.lines, found.weights, *found.trained.parts(), task.partition
    return Result(*came_out, None if path is None else str(path), found.trained, source.newcomers)
