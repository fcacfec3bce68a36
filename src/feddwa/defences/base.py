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
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from feddwa.engine import Stack
from feddwa.engine.rows import count
from feddwa.errors import require
from feddwa.mixing import squared_distances


@dataclass
class Weighted:
    """Models with weights, of which a mean is to be taken."""

    weights: Tensor  # (s,) in float64, on the CPU: positive, of sum 1
    models: Stack  # (s, *shape)
    within: "tuple[Weighted, Tensor] | None" = None  # models of which these are some, and their places (s,) there
    own: Stack | None = None  # (1, *shape) that of the client whom the mean is for, where it is for one
    key: Tensor | None = None  # of what a defence draws for this mean
    _distances: Tensor | None = field(init=False, default=None)  # once they are known

    def __len__(self) -> int:
        return count(self.models)

    @property
    def distances(self) -> Tensor:
        """(s, s) squared distances of the models, in float64, on the CPU; all rows of P share one computation."""
        if self._distances is None:  # no cached_property: its lock would be held where lockstep waits for other runs
            if self.within is not None:
                whole, places = self.within
                self._distances = whole.distances[places][:, places]
            else:
                self._distances = squared_distances(self.models, self.models).cpu().fill_diagonal_(0)
        return self._distances


@dataclass(frozen=True)
class Defence:
    """Base of all defences: a frozen dataclass whose fields are the parameters. By default both places do nothing."""

    summary: ClassVar[str]  # one line for `feddwa list defences`

    def updates(self, updates: Stack) -> Stack:
        """What the server goes on with in place of the updates (m, *shape) of a round's participants."""
        return updates

    def models(self, given: Weighted) -> Weighted:
        """Of what a mean is taken in place of these models with their weights, perhaps of another number of models."""
        return given


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
