"""Several federations in lockstep: whenever all of them want to train, their clients are trained as one stack.

Seeds of one experiment, and trials of a search, do the same work on different data or with different numbers, so three
of them are one program with three times the rows, trained and scored. Every federation runs as if it were alone, in a
thread of its own; only one thread runs at a time. `LockstepEngine` hands its rows in and waits until those of all
federations have been worked on.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.data.federated import FederatedData, NetworkInput
from feddwa.engine.engine import Engine, Epoch, Schedule
from feddwa.engine.numbers import template
from feddwa.engine.rows import concat, tensors
from feddwa.engine.score import Rated, Sums
from feddwa.engine.types import Parts

T = TypeVar("T")


@dataclass
class LockstepEngine(Engine):
    """The engine of one of several federations: counts by itself, trains and scores with the others."""

    sample_offset: int = 0  # number of its first sample in the stack's data
    worker: "_Worker[Any] | None" = None
    drawn: dict[object, Any] = field(default_factory=dict)  # in the round, by twins: those of one seed on the same data

    def advance(self, work: Parts, constants: Parts, schedule: Schedule) -> Parts:
        """See Engine. Waits until the rows of all federations have been trained."""
        schedule = schedule.lifted() if self.settings.schedule.varies else schedule
        epochs = [epoch._replace(order=epoch.order + self.sample_offset) for epoch in schedule.epochs]
        new: Parts = self._submit(Training(work, constants, replace(schedule, epochs=epochs)))
        return new

    def score(self, asked: Rated) -> Sums:
        """See Engine. Waits until the rows of all federations have been scored."""
        sums: Sums = self._submit(Scoring(replace(asked, index=asked.index + self.sample_offset)))
        return sums

    def draw(self, round: int, name: object, make: Callable[[], T]) -> T:
        """See Engine. What a twin has drawn in this round is taken from there."""
        if self.drawn.get("round") != round:
            self.drawn.clear()
        known = self.seed, id(self.data.splits), name
        if known not in self.drawn:
            self.drawn.update({"round": round, known: make()})
        found: T = self.drawn[known]
        return found

    def _submit(self, request: "Training | Scoring") -> Any:
        assert self.worker is not None
        return self.worker.submit(request)


@dataclass(frozen=True)
class Training:
    """Rows that are to be trained: the arguments of `Engine.advance`, with samples numbered as the stack has them."""

    work: Parts
    constants: Parts
    schedule: Schedule

    @property
    def signature(self) -> object:
        """The step's template, epochs, batch size, augmentation, and name, shape and dtype of every tensor.

        Requests that agree can be one stack: the numbers of their steps may differ.
        """
        shapes = _shapes({**self.work, **self.constants})
        return (
            template(self.schedule.step),
            len(self.schedule.epochs),
            self.schedule.width,
            self.schedule.augment,
            shapes,
        )

    @staticmethod
    def serve(stack: Engine, requests: "Sequence[Training]") -> Iterator[Parts]:
        """Train requests of one signature as one stack; the rows of each in turn."""
        first = requests[0].schedule.step
        if any(request.schedule.numbers or request.schedule.step != first for request in requests):
            stack.lifted.add(template(first))
        new = stack.advance(*_merge(requests, template(first) in stack.lifted))
        for rows in _places([request.schedule.rows for request in requests]):
            yield {part: {name: value[rows] for name, value in stack.items()} for part, stack in new.items()}


@dataclass(frozen=True)
class Scoring:
    """Rows that are to be scored, with samples numbered as the stack has them."""

    asked: Rated

    @property
    def signature(self) -> object:
        """Whether outputs are wanted, and name, shape and dtype of every tensor."""
        return self.asked.outputs, _shapes({"model": self.asked.model, "buffers": self.asked.buffers})

    @staticmethod
    def serve(stack: Engine, requests: "Sequence[Scoring]") -> Iterator[Sums]:
        """Score requests of one signature as one stack; the sums of each in turn."""
        asked = [request.asked for request in requests]
        parts = concat([{"model": each.model, "buffers": each.buffers} for each in asked])
        index, sizes = _stack_orders([each.index for each in asked]), torch.cat([each.sizes for each in asked])
        found = stack.score(Rated(parts["model"], parts["buffers"], index, sizes, asked[0].outputs))
        for rows in _places([len(each.sizes) for each in asked]):
            yield Sums(found.right[rows], found.loss[rows], found.outputs[rows])


def stacked_engine(engines: Sequence[Engine]) -> Engine:
    """The engine that trains the rows of all federations, on the samples of all of them."""
    data = _join_data([engine.data for engine in engines])
    return _engine_like(Engine, engines[0], data=data)  # type: ignore[no-any-return]


def lockstep_engines(engines: Sequence[Engine]) -> list[LockstepEngine]:
    """For each federation's engine one that trains with the others."""
    parts = [engine.data for engine in engines]
    lengths = [0 if _same_samples(parts) else len(data.y) for data in parts[:-1]]
    offsets = itertools.accumulate(lengths, initial=0)
    shared: dict[str, Any] = {"lockstep": len(engines), "flops": engines[0].flops, "drawn": {}}
    return [
        _engine_like(LockstepEngine, engine, sample_offset=offset, **shared)
        for engine, offset in zip(engines, offsets, strict=True)
    ]


def run_in_lockstep(stack: Engine, engines: Sequence[LockstepEngine], tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run a task on each engine and return their results. `stack` trains what all of them ask for.

    A task that fails stops all of them, and its error is raised. A task that ends early leaves the others to go on.
    """
    stack.lifted, workers = set(), [_Worker(task) for task in tasks]
    for engine, worker in zip(engines, workers, strict=True):
        engine.worker = worker
    try:
        while waiting := [worker for worker in workers if worker.run_to_request()]:
            for group in _next_groups(waiting):
                requests: list[Any] = [worker.request for worker in group]
                for worker, reply in zip(group, requests[0].serve(stack, requests), strict=True):
                    worker.reply = reply
    finally:
        for worker in workers:
            worker.stop()
    return [worker.result for worker in workers]


def _shapes(parts: Parts) -> object:
    """Name, shape of a row and dtype of every tensor."""
    return tuple((name, value.shape[1:], value.dtype) for name, value in tensors(parts))


def _places(counts: Sequence[int]) -> list[slice]:
    """The rows of each request in a stack of all."""
    ends = itertools.accumulate(counts)
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _merge(requests: Sequence[Training], lifted: bool) -> tuple[Parts, Parts, Schedule]:
    """The arguments of one `Engine.advance` for the rows of all requests, in their order."""
    schedules = [request.schedule.lifted() if lifted else request.schedule for request in requests]
    epochs = [
        Epoch(_stack_orders([own.order for own in each]), *(torch.cat([own[k] for own in each]) for k in (1, 2)))
        for each in zip(*(schedule.epochs for schedule in schedules), strict=True)
    ]
    work, constants = (concat([getattr(request, name) for request in requests]) for name in ("work", "constants"))
    numbers = {name: torch.cat([schedule.numbers[name] for schedule in schedules]) for name in schedules[0].numbers}
    return (
        work,
        constants,
        replace(schedules[0], epochs=epochs, rows=sum(each.rows for each in schedules), numbers=numbers),
    )


def _stack_orders(orders: Sequence[Tensor]) -> Tensor:
    """Sample orders (m_i, longest_i) as one (sum of m_i, longest), padded by zeros.

    What is beyond the size of a client is never read.
    """
    longest = max(order.shape[1] for order in orders)
    return torch.cat([F.pad(order, (0, longest - order.shape[1])) for order in orders])


def _next_groups(workers: Sequence["_Worker[Any]"]) -> list[list["_Worker[Any]"]]:
    """Workers whose requests can be one stack, as a rule all of them.

    Nothing is scored while somebody waits to train, so that who trains more often in a round does not leave the step.
    """
    training = [worker for worker in workers if isinstance(worker.request, Training)]
    groups: dict[object, list[_Worker[Any]]] = {}
    for worker in training or workers:
        assert worker.request is not None
        groups.setdefault(worker.request.signature, []).append(worker)
    return list(groups.values())


class _Stopped(BaseException):
    """Unwinds the thread of a task that has been stopped."""


@dataclass
class _Worker(Generic[T]):
    """A task in a thread of its own that runs only when it is told to, from one request to the next."""

    task: Callable[[], T]
    request: Training | Scoring | None = None
    reply: Any = None
    _thread: threading.Thread | None = None
    _may_run: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _paused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # at a request, or ended
    _results: list[T] = field(default_factory=list)  # one, once the task has ended
    _error: BaseException | None = None
    _stopping: bool = False

    def run_to_request(self) -> bool:
        """Run the task to its next request; False if it has ended. Raises what the task raised."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        if self._results or self._error is not None:
            return False
        if self.request is not None and self.reply is None:
            return True  # it is still waiting
        self.request = None
        self._may_run.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error
        return self.request is not None

    def submit(self, request: Training | Scoring) -> Any:
        """Hand in a request and wait for its reply. Called from the task's thread."""
        self.request = request
        self._paused.release()
        self._may_run.acquire()
        if self._stopping or self.reply is None:
            raise _Stopped
        reply, self.reply = self.reply, None
        return reply

    def stop(self) -> None:
        """Unwind the task if it has not ended."""
        self._stopping = True
        if self._thread is not None:
            self._may_run.release()
            self._thread.join()

    @property
    def result(self) -> T:
        """What the task returned."""
        return self._results[0]

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            if not self._stopping:
                self._results.append(self.task())
        except _Stopped:
            pass
        except BaseException as error:  # raised again by `run_to_request`, in the thread that waits for it
            self._error = error
        finally:
            self._paused.release()


def _engine_like(kind: type[Any], engine: Engine, **changes: Any) -> Any:
    """An engine of a kind with another one's settings, and compiled programs of its own."""
    same = ("module", "data", "settings", "seed", "loss", "dtype", "tensor_cores", "metrics")
    return kind(**{**{name: getattr(engine, name) for name in same}, **changes})


def _same_samples(parts: Sequence[FederatedData]) -> bool:
    """Whether all federations divide the same samples."""
    return all(data.x is parts[0].x and data.y is parts[0].y for data in parts)


def _join_data(parts: Sequence[FederatedData]) -> FederatedData:
    """The samples of all federations, without splits: requests name their samples by number."""
    first = parts[0]
    if _same_samples(parts):
        return replace(first, splits={})
    return replace(first, x=_join_inputs([data.x for data in parts]), y=torch.cat([d.y for d in parts]), splits={})


def _join_inputs(parts: Sequence[NetworkInput]) -> NetworkInput:
    """Samples (n_i, *shape) one behind the other; of several inputs each by itself."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return {name: torch.cat([part[name] for part in parts if not isinstance(part, Tensor)]) for name in first}
