"""Robust means by distance: other weights of the models, or means of neighbours."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from feddwa.defences.base import Assuming, Defence, Weighted
from feddwa.engine.rows import take
from feddwa.errors import require
from feddwa.mixing import weighted_mean
from feddwa.params import Repeats

AT_REST = 1e-9  # change of a weight in a pass below which passes end


@dataclass(frozen=True)
class GeometricMedian(Defence):
    """RFA: the z with the smallest sum_k p_k ||z - x_k||, by Weiszfeld's algorithm from the mean (Pillutla et al.,
    2019).

    q_k ~ p_k / max(nu, ||z - x_k||), z = sum_k q_k x_k. Robust against less than half of the weight. z is a combination
    of the models, so all passes use the matrix D of squared distances: ||z - x_k||^2 = (D q)_k - q D q / 2.
    """

    summary = "the point with the smallest weighted distance to the models (RFA)"

    passes: Repeats = 100
    """Largest number of Weiszfeld passes; each is over a matrix as large as P."""
    nu: float = 1e-6
    """Distance below which a model's weight no longer grows."""

    def __post_init__(self) -> None:
        require(self.passes >= 1, "--param passes", self.passes, "at least 1")
        require(0 < self.nu < math.inf, "--param nu", self.nu, "a finite number above 0")

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""
        # NumPy: at this size the overhead of torch's calls would dominate.
        weights, distances = given.weights.numpy(), given.distances.numpy()
        new = weights
        for _ in range(self.passes):
            across, old = distances @ new, new
            far = np.sqrt(np.maximum(across - new @ across / 2, 0))
            new = weights / np.maximum(far, self.nu)
            new = new / new.sum()
            if np.abs(new - old).max() < AT_REST:
                break
        return replace(given, weights=torch.from_numpy(new))


@dataclass(frozen=True)
class Krum(Assuming):
    """The model nearest to its neighbours (Blanchard et al., NeurIPS 2017).

    With f attackers expected among s models, a model's score is the sum of squared distances to the s - f - 2 nearest
    others; the model with the smallest score is taken. Robust if s >= 2 f + 3.
    """

    summary = "the one model nearest to its neighbours"

    def kept(self, models: int) -> int:
        """Number of selected models."""
        return 1

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""
        total = len(given)
        neighbours = max(1, total - self.count(total) - 2)
        scores = given.distances.sort(dim=1).values[:, 1 : 1 + neighbours].sum(1)
        best = scores.argsort(stable=True)[: self.kept(total)].sort().values
        weights = given.weights[best]
        return replace(given, weights=weights / weights.sum(), models=take(given.models, best), within=None)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the s - f models with the smallest scores, see Krum."""

    summary = "the mean of the models nearest to their neighbours"

    def kept(self, models: int) -> int:
        """See Krum."""
        return models - self.count(models)


@dataclass(frozen=True)
class NNM(Assuming):
    """Nearest-neighbour mixing (Allouah et al., AISTATS 2023): each model becomes the mean of the s - f nearest to it.

    Itself included. Precedes another defence, which then needs less robustness: `nnm,trimmed-mean`.
    """

    summary = "each model becomes the mean of its nearest, before another defence"

    def models(self, given: Weighted) -> Weighted:
        """See Defence."""
        total = len(given)
        own = torch.eye(total, dtype=torch.float64)  # nearer than any copy of it
        nearest = (given.distances - own).argsort(dim=1, stable=True)[:, : total - self.count(total)]
        shares = torch.zeros(total, total, dtype=torch.float64).scatter_(1, nearest, 1 / nearest.shape[1])
        return replace(given, models=weighted_mean(shares, given.models), within=None)
