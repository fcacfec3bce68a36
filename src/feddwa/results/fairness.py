"""How unequal clients are served: the worst tenth, the spread, and who would be better off alone.

All of it is of single clients after the last round, by the run's measure: accuracy in percent, or the loss.
"""

from typing import NamedTuple

import numpy as np

TENTH = 10  # the worst tenth is one client at least


class Fairness(NamedTuple):
    """Over the clients of one run that were evaluated."""

    worst_tenth: float  # mean of the tenth of the clients that are served worst
    std: float  # standard deviation over clients (of them all: divided by N)
    below_local: float | None = None  # percent of clients that are better off alone; None without a run of Local


def fairness(scores: np.ndarray, sign: int = 1, gain: np.ndarray | None = None) -> Fairness | None:
    """Of the scores (N,) of clients, nan of those that were not evaluated; None where nobody was.

    sign: 1 where higher is better, else -1; gain: (N,) by how much each client is better than with Local.
    """
    known = scores[np.isfinite(scores)]
    if not len(known):
        return None
    worst = sign * np.sort(sign * known)[: max(1, len(known) // TENTH)]
    below = None if gain is None else 100 * float((gain[np.isfinite(gain)] < 0).mean())
    return Fairness(float(worst.mean()), float(known.std()), below)
