"""Sketches: d numbers compressed to k numbers that preserve inner products, by a projection that is never stored.

A count sketch adds every coordinate, with a random sign, to one of k buckets:

    S(x)_b = sum over c with h(c) = b of s(c) x_c          h(c) in 0..k-1, s(c) = +-1, both from keyed SplitMix64

Sender and receiver share the key alone. For any x and y, over the draw of h and s,

    E <S(x), S(y)> = <x, y>
    Var <S(x), S(y)> = (|x|^2 |y|^2 + <x, y>^2 - 2 sum_c x_c^2 y_c^2) / k  <=  2 |x|^2 |y|^2 / k

so with k = 2 / (eps^2 delta) numbers the error exceeds eps |x| |y| with probability at most delta (Chebyshev).
"""

import torch
from torch import Tensor

from feddwa.engine import Stack, keys
from feddwa.mixing import squared_distances

WIDTH = 1 << 16  # coordinates hashed at a time, to bound memory


def sketch(models: Stack, size: int, seed: int, round: int) -> Tensor:
    """S of every model (m, *shape): (m, size) in the models' precision, by the projection of this seed and round.

    A coordinate's bucket and sign depend only on the name of its tensor and its position within it.
    """
    first = next(iter(models.values()))
    total = first.new_zeros(len(first), size)
    for name, value in models.items():
        key = keys.key(seed, f"sketch/{name}", round).to(value.device)
        for number, piece in enumerate(value.reshape(len(value), -1).split(WIDTH, dim=1)):
            bucket, sign = _hashes(key, number * WIDTH, piece.shape[1], size)
            total.index_add_(1, bucket, piece * sign.to(piece.dtype))
    return total


def sketched_distances(models: Stack, steps: Tensor, lengths: Tensor, seed: int, round: int) -> Tensor:
    """||v_i + g_i - v_j||^2 (m, m) from the models v (m, *shape), and the steps' sketches and squared lengths.

    steps: (m, size), `sketch` of the g_i with this seed and round; lengths: (m,), |g_i|^2. In

        ||v_i + g_i - v_j||^2 = ||v_i - v_j||^2 + |g_i|^2 + 2 <g_i, v_i - v_j>

    the first two terms are exact. The third is estimated and clipped to the Cauchy-Schwarz bound |g_i| ||v_i - v_j||.
    """
    centred = {name: value - value[:1] for name, value in models.items()}  # only differences matter
    theirs, mine = sketch(centred, steps.shape[1], seed, round).double(), steps.double()
    cross = (mine * theirs).sum(1, keepdim=True) - mine @ theirs.T  # <g_i, v_i - v_j>
    apart, length = squared_distances(models, models), lengths.unsqueeze(1)
    most = (length * apart).sqrt()
    return apart + length + 2 * cross.clamp(min=-most, max=most)


def _hashes(key: Tensor, start: int, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Buckets and signs of the coordinates start .. start + count - 1: (count,) each."""
    place = torch.arange(start, start + count, device=key.device)
    draw = keys.fold(key.expand(count), place)
    return ((draw >> 2) & 0x3FFFFFFFFFFFFFF) % size, 1 - 2 * (draw & 1)
