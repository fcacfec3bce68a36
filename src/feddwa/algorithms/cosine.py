"""From cosine similarities of updates to mixing weights: FedDWA+'s arithmetic, as pure functions.

All similarities and weights are float64. A row is a client, a column the client that it weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from feddwa.engine import Stack
from feddwa.engine.rows import only, scale


def best_partner(similarity: Tensor) -> Tensor:
    """s_i = max over j != i of max(c_ij, 0): (m,) from similarity (m, m).

    At a group's joint optimum its updates sum to zero, so the cosines within it are slightly negative. Such rounds
    carry no information about groups, and s_i is 0.
    """
    return similarity.diagonal_scatter(torch.zeros_like(similarity.diagonal())).amax(1)


def spearman_brown(cosine: Tensor) -> Tensor:
    """2c / (1 + c) with c = max(cosine, 0): the expected cosine of two whole epochs, from that of two half epochs."""
    c = cosine.clamp(min=0)
    return 2 * c / (1 + c)


def mean_similarity(cosine_sum: Tensor, weight_sum: Tensor) -> Tensor:
    """A (N, N): mean cosines, 0 where the weights sum to 0. The diagonal is corrected from half to whole epochs."""
    mean = torch.where(weight_sum > 0, cosine_sum / weight_sum, 0.0)
    return mean.diagonal_scatter(spearman_brown(mean.diagonal()))


def similarity_weights(similarity: Tensor, power: float) -> Tensor:
    """P (m, m) from similarity (m, m): p_ij ~ max(a_ij, 0)^power, rows summing to 1.

    The diagonal is raised to the largest entry of its row, so that no client weights another above itself. A row
    without a positive entry becomes that of the identity.
    """
    itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    nearest = similarity.masked_fill(itself, 0.0).amax(1)
    positive = torch.where(itself, similarity.maximum(nearest.unsqueeze(1)), similarity).clamp(min=0)
    strongest = positive.amax(1, keepdim=True)
    shares = torch.where(strongest > 0, (positive / strongest) ** power, itself.double())  # 0 / 0 is not taken
    return shares / shares.sum(1, keepdim=True)


def scale_others(weights: Tensor, factor: float) -> Tensor:
    """P (N, N) with all off-diagonal entries multiplied by `factor` and rows normalised to sum to 1."""
    scaled = (factor * weights).diagonal_scatter(weights.diagonal())
    return scaled / scaled.sum(1, keepdim=True)


def agreed_update(update: Stack, groups: Mapping[str, list[str]], cosine: Mapping[str, Tensor]) -> Stack:
    """h_i: each group of d_i (m, *shape) scaled by 2c / (1 + c), with c (m,) the group's cosine between the halves."""
    parts = (scale(spearman_brown(cosine[group]), only(update, names)) for group, names in groups.items())
    return only({name: value for part in parts for name, value in part.items()}, update)
