"""Inequality between clients: the worst tenth, the spread, and the share that would be better off alone.

All values are of single clients after the last round, by the run's measure: accuracy in percent, or the loss.
"""

from typing import NamedTuple

import numpy as np

TENTH = 10  # the worst tenth is one client at least


class Fairness(NamedTuple):
    """Statistics over the evaluated clients of one run."""

    worst_tenth: float  # mean over the worst tenth of the clients
    std: float  # standard deviation over clients (of them all: divided by N)
    below_local: float | None = None  # percent of clients that are better off alone; None without a run of Local


def fairness(scores: np.ndarray, sign: int = 1, gain: np.ndarray | None = None) -> Fairness | None:
    """Statistics of the clients' scores (N,), nan if not evaluated; None if no client was evaluated.

    sign: 1 if higher is better, else -1; gain: (N,) each client's improvement over Local.
    """
    known = scores[np.isfinite(scores)]
    if not len(known):
        return None
    worst = sign * np.sort(sign * known)[: max(1, len(known) // TENTH)]
    below = None if gain is None else 100 * float((gain[np.isfinite(gain)] < 0).mean())
    return Fairness(float(worst.mean()), float(known.std()), below)
