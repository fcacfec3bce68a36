"""Several federations in step: whenever all of them have come to train, their rows are trained as one stack.

Seeds of one experiment do the same work on other data, so three of them are one program with three times the rows. Each
federation runs as if it were alone, in a thread of its own, of which only one moves at a time: it is the engine's
`advance` that waits until every other one has come there, too. Nothing in an algorithm knows of it.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.data.federated import FederatedData
from feddwa.engine.rows import State, concat
from feddwa.engine.trainer import Engine, Schedule

T = TypeVar("T")


@dataclass
class SharedEngine(Engine):
    """The engine of one federation of several: it counts and evaluates for itself and trains with the others."""

    first: int = 0  # where its samples begin in the stack's data
    member: "_Member[Any] | None" = None

    def advance(self, work: State, constants: State, schedule: Schedule) -> State:
        """See Engine. Waits for the others."""
        assert self.member is not None
        orders = [(index + self.first, noise) for index, noise in schedule.orders]
        return self.member.ask(
            Request(work, constants, Schedule(schedule.step, orders, schedule.sizes, schedule.width))
        )


@dataclass(frozen=True)
class Request:
    """Rows that want to be trained."""

    work: State
    constants: State
    schedule: Schedule

    @property
    def kind(self) -> object:
        """Requests of one kind can be one stack."""
        shapes = tuple(
            (part, name, value.shape[1:], value.dtype)
            for state in (self.work, self.constants)
            for part, rows in state.items()
            for name, value in rows.items()
        )
        return self.schedule.step, len(self.schedule.orders), self.schedule.width, shapes


def stacked(engines: Sequence[Engine]) -> Engine:
    """The engine that trains them all, on all their data."""
    return _like(Engine, engines[0], data=_joined([engine.data for engine in engines]))  # type: ignore[no-any-return]


def members(engines: Sequence[Engine]) -> list[SharedEngine]:
    """An engine for each of them that trains with the others."""
    parts = [engine.data for engine in engines]
    lengths = [0 if _alike(parts) else len(data.x) for data in parts[:-1]]
    starts = itertools.accumulate(lengths, initial=0)
    return [
        _like(SharedEngine, engine, first=start, together=len(engines))
        for engine, start in zip(engines, starts, strict=True)
    ]


def in_step(stack: Engine, engines: Sequence[SharedEngine], tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run a task for each engine; what they train is trained as one stack. A failure stops all of them."""
    everybody = [_Member(task) for task in tasks]
    for engine, member in zip(engines, everybody, strict=True):
        engine.member = member
    try:
        while waiting := [member for member in everybody if member.move()]:
            for group in _groups(waiting):
                for member, answer in zip(group, _answers(stack, group), strict=True):
                    member.answer = answer
    finally:
        for member in everybody:
            member.stop()
    return [member.result for member in everybody]


def _answers(stack: Engine, group: Sequence["_Member[Any]"]) -> Iterator[State]:
    requests = [member.request for member in group if member.request is not None]
    new = stack.advance(*_merged(requests))
    ends = itertools.accumulate(len(request.schedule.sizes) for request in requests)
    for request, end in zip(requests, ends, strict=True):
        own = slice(end - len(request.schedule.sizes), end)
        yield {part: {name: value[own] for name, value in rows.items()} for part, rows in new.items()}


def _merged(requests: Sequence[Request]) -> tuple[State, State, Schedule]:
    """One request for all their rows."""
    schedules = [request.schedule for request in requests]
    sizes = torch.cat([schedule.sizes for schedule in schedules])
    orders = [
        (_stacked([index for index, _ in epoch]), torch.cat([noise for _, noise in epoch]))
        for epoch in zip(*(schedule.orders for schedule in schedules), strict=True)
    ]
    work, constants = (concat([getattr(request, name) for request in requests]) for name in ("work", "constants"))
    return work, constants, Schedule(schedules[0].step, orders, sizes, schedules[0].width)


def _stacked(orders: Sequence[Tensor]) -> Tensor:
    """Orders (m, longest) of different lengths under each other; what is beyond a client's size is never looked at."""
    longest = max(order.shape[1] for order in orders)
    return torch.cat([F.pad(order, (0, longest - order.shape[1])) for order in orders])


def _groups(members: Sequence["_Member[Any]"]) -> list[list["_Member[Any]"]]:
    """Members whose requests are of one kind, together. As a rule that is all of them."""
    groups: dict[object, list[_Member[Any]]] = {}
    for member in members:
        if member.request is not None:
            groups.setdefault(member.request.kind, []).append(member)
    return list(groups.values())


class _Stopped(BaseException):
    """Unwinds a thread whose federation is not wanted any more."""


@dataclass
class _Member(Generic[T]):
    """A task in a thread that moves only when it is told to, from one request to the next."""

    task: Callable[[], T]
    request: Request | None = None
    answer: State | None = None
    _thread: threading.Thread | None = None
    _turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # may move
    _rest: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # has come to rest
    _outcome: list[T] = field(default_factory=list)
    _error: BaseException | None = None
    _stopping: bool = False

    def move(self) -> bool:
        """Let it run to its next request; False if it has ended. What it raised is raised here."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        if self._outcome or self._error is not None:
            return False
        self.request = None
        self._turn.release()
        self._rest.acquire()
        if self._error is not None:
            raise self._error
        return self.request is not None

    def ask(self, request: Request) -> State:
        """Called from the task: wait for the rows to be trained."""
        self.request = request
        self._rest.release()
        self._turn.acquire()
        if self._stopping or self.answer is None:
            raise _Stopped
        answer, self.answer = self.answer, None
        return answer

    def stop(self) -> None:
        """Unwind the task if it has not ended."""
        self._stopping = True
        if self._thread is not None:
            self._turn.release()
            self._thread.join()

    @property
    def result(self) -> T:
        """What the task returned."""
        return self._outcome[0]

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._stopping:
                self._outcome.append(self.task())
        except _Stopped:
            pass
        except BaseException as error:  # it is raised again by `move`, in the thread that waits for it
            self._error = error
        finally:
            self._rest.release()


def _like(kind: type[Any], engine: Engine, **changes: Any) -> Any:
    """An engine of a kind with another's settings, and programs of its own."""
    same = ("module", "data", "settings", "seed", "loss", "dtype", "tensor_cores")
    return kind(**{**{name: getattr(engine, name) for name in same}, **changes})


def _alike(parts: Sequence[FederatedData]) -> bool:
    """Whether they divide the same samples."""
    return all(data.x is parts[0].x and data.y is parts[0].y for data in parts)


def _joined(parts: Sequence[FederatedData]) -> FederatedData:
    """All samples; who owns them is what the members know."""
    first = parts[0]
    if _alike(parts):
        return replace(first, splits={})
    x, y = (torch.cat([getattr(data, name) for data in parts]) for name in ("x", "y"))
    return replace(first, x=x, y=y, splits={})
