"""A dataset: three interleaved spirals in the plane, drawn by a function.

feddwa run --dataset examples/extend/spirals.py:load --partition dirichlet --clients 6
"""

import numpy as np

from feddwa.data.dataset import Dataset, hold_out


def load() -> Dataset:
    """900 points (x, y) of three classes; a fifth of each class is for testing."""
    rng = np.random.default_rng(0)
    label = np.arange(900) % 3
    radius = rng.uniform(0.2, 1.0, 900)
    angle = 2 * np.pi * (radius + label / 3) + rng.normal(0, 0.1, 900)
    points = (radius * np.stack([np.cos(angle), np.sin(angle)])).T.astype(np.float32)  # (900, 2)
    order, train_count = hold_out(np.zeros(900, dtype=np.int64), label)  # training rows first
    return Dataset("spirals", points[order], label[order], train_count, classes=3)
