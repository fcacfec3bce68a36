"""Clusters of clients: complete linkage on cosine similarities, and what a split does to everybody's cluster."""

import torch
from torch import Tensor


def cosines(products: Tensor) -> Tensor:
    """Cosine similarities from inner products; an update of zero is orthogonal to all."""
    norms = products.diagonal().sqrt()
    return products / (norms.unsqueeze(1) * norms + 1e-12)


def bipartition(similarity: Tensor) -> Tensor:
    """(n,) bool: who parts from client 0, by complete linkage down to two clusters."""
    distance = (-similarity).fill_diagonal_(torch.inf)
    label = torch.arange(len(distance))
    for _ in range(len(distance) - 2):
        a, b = sorted(divmod(int(distance.argmin()), len(distance)))
        merged = distance[a].maximum(distance[b])  # infinite at a and b
        distance[a], distance[:, a] = merged, merged
        distance[b], distance[:, b] = torch.inf, torch.inf
        label[label == b] = a
    return label != label[0]


def split(of: Tensor, cluster: int, leaving: Tensor, staying: Tensor) -> Tensor:
    """New clusters of all clients: `leaving` found one; other members follow the larger of the two."""
    unseen = of == cluster
    unseen[leaving] = unseen[staying] = False
    child = of.index_fill(0, leaving, int(of.max()) + 1)
    return torch.where(unseen, child[leaving[0] if len(leaving) > len(staying) else staying[0]], child)
