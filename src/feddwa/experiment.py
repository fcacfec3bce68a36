"""From a configuration and data to a finished run, new or resumed."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from feddwa import checkpoint, rates
from feddwa.build import divided, load_dataset, make_engine, program_kind, settled, tasks_of
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
    """Run a resolved configuration on data that are loaded already."""
    return run_tasks([config], [task], [observe])[0]


def watching(observe: Callable[..., None], seeds: Iterable[int]) -> list[Observer]:
    """For each of several seeds an observer that tells which it is of."""
    return [partial(observe, seed=seed) for seed in seeds]


def run_seeds(
    config: RunConfig,
    tasks: Mapping[int, Task],
    path: Path | None,
    observers: Sequence[Observer] = (),
    callbacks: Sequence[Callback] = (),
) -> Results:
    """Run a settled configuration on the data of several seeds, in lockstep.

    Runs in `path` that are finished are read back, and those that were interrupted go on. All seeds have one rate.
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
    """Run configurations of one network, in lockstep: what their clients train alike is trained as one stack.

    Networks whose frozen parameters differ run one after another, and so do runs whose clients are divided among ranks.
    Those that are `begun` go on from the last checkpoint in their directory. observers: of the first runs, as many as
    there are. written: whether there are run directories. callbacks: of all, besides those that configurations name.
    """
    new = _run if written else _run_unwritten
    jobs = [partial(_resume if config in begun else new, callbacks=callbacks) for config in configs]
    pairs = [
        (rates.chosen(settled(dataclasses.replace(config, clients=task.partition.everybody), task.dataset), task), task)
        for config, task in zip(configs, tasks, strict=True)
    ]
    engines = [make_engine(config, task) for config, task in pairs]
    kinds = {program_kind(config, engine) for (config, _), engine in zip(pairs, engines, strict=True)}
    watching = [*observers, *[lambda line: None] * (len(pairs) - len(observers))]
    alone = len(pairs) == 1 or len(kinds) > 1 or CURRENT.get() is not None
    if alone or any(engine.sequential for engine in engines):
        return [job(*rest) for job, *rest in zip(jobs, *zip(*pairs, strict=True), engines, watching, strict=True)]
    samples = [task.keep("identity of the samples", object) for task in tasks]  # one object where samples are shared
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
        source.federation.where.move(directory.path / runs.CHECKPOINTS)
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
        runs.check_sums(path)  # before anything is read: what has changed is named as such
    content = runs.read_record(path)
    if content is not None:
        return _read(path, content, task, facts)
    source = _rounds(config, task, engine)
    source.federation.where.move(path / runs.CHECKPOINTS)
    with runs.RunDirectory.reopen(config, facts) as directory:
        past = directory.rewind(_restore(source.federation, path, facts))
        return _finish(config, source, task, observe, callbacks, directory, past)


def _read(path: Path, content: Mapping[str, Any], task: Task, facts: Mapping[str, Any]) -> Result:
    """A finished run, if it is one of these facts; content: of its record."""
    card = store.read_card(path)
    if card.run:  # a run without checkpoints has not looked at what it is made of
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
    """Go on with the run in a directory from its last checkpoint, to the end that it would have had anyway.

    A run that is finished is read back, with its models unless it was made without storing them. In the directory of
    several seeds all of them go on. callbacks: besides those that the configuration names.
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
    """The data of a run that goes on; file: of its configuration."""
    try:
        return load_dataset(config)
    except InputError as error:
        raise InputError(f"{error} (where the data have moved, change {file})") from None


def resume_task(
    config: RunConfig,
    task: Task,
    path: Path,
    observe: Observer = lambda line: None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """The same on data that are loaded already."""
    config = dataclasses.replace(config, out=str(path))
    return run_tasks([config], [task], [observe], begun=[config], callbacks=callbacks)[0]


def _restore(federation: Federation, path: Path, facts: Mapping[str, Any]) -> Checkpoint | None:
    """Bring a federation to the last checkpoint of a run directory, if that is its own; without one it stays new."""
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
    """The rounds of a run before the first one, and who is served after the last."""
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
    """All rounds that are left, recorded, and the models that come out."""
    names, device, rounds = source.names(config), source.federation.engine.data.device, config.rounds or 0
    path = None if directory is None else directory.path
    told = Callbacks(Run(config, path, past), [*callbacks_of(config), *callbacks])
    found = record(source, rounds, names, device, observe, directory, past, config.early_stop, told)
    came_out = found.summary, found.lines, found.weights, *found.trained.parts(), task.partition
    return Result(*came_out, None if path is None else str(path), found.trained, source.newcomers)
