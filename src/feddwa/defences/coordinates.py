"""Robust means by coordinate: each number of a model separately."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.defences.base import Assuming, Defence, Weighted
from feddwa.engine import Stack
from feddwa.ledger import book

WIDTH = 1 << 16  # numbers of a model sorted at a time
EQUAL = 1e-9  # weights that differ by less are equal

Rule = Callable[[Tensor, Tensor], Tensor]  # (weights, values), (s, c) each and sorted by value -> (c,)


def by_coordinate(rule: Rule, given: Weighted) -> Weighted:
    """One model from `rule` applied to each coordinate."""
    book(1, len(given), given.models)
    return alone({name: _by_coordinate(rule, given.weights.to(own.device), own) for name, own in given.models.items()})


def alone(model: Stack) -> Weighted:
    """One model (1, *shape) with all the weight."""
    return Weighted(torch.ones(1, dtype=torch.float64), model)


def _by_coordinate(rule: Rule, weights: Tensor, value: Tensor) -> Tensor:
    found = []
    for part in value.reshape(len(value), -1).split(WIDTH, 1):
        ordered, places = part.double().sort(dim=0, stable=True)
        found.append(rule(weights[places], ordered))
    return torch.cat(found).to(value.dtype).reshape(1, *value.shape[1:])


def middle(weights: Tensor, values: Tensor) -> Tensor:
    """(c,) the weighted median of values (s, c) in ascending order with weights (s, c) of sum 1.

    The first value at which half of the weight is reached; if exactly half, the mean of that and the next.
    """
    below = weights.cumsum(0)
    lower, upper = (below < 0.5 - EQUAL).sum(0), (below < 0.5 + EQUAL).sum(0)
    last = len(values) - 1
    return (values.gather(0, lower.clamp(max=last)[None]) + values.gather(0, upper.clamp(max=last)[None]))[0] / 2


def trimmed(weights: Tensor, values: Tensor, share: float) -> Tensor:
    """(c,) the weighted mean of values (s, c) in ascending order without `share` of the weight at each end."""
    above = weights.cumsum(0)
    kept = (above.clamp(max=1 - share) - (above - weights).clamp(min=share)).clamp(min=0)
    return (kept * values).sum(0) / kept.sum(0)


@dataclass(frozen=True)
class Median(Defence):
    """The weighted median of every coordinate (Yin et al., ICML 2018). Robust against less than half of the weight."""

    summary = "the weighted median of every coordinate"

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""
        return by_coordinate(middle, given)


@dataclass(frozen=True)
class TrimmedMean(Assuming):
    """The mean of every coordinate without the largest and the smallest (Yin et al., ICML 2018).

    `attackers` of the weight is cut at each end: with equal weights and f attackers the f largest and f smallest.
    """

    summary = "the mean of every coordinate without its extremes"

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""

        def rule(weights: Tensor, values: Tensor) -> Tensor:
            return trimmed(weights, values, self.attackers)

        return by_coordinate(rule, given) if self.attackers else given
