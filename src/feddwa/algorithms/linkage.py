"""Clusters of clients: the norms that trigger a split, complete linkage, and the clusters after a split."""

import torch
from torch import Tensor


def update_norms(products: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
    """The norm of the mean update and the largest norm in each participant's cluster, from <D_i, D_j> (m, m).

    of: (m,) the participants' clusters. Both results are (m,).
    """
    same = (of.unsqueeze(1) == of).double()
    share = same / same.sum(1, keepdim=True)
    mean_square = ((share @ products) * share).sum(1)
    largest = torch.where(same > 0, products.diagonal(), 0.0).amax(1)
    return mean_square.clamp(min=0).sqrt(), largest.sqrt()


def bipartition(similarity: Tensor) -> Tensor:
    """(n,) bool: clients separated from client 0 by complete linkage down to two clusters."""
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
    """New clusters of all clients: `leaving` form a new one; other members join the larger of the two."""
    unseen = of == cluster
    unseen[leaving] = unseen[staying] = False
    child = of.index_fill(0, leaving, int(of.max()) + 1)
    return torch.where(unseen, child[leaving[0] if len(leaving) > len(staying) else staying[0]], child)
