"""From a configuration to a finished run: the Python entry points `run`, `resume` and `simulate`."""

import copy
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional as F

from feddwa import checkpoint, params, rates
from feddwa.algorithms import Algorithm
from feddwa.build import (
    check_single_samples,
    choose_device,
    dtype_of,
    engine_on,
    load_task,
    make_engine,
    make_federation,
    program_kind,
    settings_of,
    settled,
    try_batch,
)
from feddwa.checkpoint import Checkpoint
from feddwa.config import RunConfig, named
from feddwa.data.catalogue import OWN
from feddwa.data.describe import describe
from feddwa.data.partition import Partition
from feddwa.data.task import Task, from_arrays
from feddwa.engine import Engine, Stack
from feddwa.engine.fast import lockstep
from feddwa.engine.network import Loss
from feddwa.engine.trial import try_training
from feddwa.errors import InputError, unknown
from feddwa.federation import Federation
from feddwa.plugins import ALGORITHMS
from feddwa.results import runs
from feddwa.results.provenance import check_same, provenance
from feddwa.results.recorder import Observer, SimulatedRounds, record
from feddwa.results.weights import Weights
from feddwa.results.weights import read as read_weights


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # the lines of metrics.jsonl
    weights: Sequence[Weights]  # of every round; a run directory's are read from its files when they are asked for
    models: Stack  # (N, *shape) personalised parameters
    buffers: Stack  # (N, *shape) and BatchNorm statistics
    partition: Partition
    path: str | None = None  # the run directory


def run(config: RunConfig | None = None, *, observe: Observer = lambda line: None, **options: Any) -> Result:
    """Run a configuration, or `run(algorithm="feddwa", rounds=10, ...)`; writes a run directory.

    `algorithm`, `model`, `partition` and `dataset` may be own objects instead of names: see `config.named`.
    """
    known = [field.name for field in dataclasses.fields(RunConfig)]
    for name in options:
        if name not in known:
            raise unknown("run", name, known)
    config = dataclasses.replace(config or RunConfig(), **named(options)).resolved()
    runs.check_free(config.out)
    return run_task(config, load_task(config), observe)


def run_task(config: RunConfig, task: Task, observe: Observer = lambda line: None) -> Result:
    """Run a resolved configuration on data that are loaded already."""
    return run_tasks([config], [task], observe)[0]


def run_tasks(
    configs: Sequence[RunConfig],
    tasks: Sequence[Task],
    observe: Observer = lambda line: None,
    begun: Collection[RunConfig] = (),
) -> list[Result]:
    """Run configurations of one network, in lockstep: what their clients train alike is trained as one stack.

    Networks whose frozen parameters differ run one after another. Those that are `begun` go on from the last checkpoint
    in their directory. The rounds of the first one are shown.
    """
    jobs = [_resume if config in begun else _run for config in configs]
    pairs = [
        (rates.chosen(settled(dataclasses.replace(config, clients=task.clients), task.dataset), task), task)
        for config, task in zip(configs, tasks, strict=True)
    ]
    engines = [make_engine(config, task) for config, task in pairs]
    kinds = {program_kind(config, engine) for (config, _), engine in zip(pairs, engines, strict=True)}
    if len(pairs) == 1 or pairs[0][0].backend == "sequential" or len(kinds) > 1:
        return [job(*pair, engine, observe) for job, pair, engine in zip(jobs, pairs, engines, strict=True)]
    samples = [task.keep("identity of the samples", object) for task in tasks]  # one object where samples are shared
    name = ("stack", *kinds, *(samples if len(set(samples)) > 1 else samples[:1]))
    stack = tasks[0].keep(name, lambda: lockstep.stacked_engine(engines))
    members = lockstep.lockstep_engines(engines)
    watching = [observe, *[lambda line: None] * (len(pairs) - 1)]
    work = [
        partial(job, *pair, engine, watcher)
        for job, pair, engine, watcher in zip(jobs, pairs, members, watching, strict=True)
    ]
    return lockstep.run_in_lockstep(stack, members, work)


def _run(config: RunConfig, task: Task, engine: Engine, observe: Observer) -> Result:
    federation = make_federation(config, engine)
    facts = provenance(config, task) if config.checkpoint_every else {}
    with runs.RunDirectory.create(config, describe(task.dataset, task.partition), facts) as directory:
        rates.write(directory.path, config, task)
        return _finish(federation, task, config.rounds or 0, _names(config, engine), observe, directory)


def _resume(config: RunConfig, task: Task, engine: Engine, observe: Observer) -> Result:
    path, federation, facts = Path(str(config.out)), make_federation(config, engine), provenance(config, task)
    if (path / runs.RECORD).exists():
        runs.check_sums(path)  # before anything is read: what has changed is named as such
    content = runs.read_record(path)
    if content is not None:
        found = _restore(federation, path, facts)
        lines, weights = runs.read_lines(path / runs.METRICS), read_weights(path)
        final, buffers = ({}, {}) if found is None else federation.personal(federation.everybody())
        return Result(content["summary"], lines, weights, final, buffers, task.partition, str(path))
    with runs.RunDirectory.reopen(config, facts) as directory:
        past = directory.rewind(_restore(federation, path, facts))
        return _finish(federation, task, config.rounds or 0, _names(config, engine), observe, directory, past)


def resume(path: str | Path, *, observe: Observer = lambda line: None) -> Result:
    """Go on with the run in a directory from its last checkpoint, to the end that it would have had anyway.

    A run that is finished is read back; it has models if it has a checkpoint.
    """
    path = Path(path)
    if (path / runs.FEDERATION).exists():
        raise InputError(f"{path}: is a federation's; it continues when it is started again with --out {path}")
    config = runs.read_config(path).resolved()
    try:
        task = load_task(config)
    except InputError as error:
        raise InputError(f"{error} (where the data have moved, change {path / runs.CONFIG})") from None
    return resume_task(config, task, path, observe)


def resume_task(config: RunConfig, task: Task, path: Path, observe: Observer = lambda line: None) -> Result:
    """The same on data that are loaded already."""
    config = dataclasses.replace(config, out=str(path))
    return run_tasks([config], [task], observe, begun=[config])[0]


def _restore(federation: Federation, path: Path, facts: Mapping[str, Any]) -> Checkpoint | None:
    """Bring a federation to the last checkpoint of a run directory, if that is its own; without one it stays new."""
    found = checkpoint.latest(path / runs.CHECKPOINTS)
    if found is not None:
        check_same(found.facts, facts, path)
        federation.restore(found.round, found.tree)
    return found


def _names(config: RunConfig, engine: Engine) -> dict[str, Any]:
    """The names in a summary, and how many runs in lockstep shared its seconds, where there were several."""
    names = {name: getattr(config, name) for name in ("algorithm", "dataset", "partition", "model")}
    return names | ({"lockstep": engine.lockstep} if engine.lockstep > 1 else {})


def simulate(
    model: nn.Module,
    clients: Iterable[Sequence[Any]] | Mapping[str, Sequence[Any]],
    algorithm: str | Algorithm = "feddwa",
    *,
    rounds: int = OWN.rounds,
    epochs: int = 1,
    batch_size: int = OWN.batch_size,
    lr: float = OWN.lr,
    participation: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    backend: str = "vectorised",
    loss: Loss = F.cross_entropy,
    batchnorm: str = "local",
    fault: str = "",
    observe: Observer = lambda line: None,
) -> Result:
    """Train one model per client on own data: `clients` is a list of (x, y) or (x, y, x_test, y_test), or a mapping
    from the clients' names to these.

    Arrays or tensors of any shape: uint8 pixels are scaled to 0..1, other numbers are used as they are. Without test
    data a fifth of each client's samples is set apart for testing. `algorithm` is a name or an instance, e.g.
    `FedDWA(top_k=3)`; the model's present parameters are everybody's start, and those with requires_grad=False stay as
    they are. `backend="sequential"` trains one client after another, for models that cannot be mapped over clients.
    Nothing is written to disk.
    """
    task = from_arrays(clients)
    algorithm, name = _named_algorithm(algorithm)
    config = RunConfig(
        rounds=rounds, epochs=epochs, batch_size=batch_size, lr=lr, participation=participation, seed=seed,
        device=device, backend=backend, clients=task.clients, batchnorm=batchnorm, fault=fault,
    ).resolved()  # fmt: skip
    module = copy.deepcopy(model)
    engine = engine_on(algorithm, module, task, choose_device(device), settings_of(config), seed, dtype_of(model), loss)
    try_batch(engine)
    check_single_samples(engine)
    try_training(engine, backend == "sequential")
    names = {"algorithm": name, "dataset": "own", "partition": "own", "model": type(model).__name__}
    return _finish(make_federation(config, engine, algorithm), task, rounds, names, observe)


def _named_algorithm(algorithm: str | Algorithm) -> tuple[Algorithm, str]:
    if isinstance(algorithm, Algorithm):
        params.check(algorithm)
        names = (name for name, kind in ALGORITHMS.builtin.items() if type(algorithm) is kind)
        return algorithm, next(names, type(algorithm).__name__)
    return ALGORITHMS.find(algorithm, "algorithm")(), algorithm


def _finish(
    federation: Federation,
    task: Task,
    rounds: int,
    names: Mapping[str, Any],
    observe: Observer,
    directory: runs.RunDirectory | None = None,
    past: runs.Past = runs.NEW,
) -> Result:
    """All rounds that are left, recorded, and the models that come out."""
    data = federation.engine.data
    names = {**names, "clients": data.clients, "seed": federation.engine.seed}
    found = record(SimulatedRounds(federation), rounds, names, data.device, observe, directory, past)
    final, buffers = federation.personal(federation.everybody())
    path = None if directory is None else str(directory.path)
    return Result(found.summary, found.lines, found.weights, final, buffers, task.partition, path)
