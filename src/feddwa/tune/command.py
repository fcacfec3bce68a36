"""The searches of several methods: one after another, or each in its own process."""

import dataclasses
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from feddwa.build import divided, load_dataset
from feddwa.config import RunConfig
from feddwa.data.task import Task
from feddwa.errors import InputError
from feddwa.tune.search import Search, run_finals, run_search
from feddwa.tune.space import in_words
from feddwa.workers import end_with

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tuning:
    """Searches of methods on the same data, and the fresh seeds of the runs after them."""

    searches: tuple[Search, ...]
    seeds: tuple[int, ...]
    jobs: int = 1


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lock a search's directory against other processes; the system unlocks it if the process is killed."""
    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{file.parent}: another process is working on this search") from None
        yield


def run_tuning(tuning: Tuning, tell: Tell) -> None:
    """Run the remaining searches and final runs."""
    count = min(tuning.jobs, len(tuning.searches))
    if count <= 1:
        tasks = Tasks(tuning.searches[0].config)
        for search in tuning.searches:
            tell(_method(search, tuning.seeds, tasks))
        return
    with ProcessPoolExecutor(count, get_context("spawn"), _end_with, (os.getpid(),)) as pool:
        try:
            for done in as_completed(_begun(pool, tuning)):
                tell(done.result())
        except BaseException:
            for process in active_children():  # immediately: their files are consistent at any moment
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begun(pool: Executor, tuning: Tuning) -> list[Future[str]]:
    """Start all searches. The processes ignore Ctrl-C, which a terminal sends to all of them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return [pool.submit(_method_alone, search, tuning.seeds) for search in tuning.searches]
    finally:
        signal.signal(signal.SIGINT, before)


class Tasks:
    """The data, divided on request for each seed; samples are loaded once."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._known = config, dict[int, Task]()

    def of(self, seed: int) -> Task:
        """The task of a seed."""
        if seed not in self._known:
            first = next(iter(self._known.values()), None)
            dataset = load_dataset(self._config) if first is None else first.dataset
            self._known[seed] = divided(dataclasses.replace(self._config, seed=seed), dataset)
        return self._known[seed]


def _method(search: Search, seeds: Sequence[int], tasks: Tasks) -> str:
    """Search a method and run it on fresh seeds; returns a description of the result."""
    begun, spent = time.perf_counter(), time.process_time()
    found = run_search(search, tasks.of(search.config.seed))
    run_finals(search.config, search.folder, {seed: tasks.of(seed) for seed in seeds})
    best, name = found["best"], search.folder.name
    took = f"{time.perf_counter() - begun:.0f} s, {time.process_time() - spent:.0f} s of CPU"
    values = in_words(best["values"])
    return f"{name}: {len(found['trials'])} trials, validation {best['validation']:.4g} with {values} ({took})"


def _method_alone(search: Search, seeds: Sequence[int]) -> str:
    """The same in its own process."""
    return _method(search, seeds, Tasks(search.config))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, so that a killed search can be resumed at once."""
    end_with(parent)
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
