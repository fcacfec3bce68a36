"""From a configuration to a finished run: the Python entry points `run`, `resume` and `simulate`."""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from feddwa import checkpoint, metrics, models, runs
from feddwa.algorithms import ALGORITHMS, Algorithm
from feddwa.checkpoint import Checkpoint
from feddwa.config import PAPER, RunConfig
from feddwa.data import partition as partitions
from feddwa.data import sources
from feddwa.data.dataset import Dataset
from feddwa.data.describe import describe
from feddwa.data.federated import bring, federate
from feddwa.data.files import first_line
from feddwa.data.partition import Partition
from feddwa.data.task import Task, from_arrays
from feddwa.engine import Engine, Rows, Settings, keys, together
from feddwa.engine.network import Loss
from feddwa.errors import InputError, unknown
from feddwa.faults import Faults
from feddwa.federation import Federation, Round
from feddwa.provenance import check_same, provenance

Observer = Callable[[dict[str, Any]], None]  # is shown every line of metrics.jsonl as it is made


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # the lines of metrics.jsonl
    weights: list[tuple[np.ndarray, np.ndarray]]  # a round: cohort (m,), P (m, m)
    models: Rows  # (N, *shape) personalised parameters
    buffers: Rows  # (N, *shape) and BatchNorm statistics
    partition: Partition
    path: str | None = None  # the run directory


def load_task(config: RunConfig) -> Task:
    """Load and divide the data that a configuration names."""
    runs.check_free(config.out)
    dataset = sources.load(config.dataset, config.data_dir)
    clients = config.clients or max(1, dataset.owners)
    division = partitions.make(config.partition, config.partition_parameters(), dataset, clients, config.seed)
    return Task(dataset, division)


def run(config: RunConfig | None = None, *, observe: Observer = lambda line: None, **options: Any) -> Result:
    """Run a configuration, or `run(algorithm="feddwa", rounds=10, ...)`; writes a run directory."""
    known = [field.name for field in dataclasses.fields(RunConfig)]
    for name in options:
        if name not in known:
            raise unknown("run", name, known)
    config = dataclasses.replace(config or RunConfig(), **options).resolved()
    return run_task(config, load_task(config), observe)


def run_task(config: RunConfig, task: Task, observe: Observer = lambda line: None) -> Result:
    """Run a resolved configuration on data that are loaded already."""
    return run_tasks([config], [task], observe)[0]


def run_tasks(
    configs: Sequence[RunConfig], tasks: Sequence[Task], observe: Observer = lambda line: None
) -> list[Result]:
    """Run configurations that differ in their seed, in step: the clients of all of them are trained as one stack.

    They all pass the same rounds at the same time; the first one's are shown.
    """
    pairs = [
        (dataclasses.replace(config, clients=task.clients).resolved(), task)
        for config, task in zip(configs, tasks, strict=True)
    ]
    engines = [make_engine(config, task) for config, task in pairs]
    if len(pairs) == 1 or pairs[0][0].backend == "sequential":
        return [_run(*pair, engine, observe) for pair, engine in zip(pairs, engines, strict=True)]
    name = ("stack", _kind(pairs[0][0]), *(id(engine.data.x) for engine in engines))
    stack = tasks[0].keep(name, lambda: together.stacked(engines))
    members = together.members(engines)
    watching = [observe, *[lambda line: None] * (len(pairs) - 1)]
    jobs = [
        partial(_run, *pair, engine, watcher, len(pairs))
        for pair, engine, watcher in zip(pairs, members, watching, strict=True)
    ]
    return together.in_step(stack, members, jobs)


def _run(config: RunConfig, task: Task, engine: Engine, observe: Observer, together: int = 1) -> Result:
    federation = _federation(config, engine)
    names = _names(config) | ({"together": together} if together > 1 else {})  # runs that shared the seconds
    facts = provenance(config, task) if config.checkpoint_every else {}
    with runs.RunDirectory.create(config, describe(task.dataset, task.partition), facts) as directory:
        return _drive(federation, task, config.rounds or 0, names, observe, directory)


def resume(path: str | Path, *, observe: Observer = lambda line: None) -> Result:
    """Go on with the run in a directory from its last checkpoint, to the end that it would have had anyway.

    A run that is finished is read back; it has models if it has a checkpoint.
    """
    path = Path(path)
    if (path / runs.FEDERATION).exists():
        raise InputError(f"{path}: is a federation's; it goes on when it is started again with --out {path}")
    config = runs.read_config(path).resolved()
    try:
        task = load_task(config)
    except InputError as error:
        raise InputError(f"{error} (where the data have moved, change {path / runs.CONFIG})") from None
    return resume_task(config, task, path, observe)


def resume_task(config: RunConfig, task: Task, path: Path, observe: Observer = lambda line: None) -> Result:
    """The same on data that are loaded already."""
    config = dataclasses.replace(config, clients=task.clients, out=str(path)).resolved()
    federation, facts = _federation(config, make_engine(config, task)), provenance(config, task)
    summary = runs.read_summary(path)
    if summary is not None:
        found = _restore(federation, path, facts)
        lines, weights = runs.read_lines(path / runs.METRICS), runs.read_weights(path)
        final, buffers = ({}, {}) if found is None else federation.personal(federation.everybody())
        return Result(summary, lines, weights, final, buffers, task.partition, str(path))
    with runs.RunDirectory.reopen(config, facts) as directory:
        past = directory.rewind(_restore(federation, path, facts))
        return _drive(federation, task, config.rounds or 0, _names(config), observe, directory, past)


def _restore(federation: Federation, path: Path, facts: Mapping[str, Any]) -> Checkpoint | None:
    """Bring a federation to the last checkpoint of a run directory, if that is its own; without one it stays new."""
    found = checkpoint.latest(path / runs.CHECKPOINTS)
    if found is not None:
        check_same(found.facts, facts, path)
        federation.restore(found.round, found.tree)
    return found


def _federation(config: RunConfig, engine: Engine) -> Federation:
    """The federation of a resolved configuration before its first round."""
    _check_single_samples(engine)
    algorithm, sequential = config.make_algorithm(), config.backend == "sequential"
    faults = Faults.parse(config.fault)
    return Federation(algorithm, engine, config.participation, sequential, config.chunk, config.batchnorm, faults)


def _names(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("algorithm", "dataset", "partition", "model")}


def simulate(
    model: nn.Module,
    clients: Iterable[Sequence[Any]],
    algorithm: str | Algorithm = "feddwa",
    *,
    rounds: int = PAPER.rounds,
    epochs: int = 1,
    batch_size: int = PAPER.batch_size,
    lr: float = PAPER.lr,
    participation: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    loss: Loss = F.cross_entropy,
    batchnorm: str = "local",
    fault: str = "",
    observe: Observer = lambda line: None,
) -> Result:
    """Train one model per client on own data: `clients` is a list of (x, y) or (x, y, x_test, y_test).

    Arrays or tensors of any shape: uint8 pixels are scaled to 0..1, other numbers are used as they are. Without test
    data a fifth of each client's samples is set apart for testing. `algorithm` is a name or an instance, e.g.
    `FedDWA(top_k=3)`; the model's present parameters are everybody's start. Nothing is written to disk.
    """
    task = from_arrays(clients)
    algorithm, name = _named_algorithm(algorithm)
    config = RunConfig(
        rounds=rounds, epochs=epochs, batch_size=batch_size, lr=lr, participation=participation, seed=seed,
        device=device, clients=task.clients, batchnorm=batchnorm, fault=fault,
    ).resolved()  # fmt: skip
    module = copy.deepcopy(model)
    engine = _engine(algorithm, module, task, choose_device(device), _settings(config), seed, _dtype(model), loss)
    _try(engine)
    _check_single_samples(engine)
    names = {"algorithm": name, "dataset": "own", "partition": "own", "model": type(model).__name__}
    federation = Federation(algorithm, engine, participation, batchnorm=batchnorm, faults=Faults.parse(fault))
    return _drive(federation, task, rounds, names, observe)


def _named_algorithm(algorithm: str | Algorithm) -> tuple[Algorithm, str]:
    if isinstance(algorithm, Algorithm):
        names = (name for name, kind in ALGORITHMS.items() if type(algorithm) is kind)
        return algorithm, next(names, type(algorithm).__name__)
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    return ALGORITHMS[algorithm](), algorithm


def _try(engine: Engine) -> None:
    """One batch through model and loss, to say in one line where they and the data do not fit."""
    x, y = engine.data.batch(engine.data.splits["test"].index[0, :1], engine.dtype)
    engine.module.eval()
    with torch.no_grad():
        try:
            outputs = engine.module(x)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"model: does not take {x.dtype} samples {tuple(x.shape[1:])}: {first_line(error)}"
            ) from error
        scores = outputs.shape[1] if engine.loss is F.cross_entropy and outputs.ndim > 1 else None
        if scores is not None and scores < engine.data.classes:
            raise InputError(f"model: gives {scores} scores, must be at least {engine.data.classes}, one per class")
        try:
            engine.loss(outputs, y)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            shapes = f"outputs {tuple(outputs.shape)} and {y.dtype} targets {tuple(y.shape)}"
            raise InputError(f"loss: does not take {shapes}: {first_line(error)}") from error


def _check_single_samples(engine: Engine) -> None:
    """BatchNorm over single values has no variance: say so before the run comes to such a batch."""
    width, sizes = engine.settings.batch_size, engine.data.splits["train"].sizes
    alone = (sizes % width == 1).nonzero().flatten() if width > 1 else torch.arange(len(sizes))
    if not len(alone) or not any(isinstance(layer, _BatchNorm) for layer in engine.module.modules()):
        return
    x, _ = engine.data.batch(engine.data.splits["train"].index[0, :1], engine.dtype)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(engine.module).train()(x)
    except ValueError:
        client, size = int(alone[0]), int(sizes[alone[0]])
        raise InputError(
            f"--batch-size {width}: client {client} has {size} training samples, so a batch of one is left over, of "
            "which this model's BatchNorm has no variance; take another batch size"
        ) from None


def _dtype(model: nn.Module) -> torch.dtype:
    return next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.float32)


def make_network(config: RunConfig, dataset: Dataset) -> nn.Module:
    """The network of a configuration, initialised from its own key."""
    if dataset.classes == 0 or dataset.y.ndim != 1 or np.issubdtype(dataset.x.dtype, np.signedinteger):
        what = "no class labels" if dataset.classes == 0 or dataset.y.ndim != 1 else "token ids"
        raise InputError(f"--dataset {config.dataset}: has {what}; bring model and loss with feddwa.simulate in Python")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.seed_of(keys.key(config.seed, "initialisation")))
        return models.make(config.model, dataset.shape, dataset.classes, config.dataset)


def make_engine(config: RunConfig, task: Task) -> Engine:
    """The network of a resolved configuration on its data. Runs on one task share what was compiled for it."""
    module, device, settings = make_network(config, task.dataset), choose_device(config.device), _settings(config)
    dtype = torch.float32 if config.dtype == "tf32" else getattr(torch, config.dtype)
    engine = _engine(config.make_algorithm(), module, task, device, settings, config.seed, dtype)
    programs = task.keep(("programs", _kind(config)), dict)
    return dataclasses.replace(engine, tensor_cores=config.dtype == "tf32", programs=programs)


def _kind(config: RunConfig) -> object:
    """What programs depend on, besides data and step."""
    return config.model, config.dtype, choose_device(config.device)


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" is the GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no GPU found; use auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _settings(config: RunConfig) -> Settings:
    return Settings(config.epochs, config.batch_size or PAPER.batch_size, PAPER.lr if config.lr is None else config.lr)


def _engine(
    algorithm: Algorithm,
    module: nn.Module,
    task: Task,
    device: torch.device,
    settings: Settings,
    seed: int,
    dtype: torch.dtype,
    loss: Loss = F.cross_entropy,
) -> Engine:
    samples = task.keep(("samples", device), lambda: bring(task.dataset, task.partition, device))
    data = federate(task.dataset, task.partition, device, samples)
    if algorithm.validation:
        rng = np.random.default_rng(keys.seed_of(keys.key(seed, "validation")))
        data = data.hold_out(algorithm.validation, rng)
    return Engine(module, data, settings, seed, loss, dtype)


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
    lines, weights = list(past.lines), list(past.weights)
    for line, clients, result in _lines(federation, rounds, test_sizes):
        lines.append(line)
        if result is not None and "weights" in result.info:
            weights.append((result.cohort.ids.numpy(), result.info["weights"].cpu().numpy()))
        if directory is not None:
            directory.add(line, clients, result)
            if result is not None:
                directory.keep(federation.round, federation.state(), time.perf_counter() - start)
        observe(line)
    names = {**names, "clients": federation.engine.data.clients, "rounds": rounds, "seed": federation.engine.seed}
    summary = make_summary(names, lines, time.perf_counter() - start, federation.engine.data.device)
    if directory is not None:
        directory.finish(summary)
    final, buffers = federation.personal(federation.everybody())
    path = None if directory is None else str(directory.path)
    return Result(summary, lines, weights, final, buffers, task.partition, path)


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
    """Mean over the rounds of what one participating client sends, receives and computes."""
    return {
        f"{name}_per_client_round": round(sum(line[name] for line in lines) / len(lines))
        for name in ("bytes_up", "bytes_down", "flops")
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
