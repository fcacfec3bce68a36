"""From a configuration to a finished run: the Python entry points `run`, `resume` and `simulate`."""

import copy
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from feddwa import checkpoint, metrics, params, runs
from feddwa.algorithms import Algorithm
from feddwa.build import (
    check_single_samples,
    choose_device,
    dtype_of,
    engine_on,
    load_task,
    make_engine,
    program_kind,
    settings_of,
    settled,
    try_batch,
)
from feddwa.checkpoint import Checkpoint
from feddwa.config import PAPER, RunConfig, named
from feddwa.data.describe import describe
from feddwa.data.partition import Partition
from feddwa.data.task import Task, from_arrays
from feddwa.engine import Engine, Rows
from feddwa.engine.fast import lockstep
from feddwa.engine.network import Loss
from feddwa.engine.trial import try_training
from feddwa.errors import InputError, unknown
from feddwa.faults import Faults
from feddwa.federation import Federation, Round
from feddwa.plugins import ALGORITHMS
from feddwa.provenance import check_same, provenance

Observer = Callable[[dict[str, Any]], None]  # is shown every line of metrics.jsonl as it is made


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # the lines of metrics.jsonl
    weights: Sequence[tuple[np.ndarray, np.ndarray]]  # a round: cohort (m,), P (m, m); a run's are read from its files
    models: Rows  # (N, *shape) personalised parameters
    buffers: Rows  # (N, *shape) and BatchNorm statistics
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
        (settled(dataclasses.replace(config, clients=task.clients), task.dataset), task)
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
    federation = _federation(config, engine)
    facts = provenance(config, task) if config.checkpoint_every else {}
    with runs.RunDirectory.create(config, describe(task.dataset, task.partition), facts) as directory:
        return _drive(federation, task, config.rounds or 0, _names(config, engine), observe, directory)


def _resume(config: RunConfig, task: Task, engine: Engine, observe: Observer) -> Result:
    path, federation, facts = Path(str(config.out)), _federation(config, engine), provenance(config, task)
    if (path / runs.SUMMARY).exists():
        runs.check_sums(path)  # before anything is read: what has changed is named as such
    summary = runs.read_summary(path)
    if summary is not None:
        found = _restore(federation, path, facts)
        lines, weights = runs.read_lines(path / runs.METRICS), runs.read_weights(path)
        final, buffers = ({}, {}) if found is None else federation.personal(federation.everybody())
        return Result(summary, lines, weights, final, buffers, task.partition, str(path))
    with runs.RunDirectory.reopen(config, facts) as directory:
        past = directory.rewind(_restore(federation, path, facts))
        return _drive(federation, task, config.rounds or 0, _names(config, engine), observe, directory, past)


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


def _federation(config: RunConfig, engine: Engine) -> Federation:
    """The federation of a resolved configuration before its first round."""
    check_single_samples(engine)
    algorithm, sequential = config.make_algorithm(), config.backend == "sequential"
    faults = Faults.parse(config.fault)
    return Federation(algorithm, engine, config.participation, sequential, config.chunk, config.batchnorm, faults)


def _names(config: RunConfig, engine: Engine) -> dict[str, Any]:
    """The names in a summary, and how many runs in lockstep shared its seconds, where there were several."""
    names = {name: getattr(config, name) for name in ("algorithm", "dataset", "partition", "model")}
    return names | ({"lockstep": engine.lockstep} if engine.lockstep > 1 else {})


def simulate(
    model: nn.Module,
    clients: Iterable[Sequence[Any]] | Mapping[str, Sequence[Any]],
    algorithm: str | Algorithm = "feddwa",
    *,
    rounds: int = PAPER.rounds,
    epochs: int = 1,
    batch_size: int = PAPER.batch_size,
    lr: float = PAPER.lr,
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
    options = participation, backend == "sequential", None, batchnorm, Faults.parse(fault)
    federation = Federation(algorithm, engine, *options)
    return _drive(federation, task, rounds, names, observe)


def _named_algorithm(algorithm: str | Algorithm) -> tuple[Algorithm, str]:
    if isinstance(algorithm, Algorithm):
        params.check(algorithm)
        names = (name for name, kind in ALGORITHMS.builtin.items() if type(algorithm) is kind)
        return algorithm, next(names, type(algorithm).__name__)
    return ALGORITHMS.find(algorithm, "algorithm")(), algorithm


def _drive(
    federation: Federation,
    task: Task,
    rounds: int,
    names: dict[str, Any],
    observe: Observer,
    directory: runs.RunDirectory | None = None,
    past: runs.Past = runs.NEW,
) -> Result:
    """All rounds that are left, each written and shown as it ends; then the models that come out."""
    start, test_sizes = time.perf_counter() - past.seconds, federation.engine.data.splits["test"].sizes
    lines: list[dict[str, Any]] = list(past.lines)
    weights: list[tuple[np.ndarray, np.ndarray]] = []  # only where there is no directory to hold them
    for line, clients, result in _lines(federation, rounds, test_sizes):
        lines.append(line)
        if directory is not None:
            directory.add(line, clients, result)
            if result is not None:
                directory.keep(federation.round, federation.state(), time.perf_counter() - start)
        elif result is not None and "weights" in result.info:
            weights.append((result.cohort.ids.numpy(), result.info["weights"].cpu().numpy()))
        observe(line)
    names = {**names, "clients": federation.engine.data.clients, "rounds": rounds, "seed": federation.engine.seed}
    summary = make_summary(names, lines, time.perf_counter() - start, federation.engine.data.device)
    if directory is not None:
        directory.finish(summary)
    final, buffers = federation.personal(federation.everybody())
    if directory is None:
        return Result(summary, lines, weights, final, buffers, task.partition)
    stored = runs.read_weights(directory.path)
    return Result(summary, lines, stored, final, buffers, task.partition, str(directory.path))


def make_summary(
    names: Mapping[str, Any], lines: list[dict[str, Any]], seconds: float, device: torch.device
) -> dict[str, Any]:
    """What a run came to, from the lines of metrics.jsonl."""
    return {
        **names,
        "accuracy": metrics.summarise(lines),
        "loss": metrics.summarise_loss(lines),
        "missing": metrics.summarise_missing(lines),
        **_costs(lines[:-1]),
        "seconds": round(seconds, 2),
        "device": _device_name(device),
    }


def _lines(
    federation: Federation, rounds: int, test_sizes: torch.Tensor
) -> Iterator[tuple[dict[str, Any], dict[str, Any], Round | None]]:
    while federation.round < rounds:
        result = federation.step()
        line = metrics.round_line(result, test_sizes, federation.honest)
        yield line, metrics.client_line(line["round"], result.before, result.after, result.cohort.ids), result
    yield (
        metrics.final_line(federation.scores, test_sizes, rounds, federation.honest),
        metrics.client_line(rounds + 1, federation.scores, None, None),
        None,
    )


def _costs(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Mean over the rounds of what one participating client sends, receives and computes, and of the server's work."""
    names = {f"{name}_per_client_round": name for name in ("bytes_up", "bytes_down", "flops")}
    names["server_flops_per_round"] = "server_flops"
    return {key: round(sum(line[name] for line in lines) / len(lines)) for key, name in names.items()}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
