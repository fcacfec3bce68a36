"""Workers: ranks 1, 2, ..., each a process that trains and scores the clients assigned by rank 0.

`feddwa run --workers 2` starts them (`feddwa/cli/workers.py`); under torchrun the command is rank 0 in one process and
a worker in the others. A worker loads the data itself, prints and writes nothing, and ends with rank 0.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from feddwa import __version__
from feddwa.build import divided, load_dataset, make_engine, make_federation
from feddwa.config import RunConfig, options_of
from feddwa.data.dataset import Dataset
from feddwa.data.task import Task
from feddwa.engine import Engine
from feddwa.engine.network import frozen
from feddwa.engine.rows import digest
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.plugins import label
from feddwa.ranks import CURRENT, Lost, Ranks
from feddwa.shards import BAD_INPUT, FAILED, WORK, answer
from feddwa.sides import ClientSide

BEGIN, END = "begin", "end"  # facts of a message to workers


@contextlib.contextmanager
def dividing(ranks: Ranks) -> Iterator[None]:
    """On rank 0: divide the clients of enclosed runs among the ranks, and release these afterwards."""
    token = CURRENT.set(ranks)
    try:
        yield
        ranks.tell_all({END: True})
    except SystemExit:  # --help
        ranks.tell_all({END: True})
        raise
    finally:
        CURRENT.reset(token)
        ranks.close()


def federation_of(config: RunConfig, task: Task, engine: Engine) -> Federation:
    """The federation of a run, with its clients divided if the command has several ranks."""
    ranks = CURRENT.get()
    if ranks is not None:
        if config.privacy.active and config.privacy.unit == "sample":
            raise InputError("--dp unit=sample: workers do not have the noise plan; run without --workers")
        _begin_all(ranks, config, task, engine)
    return make_federation(config, engine)


def _begin_all(ranks: Ranks, config: RunConfig, task: Task, engine: Engine) -> None:
    """Let all workers load a run; raises if one has other data or another initial model."""
    facts = {BEGIN: options_of(config, leaving_out=("out", "track", "callbacks")), **_alike(task, engine)}
    for rank in ranks.others:
        ranks.send(rank, facts, {})
    for rank in ranks.others:
        answer(ranks, rank)
    engine.ranks = ranks


def _alike(task: Task, engine: Engine) -> dict[str, str]:
    """Facts that must agree on all ranks of a run."""
    initial = {**engine.initial()[0], **frozen(engine.module)}
    versions = f"feddwa {__version__}, torch {torch.__version__}"
    return {"versions": versions, "data": task.fingerprint(), "initial model": digest(initial)}


def serve(ranks: Ranks) -> int:
    """Serve rank 0 until it ends; returns the exit status."""
    with _silence():
        try:
            _serve(ranks)
        except (Lost, KeyboardInterrupt):  # rank 0 prints the error
            return 1
        finally:
            ranks.close()
    return 0


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with Path(os.devnull).open("w") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield


def _serve(ranks: Ranks) -> None:
    side: ClientSide | None = None
    while True:
        facts, given = ranks.receive(0)
        if END in facts:
            return
        found: Mapping[str, Any] = {}
        told: dict[str, Any] = {}
        try:
            if side is None or BEGIN in facts:
                side = _begin(ranks, facts)
            else:
                found = WORK[facts["work"]](side, torch.tensor(facts["clients"]), facts["round"], given)
        except Exception as error:
            told = {FAILED: _in_words(error), BAD_INPUT: isinstance(error, InputError)}
        ranks.send(0, told, found)


def _begin(ranks: Ranks, facts: Mapping[str, Any]) -> ClientSide:
    """The client side of the run started by rank 0."""
    config = RunConfig(**facts[BEGIN]).resolved()
    others = tuple(entry for entry in config.param if not entry.startswith(f"{label(config.algorithm)}."))
    task = _task(dataclasses.replace(config, algorithm="local", param=others))
    engine = make_engine(config, task)
    for name, value in _alike(task, engine).items():
        if facts[name] != value:
            raise InputError(f"{name}: not as on rank 0; all machines need the same files and versions")
    engine.ranks = ranks
    return ClientSide.of(config.make_algorithm(), engine, config.batchnorm, config.chunk, engine.sequential)


@functools.lru_cache(maxsize=1)
def _task(config: RunConfig) -> Task:
    """The data of a run, cached without the algorithm: several runs on them share compiled programs."""
    return divided(config, _dataset(dataclasses.replace(config, seed=0)))


@functools.lru_cache(maxsize=1)
def _dataset(config: RunConfig) -> Dataset:
    return load_dataset(config)


def _in_words(error: Exception) -> str:
    """An error and its notes, with its type unless it is an InputError."""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    expected = isinstance(error, InputError | OSError | RuntimeError)
    return f"{'' if expected else f'{type(error).__name__}: '}{error}{notes}"


def end_with(parent: int) -> None:
    """End this process when its parent has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":  # started by feddwa/cli/workers.py
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes; rank 0 handles it
    store, *numbers = sys.argv[1:]
    number, count, parent = map(int, numbers)
    end_with(parent)
    sys.exit(serve(Ranks(count, number, count, number, store)))
