"""A partition: clients have the same classes and very different amounts of data.

feddwa run --partition examples/extend/quantity_skew.py:quantity_skew --param exponent=1.5
"""

import numpy as np

from feddwa.data.partition import Partition


def quantity_skew(
    labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator, exponent: float = 1.0
) -> Partition:
    """Client i has a share proportional to (i + 1)^-exponent of all rows, and at least two of each part."""
    shares = (np.arange(clients) + 1.0) ** -exponent
    parts = []
    for first, last in ((0, train_count), (train_count, len(labels))):
        spare = last - first - 2 * clients
        sizes = 2 + np.floor(spare * shares / shares.sum()).astype(int)
        rows = first + rng.permutation(last - first)[: sizes.sum()]
        parts.append([np.sort(part) for part in np.split(rows, np.cumsum(sizes)[:-1])])
    return Partition(*parts)
