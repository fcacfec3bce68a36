"""Maximum mean discrepancy between the features of two models on a batch, by sums of Gaussian kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(2B, 2B) squared distances among all rows of the features x and y, (B, F) each."""
    both = torch.cat([x, y])
    return (both.unsqueeze(0) - both.unsqueeze(1)).square().sum(2)


def squared_mmd(distances: Tensor, widths: Sequence[float | Tensor]) -> Tensor:
    """MMD^2 from the distances of `squared_distances`, with the kernel sum_w exp(-D / w).

    The mean of k(x, x') + k(y, y') - 2 k(x, y') over all B^2 pairs, including each sample with itself.
    """
    kernel, b = torch.stack([torch.exp(-distances / width) for width in widths]).sum(0), len(distances) // 2
    return (kernel[:b, :b] + kernel[b:, b:] - kernel[:b, b:] - kernel[b:, :b]).mean()
