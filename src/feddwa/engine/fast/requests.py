"""Requests of federations in lockstep: rows to train or score, served as one stack if their signatures agree."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.engine import Engine, Epoch, Schedule
from feddwa.engine.numbers import numbers, template
from feddwa.engine.rows import concat, tensors
from feddwa.engine.score import Rated, Sums
from feddwa.engine.types import Parts, Stack


@dataclass(frozen=True)
class Training:
    """Rows to train: the arguments of `Engine.advance`, with samples numbered as in the stack."""

    work: Parts
    constants: Parts
    schedule: Schedule
    varies: bool  # whether the numbers of the step change from round to round

    @property
    def signature(self) -> object:
        """The step's template, epochs, batch size, augmentation, and name, shape and dtype of every tensor.

        Requests with equal signatures can be one stack: the numbers of their steps may differ.
        """
        schedule, shapes = self.schedule, _shapes({**self.work, **self.constants})
        return template(schedule.step), len(schedule.epochs), schedule.width, schedule.augment, shapes

    @staticmethod
    def serve(stack: Engine, requests: "Sequence[Training]") -> Iterator[Parts]:
        """Train requests of one signature as one stack; yields the rows of each in order."""
        first = requests[0].schedule.step
        if any(request.varies or request.schedule.step != first for request in requests):
            stack.lifted.add(template(first))
        new = stack.advance(*_merge(requests, template(first) in stack.lifted))
        for rows in _places([request.schedule.rows for request in requests]):
            yield {part: {name: value[rows] for name, value in stack.items()} for part, stack in new.items()}


@dataclass(frozen=True)
class Scoring:
    """Rows to score, with samples numbered as in the stack."""

    asked: Rated

    @property
    def signature(self) -> object:
        """Whether outputs are requested, and name, shape and dtype of every tensor."""
        return self.asked.outputs, _shapes({"model": self.asked.model, "buffers": self.asked.buffers})

    @staticmethod
    def serve(stack: Engine, requests: "Sequence[Scoring]") -> Iterator[Sums]:
        """Score requests of one signature as one stack; yields the sums of each in order."""
        asked = [request.asked for request in requests]
        parts = concat([{"model": each.model, "buffers": each.buffers} for each in asked])
        index, sizes = _stack_orders([each.index for each in asked]), torch.cat([each.sizes for each in asked])
        found = stack.score(Rated(parts["model"], parts["buffers"], index, sizes, asked[0].outputs))
        for rows in _places([len(each.sizes) for each in asked]):
            yield Sums(found.right[rows], found.loss[rows], found.answers[rows], found.outputs[rows])


def _shapes(parts: Parts) -> object:
    """Name, shape of a row and dtype of every tensor."""
    return tuple((name, value.shape[1:], value.dtype) for name, value in tensors(parts))


def _places(counts: Sequence[int]) -> list[slice]:
    """The rows of each request in the stack."""
    ends = itertools.accumulate(counts)
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _merge(requests: Sequence[Training], lifted: bool) -> tuple[Parts, Parts, Schedule]:
    """The arguments of one `Engine.advance` for the rows of all requests, in their order."""
    schedules = [request.schedule for request in requests]
    epochs = [
        Epoch(_stack_orders([own.order for own in each]), *(torch.cat([own[k] for own in each]) for k in (1, 2)))
        for each in zip(*(schedule.epochs for schedule in schedules), strict=True)
    ]
    work, constants = (concat([getattr(request, name) for request in requests]) for name in ("work", "constants"))
    whole = replace(schedules[0], epochs=epochs, rows=sum(each.rows for each in schedules))
    if lifted:
        device = next((epoch.order.device for epoch in epochs), None)
        whole = replace(whole, step=template(whole.step), numbers=_numbers_of_rows(schedules, device))
    return work, constants, whole


def _numbers_of_rows(schedules: Sequence[Schedule], device: torch.device | None) -> Stack:
    """The numbers of all requests' steps, repeated for their rows: (sum of m_i,)."""
    steps, rows = [numbers(each.step) for each in schedules], torch.tensor([each.rows for each in schedules])
    values = {name: torch.tensor([step[name] for step in steps], dtype=torch.float64) for name in steps[0]}
    return {name: value.repeat_interleave(rows).to(device) for name, value in values.items()}


def _stack_orders(orders: Sequence[Tensor]) -> Tensor:
    """Sample orders (m_i, longest_i) as one (sum of m_i, longest), padded with zeros.

    Entries beyond a client's size are never read.
    """
    longest = max(order.shape[1] for order in orders)
    filled = (order if order.shape[1] == longest else F.pad(order, (0, longest - order.shape[1])) for order in orders)
    return torch.cat(list(filled))
