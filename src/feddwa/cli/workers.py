"""`--workers N`, and commands under torchrun: where the other ranks of a command come from. torch is not waited for."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import feddwa
from feddwa.errors import InputError, require
from feddwa.params import AtMost


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Processes that share the work of a run."""

    workers: Annotated[int, AtMost(64)] = 1
    """Processes that the clients of a run are divided among."""

    def check_workers(self) -> None:
        """Raise InputError unless this number of processes can be started."""
        require(self.workers >= 1, "--workers", self.workers, "at least 1")
        if self.workers > 1 and launched():
            ranks = os.environ["WORLD_SIZE"]
            raise InputError(f"--workers {self.workers}: torchrun has started {ranks} ranks already; leave it out")


def launched() -> bool:
    """Whether this process is one of several ranks that a launcher such as torchrun has started."""
    known = os.environ
    return {"MASTER_ADDR", "RANK"} <= known.keys() and int(known.get("WORLD_SIZE", "1")) > 1


@contextlib.contextmanager
def with_workers(count: int) -> Iterator[None]:
    """So many processes, this one included, share the work of the enclosed code."""
    if count == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="feddwa-") as folder, _processes(count, f"{folder}/store") as processes:
        from feddwa.ranks import Ranks
        from feddwa.workers import dividing

        with dividing(Ranks(count, 0, count, 0, f"{folder}/store", processes)):
            yield


@contextlib.contextmanager
def _processes(count: int, store: str) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """Start ranks 1, 2, ..., `count` - 1, and end them with the context."""
    paths = [str(Path(feddwa.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    nothing, environment = subprocess.DEVNULL, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    processes = []
    try:
        for rank in range(1, count):
            command = [sys.executable, "-m", "feddwa.workers", store, str(rank), str(count), str(os.getpid())]
            new = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
            processes.append(new)
        yield processes
    finally:
        for process in processes:
            process.kill()  # it holds nothing that is not rank 0's
            process.wait()
