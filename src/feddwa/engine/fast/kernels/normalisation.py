"""BatchNorm and its gradients in two passes each: one adds up over the pixels of a channel, one uses the sums.

Pixels are (m, n, C): m clients, n = B H W pixels, C channels, contiguous. The sums are split over several programs
(split-K). The second pass adds up the partial sums in a fixed order, so that results repeat to the bit. C is no
constant of the kernels, so that a network with layers of many widths does not wait for the compiler at each.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.kernels.common import block_size, kernel, split_k

BLOCK_PIXELS = 64  # pixels that a program reads per step


@kernel
def _partial_sums(
    values, x, shift, sums, num_pixels, num_clients, terms_per_split, stride_shift, C,
    SQUARES: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums over the pixels of a split, for client and channel c.

    sums[0, split, client, c] = sum of v, and sums[1, split, client, c] = sum of v (x - shift), with v = values[client,
    n, c]. SQUARES: v = x - shift, so that the second is a sum of squares; `values` is not read.
    values, x: (m, n, C); shift: (m, C), with rows `stride_shift` apart; sums: (2, splits, m, C).
    """
    split, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    shift_c = tl.load(shift + client * stride_shift + c, mask=c < C, other=0.0)[None, :]
    total, products = tl.zeros((BLOCK_N, BLOCK_C), dtype=tl.float32), tl.zeros((BLOCK_N, BLOCK_C), dtype=tl.float32)
    for start in range(split * terms_per_split, split * terms_per_split + terms_per_split, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        mask = (n < num_pixels) & (c < C)[None, :]
        offset = (client * num_pixels + n) * C + c[None, :]
        shifted = tl.where(mask, tl.load(x + offset, mask=mask, other=0.0) - shift_c, 0.0)
        value = shifted
        if not SQUARES:
            value = tl.load(values + offset, mask=mask, other=0.0)
        total += value
        products += value * shifted
    offset = (split * num_clients + client) * C + c
    tl.store(sums + offset, tl.sum(total, 0), mask=c < C)
    tl.store(sums + tl.num_programs(1) * num_clients * C + offset, tl.sum(products, 0), mask=c < C)


@triton.jit
def _reduce_splits(sums, client, c, num_clients, C, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr):
    """Both sums of `_partial_sums` over all splits, (BLOCK_C,) each, added in a fixed order."""
    num_splits = tl.num_programs(1)
    total, products = tl.zeros((BLOCK_S, BLOCK_C), dtype=tl.float32), tl.zeros((BLOCK_S, BLOCK_C), dtype=tl.float32)
    for start in range(0, num_splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)[:, None]
        pointer, mask = sums + (split * num_clients + client) * C + c[None, :], (split < num_splits) & (c < C)[None, :]
        total += tl.load(pointer, mask=mask, other=0.0)
        products += tl.load(pointer + num_splits * num_clients * C, mask=mask, other=0.0)
    return tl.sum(total, 0), tl.sum(products, 0)


@kernel
def _batch_norm(
    x, sums, weight, bias, running_mean, running_var, out, new_running_mean, new_running_var, save_mean, save_invstd,
    num_pixels, num_clients, terms_per_split, C,
    MOMENTUM: tl.constexpr, EPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[client, n, c] = weight (x - mean) / sqrt(var + EPS) + bias, from sums of x - x[client, 0, c].

    x, out: (m, n, C); all statistics, weight and bias: (m, C). The programs of the first split write the statistics.
    """
    split, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c, offset_c = c < C, client * C + c
    total, squares = _reduce_splits(sums, client, c, num_clients, C, BLOCK_C, BLOCK_N)
    mean = tl.load(x + client * num_pixels * C + c, mask=mask_c, other=0.0) + total / num_pixels
    var = (squares - total * total / num_pixels) / num_pixels
    invstd = tl.rsqrt(var + EPS)
    scale = tl.load(weight + offset_c, mask=mask_c, other=0.0) * invstd
    shift = tl.load(bias + offset_c, mask=mask_c, other=0.0) - mean * scale
    if split == 0:
        old_mean = tl.load(running_mean + offset_c, mask=mask_c, other=0.0)
        old_var = tl.load(running_var + offset_c, mask=mask_c, other=0.0)
        unbiased_var = var * (num_pixels / (num_pixels - 1.0))
        tl.store(new_running_mean + offset_c, old_mean + MOMENTUM * (mean - old_mean), mask=mask_c)
        tl.store(new_running_var + offset_c, old_var + MOMENTUM * (unbiased_var - old_var), mask=mask_c)
        tl.store(save_mean + offset_c, mean, mask=mask_c)
        tl.store(save_invstd + offset_c, invstd, mask=mask_c)
    for start in range(split * terms_per_split, split * terms_per_split + terms_per_split, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        mask, offset = (n < num_pixels) & mask_c[None, :], (client * num_pixels + n) * C + c[None, :]
        tl.store(out + offset, shift[None, :] + scale[None, :] * tl.load(x + offset, mask=mask), mask=mask)


@kernel
def _batch_norm_backward(
    grad_output, x, sums, weight, save_mean, save_invstd, grad_input, grad_weight, grad_bias,
    num_pixels, num_clients, terms_per_split, C, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of `_batch_norm`, from the sums of grad_output and of grad_output (x - mean).

    grad_output, x, grad_input: (m, n, C); the others: (m, C). With g = grad_output and s = weight invstd,
    grad_input = s (g - mean(g) - (x - mean) invstd^2 mean(g (x - mean))), written as level + slope x + s g.
    """
    split, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c, offset_c = c < C, client * C + c
    total, products = _reduce_splits(sums, client, c, num_clients, C, BLOCK_C, BLOCK_N)
    invstd = tl.load(save_invstd + offset_c, mask=mask_c, other=0.0)
    scale = tl.load(weight + offset_c, mask=mask_c, other=0.0) * invstd
    slope = -scale * invstd * invstd * products / num_pixels
    level = -scale * total / num_pixels - slope * tl.load(save_mean + offset_c, mask=mask_c, other=0.0)
    if split == 0:
        tl.store(grad_weight + offset_c, products * invstd, mask=mask_c)
        tl.store(grad_bias + offset_c, total, mask=mask_c)
    for start in range(split * terms_per_split, split * terms_per_split + terms_per_split, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        mask, offset = (n < num_pixels) & mask_c[None, :], (client * num_pixels + n) * C + c[None, :]
        x_n, grad = tl.load(x + offset, mask=mask), tl.load(grad_output + offset, mask=mask)
        tl.store(grad_input + offset, level[None, :] + slope[None, :] * x_n + scale[None, :] * grad, mask=mask)


@torch.library.custom_op("feddwa::batch_norm", mutates_args=())
def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """BatchNorm in training mode. x: (m, n, C), contiguous; weight, bias and running statistics: (m, C).

    Returns the output (m, n, C), the new running mean and variance, and the batch's mean and inverse standard deviation
    for the backward pass, (m, C) each.
    """
    m, num_pixels, channels = x.shape
    # sums of x - x[:, 0]: a value near the mean, so that the difference of squares does not cancel
    sums, grid, sizes = _channel_sums(x, x, x[:, 0], squares=True)
    out, statistics = torch.empty_like(x), [x.new_empty(m, channels) for _ in range(4)]
    inputs = (value.contiguous() for value in (weight, bias, running_mean, running_var))
    _batch_norm[grid](x, sums, *inputs, out, *statistics, num_pixels, m, sizes[0], channels, momentum, eps, *sizes[1:])
    return out, statistics[0], statistics[1], statistics[2], statistics[3]


@torch.library.custom_op("feddwa::batch_norm_backward", mutates_args=())
def batch_norm_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, save_mean: Tensor, save_invstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `batch_norm`. grad_output, x: (m, n, C), contiguous; the others: (m, C).

    Returns the gradients with respect to x (m, n, C), weight (m, C) and bias (m, C).
    """
    m, num_pixels, channels = x.shape
    inputs = [value.contiguous() for value in (weight, save_mean, save_invstd)]
    sums, grid, sizes = _channel_sums(grad_output, x, inputs[1], squares=False)
    grad_input, grads = torch.empty_like(x), [x.new_empty(m, channels) for _ in range(2)]
    _batch_norm_backward[grid](
        grad_output, x, sums, *inputs, grad_input, *grads, num_pixels, m, sizes[0], channels, *sizes[1:]
    )
    return grad_input, grads[0], grads[1]


def _channel_sums(values: Tensor, x: Tensor, shift: Tensor, squares: bool) -> tuple[Tensor, Any, tuple[int, int, int]]:
    """Launch `_partial_sums` on values and x (m, n, C), and shift (m, C).

    Returns the partial sums (2, splits, m, C), and for the second pass its grid (blocks of C, splits, m) and its sizes
    (pixels per split, BLOCK_C, BLOCK_N).
    """
    m, num_pixels, channels = x.shape
    block_c = block_size(channels, 64)
    num_splits, pixels_per_split = split_k(num_pixels, BLOCK_PIXELS, triton.cdiv(channels, block_c) * m)
    grid, sums = (triton.cdiv(channels, block_c), num_splits, m), x.new_empty(2, num_splits, m, channels)
    _partial_sums[grid](
        values, x, shift, sums, num_pixels, m, pixels_per_split, shift.stride(0), channels, squares, block_c,
        BLOCK_PIXELS,
    )  # fmt: skip
    return sums, grid, (pixels_per_split, block_c, BLOCK_PIXELS)
