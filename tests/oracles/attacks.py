"""Attacks once more, in NumPy and float64, from the papers' words. Vectors x (n, d) are those that attackers know.

Distances are searched by halving intervals, as the authors of Min-Max and Min-Sum do, and not in closed form.
"""

import math

import numpy as np


def normal_quantile(share: float) -> float:
    """Where the standard normal distribution has `share` below, by halving an interval of its error function."""
    low, high = -10.0, 10.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + math.erf(middle / math.sqrt(2))) / 2 < share else (low, middle)
    return (low + high) / 2


def alie(x: np.ndarray, clients: int, attackers: int) -> np.ndarray:
    supporters = clients // 2 + 1 - attackers
    share = (clients - attackers - supporters) / (clients - attackers)
    return x.mean(0) - max(0.0, normal_quantile(share)) * x.std(0, ddof=1)


def ipm(x: np.ndarray, epsilon: float) -> np.ndarray:
    return -epsilon * x.mean(0)


def directions(x: np.ndarray) -> dict[str, np.ndarray]:
    mean = x.mean(0)
    return {"std": -x.std(0, ddof=1), "unit": -mean / np.sqrt((mean**2).sum()), "sign": -np.sign(mean)}


def halved(allowed, mean: np.ndarray, way: np.ndarray) -> np.ndarray:
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(mean + middle * way) else (low, middle)
    return mean + low * way


def min_max(x: np.ndarray, way: np.ndarray) -> np.ndarray:
    widest = max(np.linalg.norm(a - b) for a in x for b in x)
    return halved(lambda v: max(np.linalg.norm(v - a) for a in x) <= widest, x.mean(0), way)


def min_sum(x: np.ndarray, way: np.ndarray) -> np.ndarray:
    widest = max(sum(((a - b) ** 2).sum() for b in x) for a in x)
    return halved(lambda v: sum(((v - a) ** 2).sum() for a in x) <= widest, x.mean(0), way)
