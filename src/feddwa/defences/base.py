"""The interface of defences, which act between the uploads and the server side of every algorithm.

A server mixes models: it takes weighted means of them, one for all (FedAvg) or one per client (FedDWA's rows of P). A
defence can act in two places:

    updates   on the updates v_k - w_k on arrival, before the algorithm sees them
    models    on the weighted models of a mean, separately in every mean and in every row of P

The second replaces a mean without knowing its use. A row's weights show which models matter to a client, so a robust
mean of the row keeps personalised models personal; robust rules over the whole cohort would mistake the few clients of
a small group for attackers.
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
    """Models and weights of a mean."""

    weights: Tensor  # (s,) in float64, on the CPU: positive, of sum 1
    models: Stack  # (s, *shape)
    within: "tuple[Weighted, Tensor] | None" = (
        None  # the models from which these were selected, and their positions (s,)
    )
    own: Stack | None = None  # (1, *shape) the receiving client's model, if the mean is for one client
    key: Tensor | None = None  # for random draws of this mean
    _distances: Tensor | None = field(init=False, default=None)  # cached

    def __len__(self) -> int:
        return count(self.models)

    @property
    def distances(self) -> Tensor:
        """(s, s) squared distances of the models, in float64, on the CPU; all rows of P share one computation."""
        if self._distances is None:  # no cached_property: lockstep would wait for other runs while holding its lock
            if self.within is not None:
                whole, places = self.within
                self._distances = whole.distances[places][:, places]
            else:
                self._distances = squared_distances(self.models, self.models).cpu().fill_diagonal_(0)
        return self._distances


@dataclass(frozen=True)
class Defence:
    """Base of all defences: a frozen dataclass whose fields are the parameters. By default neither place changes
    anything.
    """

    summary: ClassVar[str]  # one line for `feddwa list defences`

    def updates(self, updates: Stack) -> Stack:
        """The updates (m, *shape) that the server uses in place of the participants'."""
        return updates

    def models(self, given: Weighted) -> Weighted:
        """The models and weights to average in place of the given ones, possibly fewer or more."""
        return given


@dataclass(frozen=True)
class Assuming(Defence):
    """A defence with an assumed share of attackers."""

    attackers: float = 0.3
    """Largest expected share of attackers, below 0.5."""

    def __post_init__(self) -> None:
        require(0 <= self.attackers < 0.5, "--param attackers", self.attackers, "from 0 to below 0.5")

    def count(self, models: int) -> int:
        """f, the expected number of attackers among `models`."""
        return math.floor(self.attackers * models + 1e-9)
