"""Several federations in lockstep: whenever all of them want to train, their clients are trained as one stack.

Seeds of one experiment and trials of a search run the same program on different data or with different numbers. Three
of them are therefore one program with three times the rows, for training, scoring and the server's computations
(`joint.py`). Every federation runs in its own thread as if it were alone; only one thread runs at a time.
`LockstepEngine` submits its rows and waits until those of all federations have been processed.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from feddwa.data.federated import FederatedData, NetworkInput
from feddwa.engine.engine import Engine, Schedule
from feddwa.engine.fast.joint import JointCall
from feddwa.engine.fast.requests import Scoring, Training
from feddwa.engine.fast.worker import Worker
from feddwa.engine.score import Rated, Sums
from feddwa.engine.types import Parts

T = TypeVar("T")


@dataclass
class LockstepEngine(Engine):
    """The engine of one of several federations: keeps its own counts, but trains and scores with the others."""

    sample_offset: int = 0  # number of its first sample in the stack's data
    worker: Worker[Any] | None = None
    made: dict[int, dict[object, Any]] = field(default_factory=dict)  # round -> results computed once: see `shared`

    def advance(self, work: Parts, constants: Parts, schedule: Schedule) -> Parts:
        """See Engine. Waits until the rows of all federations have been trained."""
        offset = self.sample_offset
        epochs = [epoch._replace(order=epoch.order + offset if offset else epoch.order) for epoch in schedule.epochs]
        varies = self.settings.schedule.varies
        new: Parts = self._submit(Training(work, constants, replace(schedule, epochs=epochs), varies))
        return new

    def score(self, asked: Rated) -> Sums:
        """See Engine. Waits until the rows of all federations have been scored."""
        sums: Sums = self._submit(Scoring(replace(asked, index=asked.index + self.sample_offset)))
        return sums

    def enter(self, round: int) -> None:
        """See Engine. Drops the shared results of past rounds."""
        assert self.worker is not None
        self.worker.round = round
        for past in [known for known in self.made if 0 < known < round - 1]:
            del self.made[past]

    def shared(self, round: int, name: object, make: Callable[[], T]) -> T:
        """See Engine."""
        known, found = (self.seed, id(self.data.splits), name), self.made.setdefault(round, {})
        if known not in found:
            found[known] = make()
        made: T = found[known]
        return made

    def _submit(self, request: "Training | Scoring") -> Any:
        assert self.worker is not None
        return self.worker.submit(request)


def stacked_engine(engines: Sequence[Engine]) -> Engine:
    """The engine that trains the rows of all federations on their joined samples."""
    data = _join_data([engine.data for engine in engines])
    return _engine_like(Engine, engines[0], data=data)  # type: ignore[no-any-return]


def lockstep_engines(engines: Sequence[Engine]) -> list[LockstepEngine]:
    """An engine for each federation that trains with the others."""
    parts = [engine.data for engine in engines]
    lengths = [0 if _same_samples(parts) else len(data.y) for data in parts[:-1]]
    offsets = itertools.accumulate(lengths, initial=0)
    shared: dict[str, Any] = {"lockstep": len(engines), "flops": engines[0].flops, "made": {}}
    return [
        _engine_like(LockstepEngine, engine, sample_offset=offset, **shared)
        for engine, offset in zip(engines, offsets, strict=True)
    ]


def run_in_lockstep(stack: Engine, engines: Sequence[LockstepEngine], tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run a task on each engine and return their results. `stack` trains the submitted rows of all.

    A task that fails stops all of them, and its error is raised. A task that ends early lets the others continue.
    """
    stack.lifted, workers = set(), [Worker(task) for task in tasks]
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


def _next_groups(workers: Sequence[Worker[Any]]) -> list[list[Worker[Any]]]:
    """Workers whose requests can be one stack, usually all of them.

    Workers in a later round wait, and within a round those that are further ahead: nothing is scored while a worker
    waits to train, so that federations with more trainings per round stay in step.
    """
    last = min(worker.round for worker in workers)
    behind = [worker for worker in workers if worker.round == last]
    kinds = ([each for each in behind if isinstance(each.request, kind)] for kind in (Training, JointCall, Scoring))
    groups: dict[object, list[Worker[Any]]] = {}
    for worker in next(filter(None, kinds)):
        assert worker.request is not None
        groups.setdefault(worker.request.signature, []).append(worker)
    return list(groups.values())


def _engine_like(kind: type[Any], engine: Engine, **changes: Any) -> Any:
    """An engine of class `kind` with another engine's settings and its own compiled programs."""
    same = ("module", "data", "settings", "seed", "loss", "dtype", "tensor_cores", "metrics")
    return kind(**{**{name: getattr(engine, name) for name in same}, **changes})


def _same_samples(parts: Sequence[FederatedData]) -> bool:
    """Whether all federations divide the same samples."""
    return all(data.x is parts[0].x and data.y is parts[0].y for data in parts)


def _join_data(parts: Sequence[FederatedData]) -> FederatedData:
    """The samples of all federations, without splits: requests refer to samples by number."""
    first = parts[0]
    if _same_samples(parts):
        return replace(first, splits={})
    return replace(first, x=_join_inputs([data.x for data in parts]), y=torch.cat([d.y for d in parts]), splits={})


def _join_inputs(parts: Sequence[NetworkInput]) -> NetworkInput:
    """Concatenated samples (n_i, *shape); each of several inputs separately."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return {name: torch.cat([part[name] for part in parts if not isinstance(part, Tensor)]) for name in first}
