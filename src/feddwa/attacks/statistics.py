"""Attacks that hide among updates: constructed from the mean and the spread of the known updates.

x_k (k = 1..n) are the known updates, mu their mean, s their standard deviation per coordinate (n - 1). `knows` selects
them: "honest", those of all honest clients of the round, or "own", those that the attackers would send if honest. All
attackers of a round send one update.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from feddwa.attacks.base import Attack, Seen
from feddwa.engine import Model, Stack
from feddwa.engine.rows import count, difference, norms, repeat, take
from feddwa.errors import require
from feddwa.mixing import dots, squared_distances


def mean_of(known: Stack) -> Model:
    """mu of updates (n, *shape), in float64."""
    return Model({name: value.double().mean(0) for name, value in known.items()})


def deviation(known: Stack) -> Model:
    """s of updates (n, *shape), in float64; 0 for a single one."""
    degrees, apart = max(count(known) - 1, 1), difference(known, mean_of(known))
    return Model({name: (value.square().sum(0) / degrees).sqrt() for name, value in apart.items()})


def moved(mean: Model, far: float, way: Model) -> Model:
    """mean + far * way."""
    return Model({name: value + far * way[name] for name, value in mean.items()})


def stealth(clients: int, attackers: int) -> float:
    """ALIE's z: the number of deviations from the mean at which a majority of vectors is still farther away.

    z = Phi^-1((h - q) / h) for h honest clients of n, of whom q = floor(n / 2 + 1) - f are needed for a majority with f
    attackers. At least 0; with a majority of attackers as for q = 1.
    """
    honest, needed = clients - attackers, max(clients // 2 + 1 - attackers, 1)
    share = (honest - needed) / honest if honest else 0.0
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0


@dataclass(frozen=True)
class ALIE(Attack):
    """A little is enough (Baruch et al., NeurIPS 2019): mu - z s, with z so small that many honest updates lie beyond.

    z = Phi^-1((h - q) / h), h = n - f, q = floor(n / 2 + 1) - f for f attackers among n participants, at least 0. The
    paper's attackers know their own updates alone.
    """

    summary = "a little is enough: the mean shifted within the honest spread"

    z: float | None = None
    """Deviations from the mean; none = by the paper's formula, from the number of attackers in the round."""
    knows: Literal["own", "honest"] = "own"
    """The updates behind mean and deviation."""

    def __post_init__(self) -> None:
        known = self.z is None or math.isfinite(self.z)
        require(known, "--param z", self.z, "a finite number, or none")

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        known, attackers = getattr(seen, self.knows), count(seen.own)
        z = stealth(seen.clients, attackers) if self.z is None else self.z
        return repeat(moved(mean_of(known), -z, deviation(known)), attackers)


@dataclass(frozen=True)
class IPM(Attack):
    """Inner product manipulation (Xie et al., UAI 2019): -epsilon mu, which reverses a mean if epsilon > h / f."""

    summary = "inner product manipulation: a small negative multiple of the honest mean"

    epsilon: float = 0.5
    """Factor of the mean: 0.1 is hidden, 100 is conspicuous."""
    knows: Literal["own", "honest"] = "honest"
    """The updates behind the mean."""

    def __post_init__(self) -> None:
        require(0 <= self.epsilon < math.inf, "--param epsilon", self.epsilon, "a finite number, 0 or more")

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        mean = mean_of(getattr(seen, self.knows))
        return repeat({name: -self.epsilon * value for name, value in mean.items()}, count(seen.own))


@dataclass(frozen=True)
class Hidden(Attack):
    """mu + g r, with the largest g for which it is no farther from the x_k than these are from one another."""

    direction: Literal["std", "unit", "sign"] = "std"
    """r: -s, -mu / ||mu|| or -sign(mu)."""
    knows: Literal["own", "honest"] = "honest"
    """The updates that are the x_k."""

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        known = getattr(seen, self.knows)
        return repeat(self.hidden(known), count(seen.own))

    def hidden(self, known: Stack) -> Model:
        """mu + g r from the x_k (n, *shape)."""
        mean, way = mean_of(known), self.way(known)
        apart = difference(known, mean)
        length = float(norms(repeat(way, 1))[0])
        return moved(mean, self.farthest(known, apart, way, length) if length else 0.0, way)

    def way(self, known: Stack) -> Model:
        """r."""
        if self.direction == "std":
            return Model({name: -value for name, value in deviation(known).items()})
        mean = mean_of(known)
        if self.direction == "sign":
            return Model({name: -value.sign() for name, value in mean.items()})
        length = float(norms(repeat(mean, 1))[0]) or 1.0
        return Model({name: -value / length for name, value in mean.items()})

    def farthest(self, known: Stack, apart: Stack, way: Model, length: float) -> float:
        """g from the x_k and x_k - mu (n, *shape), r and ||r||."""
        raise NotImplementedError


@dataclass(frozen=True)
class MinMax(Hidden):
    """Min-Max (Shejwalkar and Houmansadr, NDSS 2021): max_k ||x - x_k|| at most max_kl ||x_k - x_l|| = R.

    g in closed form, where the authors' code uses bisection: the smallest larger root over k of ||r||^2 g^2 + 2 g <r,
    mu - x_k> + ||mu - x_k||^2 - R^2 = 0.
    """

    summary = "as far from the mean as the two most distant honest updates are from each other"

    def farthest(self, known: Stack, apart: Stack, way: Model, length: float) -> float:
        """See Hidden."""
        half: Tensor = -dots(apart, repeat(way, count(apart)))  # <r, mu - x_k>
        rest = norms(apart).square() - squared_distances(known, known).max().cpu()
        roots = (-half + (half.square() - length**2 * rest).clamp(min=0).sqrt()) / length**2
        return float(torch.min(roots))


@dataclass(frozen=True)
class MinSum(Hidden):
    """Min-Sum (ibid.): sum_k ||x - x_k||^2 at most max_l sum_k ||x_l - x_k||^2; g = max_l ||x_l - mu|| / ||r||.

    The authors' code has the smallest sum in place of the largest.
    """

    summary = "as far from the mean as the most distant honest update"

    def farthest(self, known: Stack, apart: Stack, way: Model, length: float) -> float:
        """See Hidden."""
        return float(norms(apart).max()) / length


@dataclass(frozen=True)
class Collusion(MinMax):
    """Min-Max around one honest client: the x_k are the models nearest to its own, and all attackers send one model.

    Distances are between models v_k, not updates, because models near to a personalised one enter its mixture. If the
    victim is absent from a round, attackers are honest.
    """

    summary = "imitates one client's neighbours, at their distance from each other"
    targets = True

    neighbours: int = 5
    """Number of imitated honest models, nearest to the victim's and including its own."""

    def __post_init__(self) -> None:
        require(self.neighbours >= 1, "--param neighbours", self.neighbours, "at least 1")

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        if not len(seen.victim):
            return seen.own
        models = {name: value + seen.honest_start[name] for name, value in seen.honest.items()}
        near = squared_distances(take(models, seen.victim), models)[0].argsort(stable=True)[: self.neighbours].cpu()
        model = self.hidden(take(models, near.sort().values))
        return difference(repeat(model, count(seen.own)), seen.start)
