"""Accounting of Gaussian noise by the package dp-accounting: from a noise multiplier to epsilon, and back.

    noise multiplier z    standard deviation of the noise over the sensitivity
    releases              (q, T): T releases, in each of which a record takes part with probability q, by itself
    relation              unit client with Poisson cohorts, and unit sample: a record replaced by an empty one, which is
                          what add-or-remove accounts for; fixed cohorts and unit local: by any other

RDP is over whole orders: fractional ones gain three percent of epsilon, take ten times as long and may not converge.
"""

import functools
import importlib.util
import math
from dataclasses import dataclass
from typing import Any

from feddwa.errors import InputError

ORDERS = (*range(2, 65), 72, 80, 96, 128, 192, 256, 384, 512)
FEWER = (*range(2, 17), 20, 24, 32, 48, 64)  # for fixed cohorts, whose divergences take a second for all of the others
EXACT = 1e-3  # of a calibrated multiplier, relatively
INTERVAL = 1e-3  # of losses in a privacy loss distribution
SMALLEST, LARGEST = 1e-2, 1e6  # multipliers that are looked among


@dataclass(frozen=True)
class Releases:
    """What a record is exposed to."""

    share: float  # q, in (0, 1]
    count: int  # T
    cohort: tuple[int, int] | None = None  # m of N, drawn without replacement, in place of Poisson sampling


def check_installed() -> None:
    """Raise where the package is missing."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise InputError("--dp: the package dp-accounting is not installed; pip install 'feddwa[dp]'")


@functools.lru_cache(4096)
def epsilon(multiplier: float, releases: Releases, delta: float, accountant: str) -> float:
    """What is spent of the budget."""
    if not releases.count:
        return 0.0
    if not multiplier:
        return math.inf
    check_installed()
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SampledWithoutReplacementDpEvent,
    )

    relation, event = NeighboringRelation.ADD_OR_REMOVE_ONE, GaussianDpEvent(multiplier)
    if releases.cohort is not None:
        relation = NeighboringRelation.REPLACE_ONE
        event = event if releases.share == 1 else SampledWithoutReplacementDpEvent(*releases.cohort[::-1], event)
    elif releases.share < 1:
        event = PoissonSampledDpEvent(releases.share, event)
    account: Any = _accountant(accountant, relation)
    account.compose(event, releases.count)
    return float(account.get_epsilon(delta))


def _accountant(name: str, relation: Any) -> Any:
    from dp_accounting import NeighboringRelation

    if name == "rdp":
        from dp_accounting.rdp import RdpAccountant

        return RdpAccountant(FEWER if relation is NeighboringRelation.REPLACE_ONE else ORDERS, relation)
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(relation, INTERVAL)


@functools.lru_cache(4096)
def multiplier(budget: float, releases: Releases, delta: float, accountant: str) -> float:
    """The smallest noise multiplier with which no more than the budget is spent, to within EXACT of it; inf: 0."""
    if math.isinf(budget) or not releases.count:
        return 0.0
    low = high = 1.0
    while epsilon(high, releases, delta, accountant) > budget:
        low, high = high, 2 * high
        if high > LARGEST:
            raise InputError(f"--dp epsilon: {budget:g} is too little for delta={delta:g}; take more, or fewer rounds")
    while low > SMALLEST and epsilon(low, releases, delta, accountant) <= budget:
        low, high = low / 2, low
    while high > low * (1 + EXACT):
        middle = math.sqrt(low * high)
        spent = epsilon(middle, releases, delta, accountant)
        low, high = (middle, high) if spent > budget else (low, middle)
    return high
