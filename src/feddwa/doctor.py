"""Checks of a machine, a configuration or a run for common problems, each with a remedy."""

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from feddwa.build import choose_device, load_task, make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.data import cache
from feddwa.data.catalogue import DATASETS
from feddwa.data.describe import Description, describe
from feddwa.data.task import Task
from feddwa.datacheck import data_findings
from feddwa.engine.network import trainable
from feddwa.errors import InputError, InputWarning, counted
from feddwa.federation import Round
from feddwa.forecast import forecast
from feddwa.rates import decided
from feddwa.results import metrics
from feddwa.results.findings import Finding, by_severity, clients_in_words, went_wrong, who_have
from feddwa.results.metrics import Line

if TYPE_CHECKING:
    from feddwa.results.record import Record

EXTRAS = {"flower": "flwr", "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "hub": "datasets"}
FEWEST, TRIAL = 2, 3  # trial rounds; the third is skipped after PATIENCE seconds
PATIENCE = 20.0
SELF = 0.95  # own weight above which a client practically trains alone
SMALL_STEP = 5.0  # points per test sample above which a warning is given


def machine() -> Iterator[Finding]:
    """The programs, device, memory, disk and data."""
    yield Finding("ok", f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}")
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        yield Finding("ok", f"GPU {name}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    else:
        yield Finding("note", f"no GPU is seen by torch: everything runs on the CPU, with {threads} of {cores} cores")
        if threads < cores:
            yield Finding("note", "OMP_NUM_THREADS or a limit keeps torch from the other cores; more may be faster")
    yield from _room()
    found = {name: _version(package) for name, package in EXTRAS.items()}
    have = ", ".join(f"{name} ({version})" for name, version in found.items() if version) or "none"
    lack = ", ".join(name for name, version in found.items() if not version)
    yield Finding("ok", f"extras: {have}" + (f"; not installed: {lack} (pip install 'feddwa[NAME]')" if lack else ""))
    yield from _datasets()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _room() -> Iterator[Finding]:
    """Memory and disk."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        yield Finding("ok" if free > 2 else "warning", f"{free:.1f} GiB of memory free")
    except (ValueError, OSError):
        yield Finding("note", "this system does not tell how much memory is free")
    disk = shutil.disk_usage(Path()).free / 2**30
    yield Finding("ok" if disk > 1 else "warning", f"{disk:.1f} GiB of disk free here")


def _datasets() -> Iterator[Finding]:
    """The datasets that would be found, without reading them."""
    folder = os.environ.get("FEDDWA_DATA")
    entries = [entry.name for entry in cache.root().glob("*-*")] if cache.root().is_dir() else []
    places = [entry.name.lower() for entry in Path(folder).iterdir()] if folder and Path(folder).is_dir() else []
    there = [
        name
        for name, info in DATASETS.items()
        if isinstance(info.source, str)
        or info.source.installed is not None
        or any(entry.startswith(f"{name}-") for entry in entries)
        or {place.lower() for place in info.places} & set(places)
    ]
    where = f"FEDDWA_DATA is {folder}" if folder else "FEDDWA_DATA is not set"
    if folder and not Path(folder).is_dir():
        yield Finding("error", f"{where}, which is no folder; set it to the folder with the datasets, or unset it")
    missing = [name for name in DATASETS if name not in there]
    yield Finding("ok", f"data at hand: {', '.join(there)} ({where}; cache {cache.root()})")
    if missing:
        yield Finding("note", f"data to be fetched or given by --data-dir: {', '.join(missing)}")


def configuration(config: RunConfig) -> Iterator[Finding]:
    """A configuration on its data, and a few trial rounds."""
    try:
        given = dataclasses.replace(config, out=None).resolved()
        task = load_task(given)
    except InputError as error:
        yield Finding("error", str(error))
        return
    yield from data_findings(task)
    try:
        config, lines = decided(given, task)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", InputWarning)
            engine = make_engine(config, task)
    except InputError as error:
        yield Finding("error", str(error))
        return
    yield from (Finding("warning", str(each.message)) for each in told if issubclass(each.category, InputWarning))
    config = dataclasses.replace(config, backend="sequential") if engine.sequential else config
    module = engine.module
    parameters = sum(value.numel() for value in module.parameters())
    moving = sum(value.numel() for value in trainable(module).values())
    size = f"{parameters:,} parameters" + (f", {moving:,} of them trained," if moving < parameters else "")
    what = f"{config.algorithm} on {config.dataset}, {config.partition}, {task.clients} clients"
    yield Finding("ok", f"{what}; network {config.model} with {size} on {choose_device(config.device)}")
    yield from (Finding("ok", line) for line in lines)
    yield from (Finding("note", text) for text in task.dataset.notes)
    description = describe(task.dataset, task.partition)
    yield from data_traps(description, config)
    yield from _batchnorm(module, description, config)
    yield from _cohort(config)
    yield from _trial(config, task, description)


def data_traps(description: Description, config: RunConfig) -> Iterator[Finding]:
    """Clients with too little or too uniform data."""
    train, batch, name = description.train_sizes, config.batch_size or 1, description.client_name
    small = np.flatnonzero(train < batch)
    if len(small):
        yield Finding(
            "warning",
            f"{who_have(small, name)} fewer training samples than a batch of {batch} (the fewest: "
            f"{train.min()}): their epoch is one short step; take a smaller --batch-size or fewer --clients, or leave "
            "small owners out with --min-samples",
        )
    single = np.flatnonzero(((description.counts > 0).sum(axis=1) == 1) & description.classed)
    if len(single):
        yield Finding(
            "warning",
            f"{who_have(single, name)} samples of one class alone: they reach 100 % by always giving the "
            "same answer, and lift every mean; take other partition parameters, or report them apart",
        )
    never = (description.test_counts > 0) & (description.train_counts == 0)  # (N, C)
    if never.any():
        lost = int((description.test_counts * never).sum())
        share = 100 * lost / description.test_counts.sum()
        yield Finding(
            "warning",
            f"{who_have(np.flatnonzero(never.any(axis=1)), name)} test samples of classes without any training sample "
            f"({counted(lost, 'test sample')}, {share:.1f} %): training alone can only fail there",
        )
    step = 100 / description.test_sizes.min()
    if step > SMALL_STEP and description.classed:
        yield Finding(
            "note",
            f"the smallest test set has {counted(int(description.test_sizes.min()), 'sample')}: one of them is "
            f"{step:.1f} points of that client's accuracy; look at means over clients and seeds",
        )
    if not (len(small) or len(single) or never.any()):
        yield Finding(
            "ok",
            f"every client has a batch of {batch}"
            + (", two classes or more, and trains what it is tested on" if description.classed else ""),
        )


def _batchnorm(module: torch.nn.Module, description: Description, config: RunConfig) -> Iterator[Finding]:
    layers = sum(isinstance(layer, _BatchNorm) for layer in module.modules())
    if not layers:
        yield Finding("ok", "the network has no BatchNorm, so --batchnorm changes nothing")
        return
    policies = {
        "local": "statistics stay with their client, scale and shift are mixed",
        "mean": "statistics are averaged over clients, scale and shift are mixed",
        "all-local": "statistics, scale and shift stay with their client (FedBN)",
    }
    yield Finding(
        "note",
        f"{layers} BatchNorm layers, policy {config.batchnorm}: {policies[config.batchnorm]}; it moves accuracies by "
        "points, so compare methods under one policy and name it",
    )
    alone = np.flatnonzero(description.train_sizes % (config.batch_size or 1) == 1)
    if len(alone):
        yield Finding(
            "error",
            f"{clients_in_words(alone, description.client_name)} end an epoch with a batch of one sample, of which "
            f"BatchNorm has no variance; take another --batch-size than {config.batch_size}",
        )


def _cohort(config: RunConfig) -> Iterator[Finding]:
    clients = config.members or 1
    cohort = int(config.participation * clients + 1e-9)
    if cohort < clients:
        yield Finding("note", f"{cohort} of {clients} clients take part in a round; the others keep their models")
    if cohort == 1:
        yield Finding("warning", "one client a round has nobody to learn from; raise --participation or --clients")
    top_k = getattr(config.make_algorithm(), "top_k", None)
    if top_k == 1:
        yield Finding("warning", "top_k=1 keeps no partner but the client itself: this is Local; take 2 or more")
    elif top_k is not None and top_k > cohort:
        yield Finding("note", f"top_k={top_k} is more than the {cohort} clients of a round: nobody is left out")


def _trial(config: RunConfig, task: Task, description: Description) -> Iterator[Finding]:
    """Trial rounds in memory: errors, time per round, and the weights."""
    given, config = config, dataclasses.replace(config, eval_every=1, eval_clients=None)
    engine = make_engine(config, task)
    try:
        federation = make_federation(config, engine)
    except InputError as error:  # not enough memory for all clients
        yield Finding("error", str(error))
        return
    rounds: list[Round] = []
    start = time.perf_counter()
    while len(rounds) < FEWEST or (len(rounds) < TRIAL and time.perf_counter() - start < PATIENCE):
        begun = time.perf_counter()
        rounds.append(federation.step())
        took = time.perf_counter() - begun  # the last round: the first ones also record and warm up
    sizes = engine.data.answers("test")
    lines = [metrics.round_line(each, sizes) for each in rounds]
    lines.append(metrics.final_line(federation.scores, sizes, len(rounds), federation.evaluated))
    found = went_wrong(lines, description.test_counts, finished=False, name=description.client_name)
    yield from found
    fine = ": finite numbers, no broken update" if all(each.level == "note" for each in found) else ""
    yield Finding("ok", f"{len(rounds)} rounds tried{fine}, about {took:.2g} s a round")
    expected = forecast(given, federation, took)
    yield Finding("ok", expected.in_words())
    yield from (Finding("error", each) for each in expected.lacking(given, engine.data.device))
    matrices = [each.info["weights"].double().cpu().numpy() for each in rounds if "weights" in each.info]
    yield from method_traps(config, lines, matrices)


def method_traps(config: RunConfig, lines: Sequence[Line], matrices: Iterable[np.ndarray]) -> Iterator[Finding]:
    """A method that does not suit the task, by its own warnings and its weights.

    `lines`: of metrics.jsonl, from round 1 on; `matrices`: P (m, m) of each round. Shown wherever results are shown: in
    the terminal, in the report and here.
    """
    numbers = [line["method"] for line in lines if "method" in line]
    measured = [each for each in numbers if None not in each.values()]  # NaN: the model has diverged
    for text in config.make_algorithm().warnings(measured, config.rounds or 0):
        yield Finding("warning", text)
    yield from weight_traps(config.algorithm, matrices)


def weight_traps(algorithm: str, matrices: Iterable[np.ndarray]) -> Iterator[Finding]:
    """Warnings from a method's weights, (m, m) of each round; read one by one, as all may not fit in memory."""
    own, clients = [], 0
    for matrix in matrices if algorithm != "local" else ():
        own.append(float(np.trace(abs(matrix)) / max(abs(matrix).sum(), 1e-12)))
        clients = len(matrix)
    if not own:
        return
    if own[-1] <= SELF or clients == 1:
        yield Finding("ok", f"{100 * own[-1]:.0f} % of a client's new model is its own, the rest comes from others")
        return
    since = next(i for i in range(len(own)) if min(own[i:]) > SELF) + 1
    yield Finding(
        "warning",
        f"weights close to the identity: from round {since} on at least {100 * min(own[since - 1 :]):.1f} % of a "
        f"client's new model is its own, so {algorithm} has become Local; look at its hyper-parameters, and at whether "
        "training has come to rest",
    )


def finished_run(record: "Record") -> Iterator[Finding]:
    """Findings from the data and numbers of a run directory."""
    state = "finished" if record.finished else "not finished"
    yield Finding(
        "ok" if record.finished else "note", f"{record.config.algorithm}, {record.rounds[-1]} rounds, {state}"
    )
    if record.partition is not None:
        yield from data_traps(record.partition, record.config)
    yield from record.findings
    if all(each.level == "note" for each in record.findings):
        yield Finding("ok", "all losses are finite, and no broken update was sent")
    yield from method_traps(record.config, record.lines, (each.matrix for each in record.weights))


def told(record: "Record") -> list[Finding]:
    """Findings to show with the results of a run: failures, and warnings from its weights."""
    method = method_traps(record.config, record.lines, (each.matrix for each in record.weights))
    return by_severity(each for each in (*record.findings, *method) if each.level != "ok")
