"""The interface of defences, which stand between the uploads and the server side of every algorithm.

A server mixes models: it takes weighted means of them, one for all (FedAvg) or one for every client (FedDWA's rows of
P). A defence can act in two places:

    updates   on the updates v_k - w_k as they arrive, before the algorithm sees them
    models    on the weighted models of which a mean is taken, in every mean and in every row of P by itself

The second replaces a mean without knowing what it is for. A row's weights say who matters to a client, so a robust mean
of the row leaves personalised models personal; robust rules over the whole cohort would take the few clients of a small
group for attackers.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddwa.engine import Stack
from feddwa.errors import require


@dataclass(frozen=True)
class Defence:
    """Base of all defences: a frozen dataclass whose fields are the parameters. By default both places do nothing."""

    summary: ClassVar[str]  # one line for `feddwa list defences`

    def updates(self, updates: Stack) -> Stack:
        """What the server goes on with in place of the updates (m, *shape) of a round's participants."""
        return updates

    def models(self, weights: Tensor, models: Stack) -> tuple[Tensor, Stack]:
        """Of what a mean is taken in place of the models (s, *shape) with weights (s,), positive and of sum 1.

        Returns such a pair, perhaps of another length.
        """
        return weights, models


@dataclass(frozen=True)
class Assuming(Defence):
    """A defence that is told how many attackers to expect."""

    attackers: float = 0.3
    """Largest share of attackers that is expected, below 0.5."""

    def __post_init__(self) -> None:
        require(0 <= self.attackers < 0.5, "--param attackers", self.attackers, "from 0 to below 0.5")

    def count(self, models: int) -> int:
        """f, how many of so many models are expected to be attackers'."""
        return math.floor(self.attackers * models + 1e-9)
