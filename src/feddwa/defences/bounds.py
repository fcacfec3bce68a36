"""Bounds on a client's update."""

import math
from dataclasses import dataclass

from torch import Tensor

from feddwa.defences.base import Defence, Weighted
from feddwa.defences.coordinates import alone, by_coordinate, middle
from feddwa.engine import Stack
from feddwa.engine.rows import count, difference, norms, scale
from feddwa.errors import require
from feddwa.ledger import book
from feddwa.mixing import weighted_mean
from feddwa.params import Repeats


@dataclass(frozen=True)
class Clip(Defence):
    """Norm bounding: updates longer than `multiple` times the round's median norm are scaled down to it.

    Attackers who are less than half of a round cannot raise the bound above that of the longest honest update. This
    bounds how fast a model can be misled, not how far.
    """

    summary = "updates are clipped to a multiple of the cohort's median norm"

    multiple: float = 1.5
    """Bound, in median norms."""

    def __post_init__(self) -> None:
        require(0 < self.multiple < math.inf, "--param multiple", self.multiple, "a finite number above 0")

    def updates(self, updates: Stack) -> Stack:
        """See Defence."""
        book(count(updates), 1, updates)
        lengths = norms(updates)  # (m,)
        return scale(shares_within(self.multiple * lengths.quantile(0.5), lengths), updates)  # even m: mean of two


@dataclass(frozen=True)
class NormBound(Defence):
    """Norm bounding with a fixed norm: updates longer than `bound` are scaled down to it.

    Unlike `clip`, no number of attackers can move it, but the usual norm of updates must be known.
    """

    summary = "updates are clipped to a given norm"

    bound: float = 1.0
    """Largest norm of an update, over all parameters of a model."""

    def __post_init__(self) -> None:
        require(0 < self.bound < math.inf, "--param bound", self.bound, "a finite number above 0")

    def updates(self, updates: Stack) -> Stack:
        """See Defence."""
        book(count(updates), 1, updates)
        return scale(shares_within(self.bound, norms(updates)), updates)


def shares_within(bound: Tensor | float, lengths: Tensor) -> Tensor:
    """(m,) factors that scale vectors of these lengths down to a bound."""
    return (bound / lengths.clamp(min=1e-300)).clamp(max=1)


@dataclass(frozen=True)
class CentredClipping(Defence):
    """Centred clipping (Karimireddy et al., ICML 2021): c <- c + sum_k p_k clip(x_k - c, tau), L times.

    The paper starts from the last round's result with a given tau. Here c starts from the coordinate-wise median and
    tau is `multiple` times the weighted median distance from c, so that rows need no memory and tau no search. Robust
    against less than half of the weight.
    """

    summary = "differences to a centre are clipped, repeatedly"

    multiple: float = 1.0
    """tau, in median distances from the centre."""
    passes: Repeats = 3
    """L: number of passes."""

    def __post_init__(self) -> None:
        require(0 < self.multiple < math.inf, "--param multiple", self.multiple, "a finite number above 0")
        require(self.passes >= 1, "--param passes", self.passes, "at least 1")

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""
        centre, weights = by_coordinate(middle, given).models, given.weights
        for _ in range(self.passes):
            book(len(given), 1, given.models)
            apart = difference(given.models, centre)
            lengths = norms(apart)
            order = lengths.argsort()
            bound = self.multiple * middle(weights[order, None], lengths[order, None])
            step = weighted_mean(weights[None], scale(shares_within(bound, lengths), apart))
            centre = {name: value + step[name] for name, value in centre.items()}
        return alone(centre)
