"""`feddwa federate`: a run over Flower, as real processes on this machine, from keys and certificates to the result."""

import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from feddwa.build import load_task, make_network
from feddwa.data.describe import describe, to_json
from feddwa.data.task import Task
from feddwa.engine import Stack
from feddwa.errors import InputError, require
from feddwa.flower.processes import handling
from feddwa.flower.settings import FlowerConfig
from feddwa.plugins import DATASETS, is_foreign
from feddwa.rates import decided
from feddwa.result import Result
from feddwa.results import runs
from feddwa.results.recorder import Observer
from feddwa.results.weights import read as read_weights
from feddwa.storage import write_whole

if TYPE_CHECKING:
    from feddwa.flower.local import LocalFederation

POLL = 0.3  # seconds between two queries for the status of the run
NODES, KEYS = "nodes", "keys"  # folders in the run directory: the nodes' memory; their keys, until the run has finished


def federate(
    config: FlowerConfig,
    nodes: int,
    insecure: bool = False,
    observe: Observer = lambda line: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Result:
    """Run a configuration on a SuperLink and `nodes` SuperNodes, which are started for it and stopped after it.

    insecure: neither TLS nor keys; observe: called with every line of metrics.jsonl; tell: called with what is being
    started. An unfinished run in `config.out` is continued.
    """
    if importlib.util.find_spec("flwr") is None:
        raise InputError("federate: Flower is not installed; pip install 'feddwa[flower]'")
    path = Path(config.out) if config.out else runs.default_path(config.algorithm, config.dataset)
    if not (runs.unfinished(path) and (path / runs.FEDERATION).exists()):
        runs.check_free(str(path))
    elif insecure:
        raise InputError(f"--insecure: the run in {path} cannot go on so, its clients belong to keys")
    task = load_task(config)
    make_network(config, task.dataset)
    require(1 <= nodes <= task.clients, "--nodes", nodes, f"from 1 to {task.clients}, the number of clients")
    config, told = decided(config, task)
    for text in (*task.notes, *told):
        tell(text)
    samples, out = _samples(task), str(path.resolve())
    config = dataclasses.replace(config, clients=task.clients, min_nodes=nodes, samples=samples, out=out)
    _describe(path, task)
    tell(f"Starting a SuperLink and {nodes} SuperNodes{' without TLS and keys' if insecure else ''} ...")
    _run(config, nodes, insecure, observe)
    return read_back(path, task)


def read_back(path: Path, task: Task) -> Result:
    """A federation that is finished, from its run directory and the folders of its nodes."""
    content, lines = runs.read_record(path), runs.read_lines(path / runs.METRICS)
    assert content is not None
    return Result(content["summary"], lines, read_weights(path), _models(path), {}, task.partition, str(path))


def _samples(task: Task) -> str:
    from feddwa.flower.samples import text_of

    return text_of(task.dataset)


def _describe(path: Path, task: Task) -> None:
    """Write each client's name and data into `partition.json`: the nodes of a real federation do not disclose them."""
    path.mkdir(parents=True, exist_ok=True)
    content = to_json(describe(task.dataset, task.partition))
    write_whole(path / runs.PARTITION, json.dumps(content) + "\n")


def _run(config: FlowerConfig, nodes: int, insecure: bool, observe: Observer) -> None:
    from feddwa.flower.local import LocalFederation

    folder, path = Path(tempfile.mkdtemp(prefix="feddwa-")), Path(config.out or "")
    settings = {"memory": str(path / NODES)}
    if not DATASETS.knows(config.dataset):
        settings["dataset"] = config.dataset
    named = (config.algorithm, config.model or "", config.partition or "", config.dataset)
    if references := [name for name in named if is_foreign(name)]:
        settings["references"] = ",".join(references)
    if config.data_dir is not None:
        settings["data-dir"] = config.data_dir
    try:
        keys = path / KEYS if (path / KEYS).exists() else None
        with (
            handling(_interrupt, signal.SIGTERM),
            LocalFederation(folder, nodes, settings, insecure, keys=keys) as federation,
        ):
            _watch(federation, config, observe)
    except RuntimeError:
        raise  # its text names the folder of the logs, which is therefore kept
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
    shutil.rmtree(path / KEYS, ignore_errors=True)


def _interrupt(*_: object) -> None:
    """Treat SIGTERM like Ctrl-C, so that the started processes are stopped first."""
    os.kill(os.getpid(), signal.SIGINT)


def _keep_keys(federation: "LocalFederation", folder: Path) -> None:
    """Copy the nodes' keys to `folder`: rows belong to keys, so the run can only be continued with the same ones."""
    temporary = folder.with_suffix(".part")
    temporary.mkdir(mode=0o700, exist_ok=True)
    for number in range(federation.nodes):
        for file in (federation.key(number), federation.key(number).with_suffix(".pub")):
            shutil.copy(file, temporary / file.name)
    os.replace(temporary, folder)


def _watch(federation: "LocalFederation", config: FlowerConfig, observe: Observer) -> None:
    """Start the run and report its metrics until it ends; RuntimeError where it fails."""
    run, shown, path = federation.control.start(federation.app, config), 0, Path(config.out or "")
    while (status := federation.control.status(run)).status != "finished":
        shown = _show(path, shown, observe)
        if shown and not federation.insecure and not (path / KEYS).exists():
            _keep_keys(federation, path / KEYS)
        ended = federation.processes.ended()
        if ended:
            raise RuntimeError(f"{', '.join(ended)} ended; the logs are in {federation.processes.logs}")
        time.sleep(POLL)
    _show(path, shown, observe)
    if status.sub_status != "completed":
        said = "".join(federation.control.log(run))
        (federation.processes.logs / "serverapp.log").write_text(said, encoding="utf-8")
        raise RuntimeError(f"{status.details or status.sub_status}; the logs are in {federation.processes.logs}")


def _show(path: Path, shown: int, observe: Observer) -> int:
    """Call `observe` with the lines of metrics.jsonl after the first `shown`; returns how many there are now."""
    if not (path / runs.METRICS).exists():
        return shown
    lines = (path / runs.METRICS).read_bytes().split(b"\n")[:-1]  # after the last line end stands an unfinished line
    for line in lines[shown:]:
        observe(json.loads(line))
    return len(lines)


def _models(path: Path) -> Stack:
    """Every client's personalised model, (N, *shape), read from the folders of the nodes."""
    federation = json.loads((path / runs.FEDERATION).read_text(encoding="utf-8"))["federation"]
    files = sorted((path / NODES / federation).glob("*/client-*.safetensors"), key=lambda file: file.name)
    each = [load_file(file) for file in files]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}
