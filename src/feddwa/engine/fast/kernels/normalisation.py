"""BatchNorm and its gradients: a pass that adds up, and one that uses the sums."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.kernels.common import block_of, cut, kernel

PIXELS = 64  # at once


@kernel
def _sums(
    a, x, centre, out, pixels, rows, share, at_centre, C: tl.constexpr, SQUARED: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[0 and 1, piece, row, c] = sum over the piece's n of a[row, n, c], and of a (x - centre); SQUARED: a is the
    latter factor."""
    piece, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    middle = tl.load(centre + row * at_centre + c, mask=c < C, other=0.0)[None, :]
    plain, product = tl.zeros((BLOCK_N, BLOCK_C), dtype=tl.float32), tl.zeros((BLOCK_N, BLOCK_C), dtype=tl.float32)
    for start in range(piece * share, piece * share + share, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        real = (n < pixels) & (c < C)[None, :]
        at = (row * pixels + n) * C + c[None, :]
        apart = tl.where(real, tl.load(x + at, mask=real, other=0.0) - middle, 0.0)
        factor = apart
        if not SQUARED:
            factor = tl.load(a + at, mask=real, other=0.0)
        plain += factor
        product += factor * apart
    place = (piece * rows + row) * C + c
    tl.store(out + place, tl.sum(plain, 0), mask=c < C)
    tl.store(out + tl.num_programs(1) * rows * C + place, tl.sum(product, 0), mask=c < C)


@triton.jit
def _added(pieces_of, row, c, rows, C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr):
    """(BLOCK_C,) each: the sums of all pieces that `_sums` left for a row, in a fixed order."""
    pieces = tl.num_programs(1)
    plain, product = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32), tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, pieces, BLOCK_P):
        piece = start + tl.arange(0, BLOCK_P)[:, None]
        at, real = pieces_of + (piece * rows + row) * C + c[None, :], (piece < pieces) & (c < C)[None, :]
        plain += tl.load(at, mask=real, other=0.0)
        product += tl.load(at + pieces * rows * C, mask=real, other=0.0)
    return tl.sum(plain, 0), tl.sum(product, 0)


@kernel
def _normalise(
    x, sums, weight, bias, mean, var, out, new_mean, new_var, own_mean, deviation, pixels, rows, share,
    MOMENTUM: tl.constexpr, EPS: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[row, n, c] from sums about the first pixel; the first piece's programs write the statistics besides."""
    piece, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known, at = c < C, row * C + c
    plain, squares = _added(sums, row, c, rows, C, BLOCK_C, BLOCK_N)
    centre = tl.load(x + row * pixels * C + c, mask=known, other=0.0) + plain / pixels
    spread = (squares - plain * plain / pixels) / pixels
    inverse = tl.rsqrt(spread + EPS)
    scale = tl.load(weight + at, mask=known, other=0.0) * inverse
    shift = tl.load(bias + at, mask=known, other=0.0) - centre * scale
    if piece == 0:
        old_mean, old_var = tl.load(mean + at, mask=known, other=0.0), tl.load(var + at, mask=known, other=0.0)
        unbiased = spread * (pixels / (pixels - 1.0))
        tl.store(new_mean + at, old_mean + MOMENTUM * (centre - old_mean), mask=known)
        tl.store(new_var + at, old_var + MOMENTUM * (unbiased - old_var), mask=known)
        tl.store(own_mean + at, centre, mask=known)
        tl.store(deviation + at, inverse, mask=known)
    for start in range(piece * share, piece * share + share, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        real, place = (n < pixels) & known[None, :], (row * pixels + n) * C + c[None, :]
        tl.store(out + place, shift[None, :] + scale[None, :] * tl.load(x + place, mask=real), mask=real)


@kernel
def _normalise_to_input(
    gradient, x, sums, weight, mean, deviation, out, to_weight, to_bias, pixels, rows, share,
    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of `_normalise`, from sums of the gradient and of its products with x - mean."""
    piece, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known, at = c < C, row * C + c
    plain, product = _added(sums, row, c, rows, C, BLOCK_C, BLOCK_N)
    inverse = tl.load(deviation + at, mask=known, other=0.0)
    scale = tl.load(weight + at, mask=known, other=0.0) * inverse
    slope = -scale * inverse * inverse * product / pixels
    level = -scale * plain / pixels - slope * tl.load(mean + at, mask=known, other=0.0)
    if piece == 0:
        tl.store(to_weight + at, product * inverse, mask=known)
        tl.store(to_bias + at, plain, mask=known)
    for start in range(piece * share, piece * share + share, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        real, place = (n < pixels) & known[None, :], (row * pixels + n) * C + c[None, :]
        inner, outer = tl.load(x + place, mask=real), tl.load(gradient + place, mask=real)
        tl.store(out + place, level[None, :] + slope[None, :] * inner + scale[None, :] * outer, mask=real)


@torch.library.custom_op("feddwa::normalise", mutates_args=())
def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """BatchNorm of pixels (m, n, C): outputs, new running statistics, and the batch's mean and inverse deviation."""
    m, pixels, channels = x.shape
    sums, grid, sizes = _sums_of(x, x, x[:, 0], squared=True)  # about a value that is near: squares keep their digits
    out, found = torch.empty_like(x), [x.new_empty(m, channels) for _ in range(4)]
    own = (value.contiguous() for value in (weight, bias, mean, var))
    _normalise[grid](x, sums, *own, out, *found, pixels, m, sizes[0], momentum, eps, channels, *sizes[1:])
    return out, found[0], found[1], found[2], found[3]


@torch.library.custom_op("feddwa::normalise_to_input", mutates_args=())
def normalise_to_input(
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradients: of the pixels (m, n, C), the scale and the shift (m, C)."""
    m, pixels, channels = x.shape
    own = [value.contiguous() for value in (weight, mean, deviation)]
    sums, grid, sizes = _sums_of(gradient, x, own[1], squared=False)
    out, found = torch.empty_like(x), [x.new_empty(m, channels) for _ in range(2)]
    _normalise_to_input[grid](gradient, x, sums, *own, out, *found, pixels, m, sizes[0], channels, *sizes[1:])
    return out, found[0], found[1]


def _sums_of(a: Tensor, x: Tensor, centre: Tensor, squared: bool) -> tuple[Tensor, Any, tuple[int, int, int]]:
    """The sums (2, pieces, m, C) over all pixels of (m, n, C), in pieces; the grid of programs; their sizes."""
    m, pixels, channels = x.shape
    block = block_of(channels, 64)
    pieces, share = cut(pixels, PIXELS, triton.cdiv(channels, block) * m)
    grid, out = (triton.cdiv(channels, block), pieces, m), x.new_empty(2, pieces, m, channels)
    _sums[grid](a, x, centre, out, pixels, m, share, centre.stride(0), channels, squared, block, PIXELS)
    return out, grid, (share, block, PIXELS)
