"""From cosine similarities of updates to mixing weights: FedDWA+'s arithmetic, as pure functions.

All similarities and weights are float64. A row is a client, a column the client that it weights.
"""

import torch
from torch import Tensor

from feddwa.algorithms.vectors import dots, inner_products
from feddwa.engine.rows import Rows


def cosines(a: Rows, b: Rows) -> Tensor:
    """cos(a_i, b_i): (m,); 0 where a_i or b_i is zero."""
    lengths = (dots(a, a) * dots(b, b)).sqrt()
    return torch.where(lengths > 0, dots(a, b) / lengths, 0.0)


def pairwise_cosines(update: Rows) -> Tensor:
    """cos(d_i, d_j): (m, m); 0 where d_i or d_j is zero."""
    products = inner_products(update, update)
    norms = products.diagonal().sqrt()
    lengths = norms.unsqueeze(1) * norms
    return torch.where(lengths > 0, products / lengths, 0.0)


def best_partner(similarity: Tensor) -> Tensor:
    """s_i = max over j != i of max(c_ij, 0): (m,) from similarity (m, m)."""
    return similarity.diagonal_scatter(torch.zeros_like(similarity.diagonal())).amax(1)


def weighted_mean(total: Tensor, weight_sum: Tensor) -> Tensor:
    """total / weight_sum; 0 where the weights sum to 0. All of one shape."""
    return torch.where(weight_sum > 0, total / weight_sum, 0.0)


def spearman_brown(cosine: Tensor) -> Tensor:
    """2c / (1 + c) with c = max(cosine, 0): the cosine expected of two epochs, from that of two half epochs."""
    c = cosine.clamp(min=0)
    return 2 * c / (1 + c)


def similarity_weights(similarity: Tensor, power: float) -> Tensor:
    """P (m, m) from similarity (m, m): p_ij ~ max(a_ij, 0)^power, rows summing to 1.

    The diagonal is raised to the largest entry of its row, so that a client weights nobody more than itself. A row
    without a positive entry becomes the client's own row of the identity.
    """
    itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    nearest = similarity.masked_fill(itself, 0.0).amax(1)
    positive = torch.where(itself, similarity.maximum(nearest.unsqueeze(1)), similarity).clamp(min=0)
    strongest = positive.amax(1, keepdim=True)
    shares = torch.where(strongest > 0, (positive / strongest) ** power, itself.double())  # 0 / 0 is not taken
    return shares / shares.sum(1, keepdim=True)


def scale_others(weights: Tensor, factor: float) -> Tensor:
    """P (N, N) with all entries off the diagonal multiplied by `factor`, and rows scaled to sum to 1 again."""
    scaled = (factor * weights).diagonal_scatter(weights.diagonal())
    return scaled / scaled.sum(1, keepdim=True)
