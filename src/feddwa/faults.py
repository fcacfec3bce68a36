"""Sick and slow clients for the simulator (`--fault dropout=0.2,nan=0.05,straggler=0.1`).

Each is the share of affected clients, drawn anew from the run's seed in every round.

    dropout     does not take part in the round: it neither trains nor replies
    straggler   replies too late: a client needs (training samples) / (speed) of simulated time, with a log-normal
                speed drawn every round; the deadline is when the fastest 1 - straggler have replied
    nan         replies with NaN
    shape       replies with a tensor of another shape

A client that drops out keeps its memory and its personalised model and may be drawn again. A late client has trained:
its own memory has changed, but the server has not received it. A client whose update is refused keeps its state from
before the round.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.engine import Cohort, Message, Stack, keys
from feddwa.engine.rows import put, take
from feddwa.updates import Signature

SPREAD = 0.5  # standard deviation of the logarithm of a client's speed


@dataclass(frozen=True)
class Faults:
    """Shares of clients, from 0 to 1. Nothing by default."""

    dropout: float = 0.0
    straggler: float = 0.0
    nan: float = 0.0
    shape: float = 0.0

    def absent(self, seed: int, cohort: Cohort) -> Tensor:
        """(m,) bool: clients that drop out of a round."""
        if not self.dropout:
            return _nobody(cohort)
        return _draw(seed, "dropout", cohort) < self.dropout

    def late(self, seed: int, cohort: Cohort) -> Tensor:
        """(m,) bool: clients that miss the deadline."""
        if not self.straggler:
            return _nobody(cohort)
        drawn = keys.normal64(keys.key(seed, "speed", cohort.round, cohort.ids), 1)[:, 0]
        times = cohort.sizes / torch.exp(SPREAD * drawn)
        return times.argsort().argsort() >= len(cohort) - round(self.straggler * len(cohort))

    def signatures(self, seed: int, cohort: Cohort, honest: Signature) -> list[Signature]:
        """The signature of every client's message on arrival."""
        if not self.shape:
            return [honest] * len(cohort)
        other = {name: ((*shape, 1), dtype) for name, (shape, dtype) in honest.items()}
        return [other if wrong else honest for wrong in (_draw(seed, "shape", cohort) < self.shape).tolist()]

    def sent(self, seed: int, cohort: Cohort, upload: Message) -> Message:
        """The uploads on arrival, from those of healthy clients."""
        if not self.nan:
            return upload
        sick = (_draw(seed, "nan", cohort) < self.nan).nonzero().flatten()
        return {part: put(rows, sick, _without_numbers(take(rows, sick))) for part, rows in upload.items()}


HEALTHY = Faults()


def _nobody(cohort: Cohort) -> Tensor:
    """(m,) False: draws take hundreds of small operations, which a healthy federation skips."""
    return torch.zeros(len(cohort), dtype=torch.bool)


def _draw(seed: int, purpose: str, cohort: Cohort) -> Tensor:
    """(m,) draws in [0, 1), independent per client."""
    return keys.uniform64(keys.key(seed, f"fault/{purpose}", cohort.round, cohort.ids), 1)[:, 0]


def _without_numbers(rows: Stack) -> Stack:
    """The rows with NaN in place of all real numbers."""
    return {
        name: torch.full_like(value, torch.nan) if value.is_floating_point() else value for name, value in rows.items()
    }
