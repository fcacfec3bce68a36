"""Defences once more, in NumPy and float64, from the papers' words: weights p (s,) of sum 1, vectors x (s, d)."""

import numpy as np


def median(p: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Per coordinate the smallest minimiser of sum p |x - z| and the largest one, and the middle of both."""
    found = []
    for column in x.T:
        best = [np.sum(p * np.abs(column - z)) for z in column]
        ties = [z for z, cost in zip(column, best, strict=True) if cost <= min(best) + 1e-12]
        found.append((min(ties) + max(ties)) / 2)
    return np.array(found)


def trimmed_mean(p: np.ndarray, x: np.ndarray, share: float) -> np.ndarray:
    """Per coordinate the weight is taken away grain by grain, from the smallest value and from the largest one."""
    found = []
    for column in x.T:
        left = p.copy()
        for order in (np.argsort(column), np.argsort(column)[::-1]):
            rest = share
            for place in order:
                taken = min(rest, left[place])
                left[place] -= taken
                rest -= taken
        found.append(np.sum(left * column) / np.sum(left))
    return np.array(found)


def geometric_median(p: np.ndarray, x: np.ndarray, steps: int = 5000) -> np.ndarray:
    z = p @ x
    for _ in range(steps):
        q = p / np.maximum(1e-12, np.linalg.norm(x - z, axis=1))
        z = q @ x / q.sum()
    return z


def krum_scores(x: np.ndarray, f: int) -> list[float]:
    s = len(x)
    apart = [[float(((a - b) ** 2).sum()) for j, b in enumerate(x) if j != i] for i, a in enumerate(x)]
    return [sum(sorted(own)[: max(1, s - f - 2)]) for own in apart]


def krum(p: np.ndarray, x: np.ndarray, f: int, keep: int) -> np.ndarray:
    best = np.argsort(krum_scores(x, f), kind="stable")[:keep]
    return p[best] @ x[best] / p[best].sum()


def nnm(x: np.ndarray, f: int) -> np.ndarray:
    nearest = [np.argsort([((a - b) ** 2).sum() for b in x], kind="stable")[: len(x) - f] for a in x]
    return np.array([x[own].mean(0) for own in nearest])


def clip(x: np.ndarray, multiple: float) -> np.ndarray:
    lengths = np.sqrt((x**2).sum(1))
    bound = multiple * np.median(lengths)
    return np.array([v if n <= bound else v * bound / n for v, n in zip(x, lengths, strict=True)])


def norm_bound(x: np.ndarray, bound: float) -> np.ndarray:
    return np.array(
        [v * min(1.0, bound / n) if n > 0 else v for v, n in zip(x, np.linalg.norm(x, axis=1), strict=True)]
    )


def robust_row(p: np.ndarray, x: np.ndarray, own: np.ndarray, kappa: float, multiple: float) -> np.ndarray:
    """The receiver's model (d,), moved towards each partner's: by a bounded weight, by no more than tau."""
    partners = [(w, v - own) for w, v in zip(p, x, strict=True) if w > 0 and np.any(v != own)]
    if not partners:
        return own
    weights, lengths = np.array([w for w, _ in partners]), np.array([np.linalg.norm(d) for _, d in partners])
    tau = multiple * median(weights / weights.sum(), lengths[:, None])[0]
    return own + sum(min(w, kappa) * d * min(1.0, tau / n) for (w, d), n in zip(partners, lengths, strict=True))


def buckets(p: np.ndarray, x: np.ndarray, order: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and means of the buckets that are filled in this order."""
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    weights = np.array([sum(p[k] for k in own) for own in groups])
    return weights, np.array([sum(p[k] * x[k] for k in own) / w for own, w in zip(groups, weights, strict=True)])


def centred_clipping(p: np.ndarray, x: np.ndarray, multiple: float, passes: int) -> np.ndarray:
    c = median(p, x)
    for _ in range(passes):
        lengths = np.linalg.norm(x - c, axis=1)
        tau = multiple * median(p, lengths[:, None])[0]
        c = c + sum(w * (v - c) * min(1.0, tau / n) for w, v, n in zip(p, x, lengths, strict=True) if n > 0)
    return c
