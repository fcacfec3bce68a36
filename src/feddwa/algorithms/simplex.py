"""The simplex {a >= 0, sum a = 1}: projections to it (pFedGraph), and quadratic programmes over it (FedPAC's heads)."""

import torch
from torch import Tensor

from feddwa.mixing import inner_products

FLOOR = 1e-12  # smallest variance, relative to the largest squared mean: that of a client with one sample is 0
ROUNDING = 1e-15  # rounding error of a sum, relative to each of its terms
PATIENCE = 3  # set exchanges without progress before entries are exchanged one by one
LEAST = 1e-3  # smaller weights become 0
AT_ONCE = 1 << 24  # numbers of the quadratic forms in memory at a time


def project_to_simplex(points: Tensor) -> Tensor:
    """The nearest point of {x >= 0, sum x = 1} to every row of points (k, n): max(point - t, 0), in float64.

    The c largest entries stay positive, with t = (their sum - 1) / c; c is the largest number for which they do.
    """
    points = points.double()
    points = points - points.max(1, keepdim=True).values  # same projection; keeps the digits of large entries
    ordered = points.sort(dim=1, descending=True).values
    counts = torch.arange(1, points.shape[1] + 1, device=points.device)
    thresholds = (ordered.cumsum(1) - 1) / counts
    kept = (ordered > thresholds).sum(1, keepdim=True)
    return (points - thresholds.gather(1, kept - 1)).clamp(min=0)


def combinations(means: Tensor, variances: Tensor) -> Tensor:
    """a (m, m): row i is argmin over the simplex of sum_j a_j^2 V_j + ||sum_j a_j H_j - H_i||^2, bias and variance.

    means: H (m, C, F); variances: V (m,). Weights below `LEAST` become 0, and the others are rescaled.
    """
    products, variances, found = inner_products({"H": means}, {"H": means}), variances.double().cpu(), []
    floor = FLOOR * (products.diagonal().max() + variances.max()).clamp(min=FLOOR)
    noise = variances.clamp(min=float(floor)).diag()
    for i in torch.arange(len(products)).split(max(1, AT_ONCE // products.numel())):
        own = products[i, i].reshape(-1, 1, 1)
        apart = own - products[i].unsqueeze(2) - products[i].unsqueeze(1) + products  # <H_i - H_j, H_i - H_k>
        found.append(least_on_simplex(apart + noise))
    weights = torch.cat(found)
    weights = weights.where(weights >= LEAST, 0.0)
    return weights / weights.sum(1, keepdim=True)


def least_on_simplex(matrices: Tensor) -> Tensor:
    """argmin over the simplex of a^T Q a: (k, n) for positive definite Q (k, n, n), in float64 on the CPU.

    a is x / sum x, where x >= 0, Q x >= 1, and each entry satisfies one of them with equality. Principal pivoting
    (Judice and Pires, 1994) finds which: it solves Q x = 1 for a set of entries and exchanges those of the wrong sign,
    all of them while their number falls, otherwise the last one. The result is exact after a few solves, where descent
    takes thousands of steps: one client's entries may be a thousand times another's.
    """
    k, n = matrices.shape[:2]
    largest = matrices.diagonal(dim1=1, dim2=2).amax(1, keepdim=True)
    matrices = matrices / largest.unsqueeze(2)
    found, chosen = torch.zeros(k, n, dtype=torch.float64), torch.ones(k, n, dtype=torch.bool)
    left, fewest, patience = torch.arange(k), torch.full((k,), n + 1), torch.full((k,), PATIENCE)
    while len(left):
        x, slack = _solved(matrices[left], chosen[left])
        wrong = torch.where(chosen[left], x < 0, slack < 0)
        found[left], number = x, wrong.sum(1)
        better = number < fewest[left]
        patience[left] = torch.where(better, PATIENCE, patience[left] - 1)
        fewest[left] = number.minimum(fewest[left])
        last = wrong & (wrong.flip(1).cumsum(1).flip(1) == 1)
        chosen[left] ^= torch.where((patience[left] >= 0).unsqueeze(1), wrong, last)
        left = left[number > 0]
    return found / found.sum(1, keepdim=True)


def _solved(matrices: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """x (k, n): Q x = 1 for the chosen entries, 0 elsewhere; and Q x - 1, with rounding errors counted as 0."""
    n, size = chosen.shape[1], int(chosen.sum(1).max())
    order = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :size]  # the chosen first, then padding
    real = chosen.gather(1, order).double()
    own = matrices.gather(1, order.unsqueeze(2).expand(-1, -1, n)).gather(2, order.unsqueeze(1).expand(-1, size, -1))
    own = own * real.unsqueeze(2) * real.unsqueeze(1) + torch.diag_embed(1 - real)
    solution = torch.linalg.solve(own, real.unsqueeze(2)).squeeze(2)
    x = torch.zeros_like(matrices[:, 0]).scatter(1, order, solution * real)
    error = ROUNDING * n * x.abs().amax(1, keepdim=True)
    return x, (matrices @ x.unsqueeze(2)).squeeze(2) - 1 + error
