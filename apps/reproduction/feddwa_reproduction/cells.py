"""Run cells: cells of one kind as one stack of rows, stacks one after another or in parallel."""

import dataclasses
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from feddwa.config import RunConfig
from feddwa.errors import InputError, counted
from feddwa.plugins import ALGORITHMS
from feddwa.results.store import Store
from feddwa_reproduction import run

Tell = Callable[[str], None]
Watch = Callable[[str, int], AbstractContextManager[run.Observer]]  # (title, rounds) -> observer of the rounds


def unwatched(what: str, rounds: int) -> AbstractContextManager[run.Observer]:
    """An observer that ignores every round."""
    return nullcontext(lambda line: None)


@dataclass(frozen=True)
class Cell:
    """A run of a plan."""

    name: str
    config: RunConfig
    seeds: tuple[int, ...]  # wanted
    missing: tuple[int, ...]  # wanted seeds without a result
    keep_weights: bool = False  # whether results keep P of some rounds
    series: str = ""  # the series that tables measure; results keep it as well
    untuned: str = ""  # why it cannot be run: a hyper-parameter must be measured first

    @property
    def kind(self) -> RunConfig:
        """The configuration without stackable hyper-parameters: cells of one kind can share a stack."""
        stackable = ALGORITHMS.find(self.config.algorithm).stackable
        own = (entry for entry in self.config.param if _parameter(entry) not in stackable)
        return dataclasses.replace(self.config, param=tuple(own))


def _parameter(entry: str) -> str:
    """KEY of NAME.KEY=VALUE."""
    return entry.partition("=")[0].rpartition(".")[2]


@dataclass
class Progress:
    """Counts of runs (cells times seeds) of a plan."""

    found: int = 0  # had results before
    made: int = 0
    left: int = 0  # not begun: time limit
    failed: list[str] = field(default_factory=list)  # with the reason
    without_data: list[str] = field(default_factory=list)  # columns, with the reason


@dataclass(frozen=True)
class Schedule:
    """How cells are run, in this process or in workers."""

    results: Path
    here: Mapping[str, Any]  # data_dir, device, dtype
    jobs: int = 1  # stacks in parallel, each in its own process
    deadline: float | None = None  # in time.time(), the same in all processes; no stack begins after it

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.time() > self.deadline


def run_cells(cells: Sequence[Cell], schedule: Schedule, tell: Tell, watch: Watch = unwatched) -> Progress:
    """Run the missing seeds of every cell; a cell that fails does not stop the others."""
    stacks, progress = _stacks(cells), Progress()
    for stack, done in (_at_once if schedule.jobs > 1 else _one_by_one)(stacks, schedule, tell, watch):
        progress.made += done.made
        progress.left += sum(len(cell.missing) for cell in stack) - done.made
        progress.failed += done.failed
        for failure in done.failed:
            tell(failure)
    return progress


def _stacks(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells with missing seeds, grouped by kind, in the order of the first cell of each kind."""
    stacks: dict[RunConfig, list[Cell]] = {}
    for cell in cells:
        if cell.missing:
            stacks.setdefault(cell.kind, []).append(cell)
    return list(stacks.values())


def _title(stack: Sequence[Cell]) -> str:
    return stack[0].name + (f" and {len(stack) - 1} more" if len(stack) > 1 else "")


def _one_by_one(
    stacks: Sequence[Sequence[Cell]], schedule: Schedule, tell: Tell, watch: Watch
) -> Iterator[tuple[Sequence[Cell], Progress]]:
    for stack in stacks:
        yield stack, _run(stack, schedule, tell, watch)


def _at_once(
    stacks: Sequence[Sequence[Cell]], schedule: Schedule, tell: Tell, watch: Watch
) -> Iterator[tuple[Sequence[Cell], Progress]]:
    """Run stacks in worker processes, so that one trains while another is loaded, evaluated or saved."""
    waiting, busy, idle = deque(stacks), dict[Connection, Sequence[Cell]](), list[Connection]()
    with ExitStack() as workers:
        while waiting or busy:
            while waiting and len(busy) < schedule.jobs:
                worker = idle.pop() if idle else workers.enter_context(_worker(schedule))
                busy[worker] = waiting.popleft()
                with suppress(BrokenPipeError):  # the worker has died; `_message` reports it
                    worker.send(busy[worker])
            for worker in _ready(busy):
                message = _message(worker)
                if isinstance(message, str):
                    tell(message)
                    continue
                stack = busy.pop(worker)
                idle += [worker] if message else []
                with watch(_title(stack), stack[0].config.rounds or 0):
                    yield stack, message or Progress(failed=[f"{_title(stack)}: failed: its process died"])


def _ready(links: Iterable[Connection]) -> list[Connection]:
    """Wait for workers that have sent a message or died, and return their links."""
    return [link for link in wait(list(links)) if isinstance(link, Connection)]


def _message(link: Connection) -> str | Progress | None:
    """The next message: a line to print, the outcome of a stack, or None if the process has died."""
    try:
        message: str | Progress = link.recv()
    except (EOFError, ConnectionResetError):
        return None
    return message


@contextmanager
def _worker(schedule: Schedule) -> Iterator[Connection]:
    """The link to a spawned process that runs stacks (a CUDA context does not survive a fork)."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(its, schedule), daemon=True)
    process.start()
    its.close()  # so that our end closes when the process ends
    try:
        yield ours
    finally:
        process.terminate()  # an unfinished stack continues from its last checkpoint
        process.join()
        ours.close()


def _serve(link: Connection, schedule: Schedule) -> None:
    """Receive stacks; send lines to print, and the outcome of each stack."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        link.send(_run(link.recv(), schedule, link.send, unwatched))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(stack: Sequence[Cell], schedule: Schedule, tell: Tell, watch: Watch) -> Progress:
    """Train the missing seeds of cells of one kind as one stack."""
    progress, store = Progress(), Store(schedule.results)
    if schedule.late():
        return progress
    runs = {
        dataclasses.replace(cell.config, **schedule.here, seed=seed): cell for cell in stack for seed in cell.missing
    }
    try:
        with watch(f"{_title(stack)} ({counted(len(runs), 'seed')})", stack[0].config.rounds or 0) as observe:
            for config, work in run.run_stack(list(runs), run.task, store.work, observe):
                cell = runs[config]
                found = run.publish(config, work, schedule.jobs, cell.keep_weights, cell.series)
                store.save(found)
                progress.made += 1
                accuracy = found["series"]["before.all"][-1]
                tell(f"{cell.name}, seed {config.seed}: {accuracy:.2f} %, {found['cell']}")
    except (InputError, RuntimeError, OSError) as error:  # bad options, full GPU or disk
        progress.failed.append(f"{_title(stack)}: failed: {error}")
    return progress
