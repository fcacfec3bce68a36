"""Privacy accounting by other means than the library's: Renyi divergences by quadrature, losses by convolution.

NumPy alone; nothing of feddwa and nothing of dp-accounting.
"""

import math

import numpy as np


def density(x: np.ndarray, mean: float, sigma: float) -> np.ndarray:
    return np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))


def renyi(sigma: float, q: float, order: int) -> float:
    """The Renyi divergence of (1 - q) N(0, s^2) + q N(1, s^2) from N(0, s^2), by the trapezoidal rule."""
    x = np.linspace(-20 * sigma, order + 20 * sigma, 40_001)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
    logs = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi)) + order * ratio
    top = logs.max()
    return (top + math.log(np.trapezoid(np.exp(np.maximum(logs - top, -700)), x))) / (order - 1)


def epsilon_by_renyi(sigma: float, q: float, count: int, delta: float, orders: range) -> float:
    """epsilon of `count` releases by the best order (Balle et al., AISTATS 2020, for the conversion)."""
    found = []
    for order in orders:
        spent = count * renyi(sigma, q, order)
        found.append(spent + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return min(found)


def delta_by_convolution(sigma: float, q: float, count: int, epsilon: float, step: float = 2e-3) -> float:
    """delta of `count` releases at epsilon: the privacy loss of each direction, binned, convolved `count` times."""
    x = np.linspace(-20 * sigma, 1 + 20 * sigma, 400_001)
    width = x[1] - x[0]
    without, mixed = density(x, 0, sigma), (1 - q) * density(x, 0, sigma) + q * density(x, 1, sigma)
    return max(_tail(a * width, np.log(a / b), count, epsilon, step) for a, b in ((mixed, without), (without, mixed)))


def _tail(weights: np.ndarray, losses: np.ndarray, count: int, epsilon: float, step: float) -> float:
    kept = weights > 1e-300
    places = np.rint(losses[kept] / step).astype(int)
    half = 1 << 17
    places = np.clip(places, -half + 1, half - 1)
    masses = np.bincount(places + half, weights[kept], 2 * half)
    spectrum = np.fft.rfft(np.roll(masses, -half))  # bin 0 is the loss 0
    total = np.roll(np.fft.irfft(spectrum**count, 2 * half), half)
    loss = (np.arange(2 * half) - half) * step
    above = loss > epsilon
    return float((total[above] * -np.expm1(epsilon - loss[above])).sum())


def gaussian_delta(sigma: float, count: int, epsilon: float) -> float:
    """delta of `count` Gaussian releases at epsilon, in closed form (Balle and Wang, ICML 2018)."""
    mu = math.sqrt(count) / sigma

    def normal(value: float) -> float:
        return 0.5 * math.erfc(-value / math.sqrt(2))

    return normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)
