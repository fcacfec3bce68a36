"""Defences that change the input of a mean: a personalised row's weights, or random buckets of models."""

import math
from dataclasses import dataclass, replace

import torch

from feddwa.defences.base import Defence, Weighted
from feddwa.defences.bounds import shares_within
from feddwa.defences.coordinates import middle
from feddwa.engine import keys
from feddwa.engine.rows import concat, difference, norms
from feddwa.errors import InputError, require
from feddwa.ledger import book
from feddwa.mixing import weighted_mean
from feddwa.params import Repeats


@dataclass(frozen=True)
class RobustRows(Defence):
    """Client i's row of P relative to its own model v_i: a bound on every weight, and clipped differences.

        p'_ij = min(p_ij, kappa) min(1, tau_i / ||v_j - v_i||)      j != i, tau_i: `multiple` times the median distance
        w_i   = v_i + sum_j p'_ij (v_j - v_i)

    The removed weight goes to i's own model, so that the row sums to 1 again. The clipping is ClippedGossip's (He et
    al., 2022); the median is over the partners, by their weights. So `a` attackers move w_i from v_i by at most a kappa
    tau_i, and tau_i is at most an honest partner's distance while these have more than half of the weight that i gives
    to others. A mean for all clients has no own model and is refused.
    """

    summary = "a client's row: bounded weights and clipped differences to its own model"

    kappa: float = 0.5
    """Largest weight of another client; 1 = no bound."""
    multiple: float = 1.0
    """tau_i, in median distances of i's partners; inf = no clipping."""

    def __post_init__(self) -> None:
        require(0 < self.kappa <= 1, "--param kappa", self.kappa, "above 0 and at most 1")
        require(self.multiple > 0, "--param multiple", self.multiple, "a number above 0")

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""
        if given.own is None:
            why = "measures from a client's own model, and this method takes means for several clients"
            raise InputError(f"--defence robust-rows: {why}; take centred-clipping")
        book(len(given), 1, given.models)
        lengths = norms(difference(given.models, given.own))  # (s,), 0 of i's own model
        partners = lengths > 0
        if not partners.any():
            return given
        order = lengths[partners].argsort()
        weights = given.weights[partners][order] / given.weights[partners].sum()
        bound = self.multiple * middle(weights[:, None], lengths[partners][order][:, None])
        capped = torch.where(partners, given.weights.clamp(max=self.kappa), given.weights)
        kept = capped * shares_within(bound, lengths)
        own = concat([{"models": given.models}, {"models": given.own}])["models"]
        return replace(given, weights=torch.cat([kept, 1 - kept.sum()[None]]), models=own, within=None)


@dataclass(frozen=True)
class Bucketing(Defence):
    """Bucketing (Karimireddy et al., ICLR 2022): models are put into random buckets, which are replaced by their means.

    Means vary less than models, so that the next defence mistakes fewer honest ones for attackers. f attackers affect
    at most f of the s / `size` buckets: robustness against a share of attackers becomes robustness against that share
    divided by `size`. Buckets are drawn anew for every mean and round, from the run's seed.
    """

    summary = "random buckets of models become their means, before another defence"

    size: Repeats = 2
    """Models per bucket."""

    def __post_init__(self) -> None:
        require(self.size >= 1, "--param size", self.size, "at least 1")

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""
        assert given.key is not None
        total = len(given)
        order = keys.permutations(given.key.reshape(1), torch.tensor([total]))[0]
        shares = torch.zeros(math.ceil(total / self.size), total, dtype=torch.float64)
        shares[torch.arange(total) // self.size, order] = given.weights[order]
        weights = shares.sum(1)
        return replace(
            given, weights=weights, models=weighted_mean(shares / weights[:, None], given.models), within=None
        )
