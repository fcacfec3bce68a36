"""Max-pooling and its gradient.

Windows that do not overlap are searched again in the backward pass, so no indices are kept. These kernels can pool
relu(x) without ever writing it. Where windows overlap, the index of each window's maximum is kept. The backward pass
then gathers: a pixel adds up the gradients of the windows around it whose maximum it is. No two programs write to one
pixel, so the sum is always the same.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.dispatch import Pair
from feddwa.engine.fast.kernels.common import block_size, channels_last, kernel, unravel_index

BLOCK_WINDOWS = 32  # windows per program; in the gradient of overlapping windows, pixels per program


@kernel
def _max_pool(
    x, out, num_windows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[p, c] = maximum of window p of x (B, H, W, C), of relu(x) if RELU; NaN if the window has one.

    out: (B, H // KH, W // KW, C).
    """
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (p < num_windows) & (c < C)
    b, oh, ow = unravel_index(p, H // KH, W // KW)
    corner = x + ((b * H + oh * KH) * W + ow * KW).to(tl.int64) * C + c
    maximum = tl.load(corner, mask=mask)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(corner + (i * W + j) * C, mask=mask)
            maximum = tl.maximum(maximum, value, propagate_nan=tl.PropagateNan.ALL)
    if RELU:
        maximum = tl.maximum(maximum, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + p.to(tl.int64) * C + c, maximum, mask=mask)


@kernel
def _max_pool_backward(
    grad_output, x, grad_input, num_windows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """grad_input (B, H, W, C): grad_output at the first maximum of each window (at its last NaN, if any), else zero.

    grad_output: (B, H // KH, W // KW, C). Where H or W is no multiple of the window, num_windows counts the incomplete
    windows at the edge as well: their pixels were not pooled and get zeros.
    """
    OH: tl.constexpr = H // KH
    OW: tl.constexpr = W // KW
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (p < num_windows) & (c < C)
    b, oh, ow = unravel_index(p, (H + KH - 1) // KH, (W + KW - 1) // KW)
    complete = mask & (oh < OH) & (ow < OW)
    corner = ((b * H + oh * KH) * W + ow * KW).to(tl.int64) * C + c
    maximum = tl.load(x + corner, mask=complete, other=0.0)
    index = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.int32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(x + corner + (i * W + j) * C, mask=complete, other=0.0)
            larger = (value > maximum) | (value != value)
            maximum, index = tl.where(larger, value, maximum), tl.where(larger, i * KW + j, index)
    grad = tl.load(grad_output + ((b * OH + oh) * OW + ow).to(tl.int64) * C + c, mask=complete, other=0.0)
    if RELU:
        grad = tl.where(maximum <= 0, 0.0, grad)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            inside = mask & (oh * KH + i < H) & (ow * KW + j < W)
            tl.store(grad_input + corner + (i * W + j) * C, tl.where(index == i * KW + j, grad, 0.0), mask=inside)


@kernel
def _max_pool_with_indices(
    x, out, indices, num_windows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[p, c] = maximum of window p of x (B, H, W, C), indices[p, c] = its index i KW + j in the window, the first of
    several. out, indices: (B, OH, OW, C)."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (p < num_windows) & (c < C)
    b, oh, ow = unravel_index(p, OH, OW)
    maximum = tl.full((BLOCK_P, BLOCK_C), float("-inf"), dtype=tl.float32)
    index = tl.full((BLOCK_P, BLOCK_C), -1, dtype=tl.int32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            h, w = oh * STRIDE_H - PADDING_H + i, ow * STRIDE_W - PADDING_W + j
            inside = mask & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            value = tl.load(x + ((b * H + h) * W + w).to(tl.int64) * C + c, mask=inside, other=float("-inf"))
            larger = inside & ((value > maximum) | (value != value) | (index < 0))
            maximum, index = tl.where(larger, value, maximum), tl.where(larger, i * KW + j, index)
    offset = p.to(tl.int64) * C + c
    tl.store(out + offset, maximum, mask=mask)
    tl.store(indices + offset, index.to(tl.int8), mask=mask)


@kernel
def _max_pool_with_indices_backward(
    grad_output, indices, grad_input, num_pixels, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """grad_input[n, c] = sum of grad_output over the windows around pixel n of (B, H, W, C) whose maximum it is.

    grad_output, indices: (B, OH, OW, C).
    """
    n = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (n < num_pixels) & (c < C)
    b, h, w = unravel_index(n, H, W)
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for i in tl.static_range((KH + STRIDE_H - 1) // STRIDE_H):
        for j in tl.static_range((KW + STRIDE_W - 1) // STRIDE_W):
            oh, ow = (h + PADDING_H) // STRIDE_H - i, (w + PADDING_W) // STRIDE_W - j
            kh, kw = h + PADDING_H - oh * STRIDE_H, w + PADDING_W - ow * STRIDE_W  # of the pixel in that window
            inside = (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW) & (kh < KH) & (kw < KW)
            offset = ((b * OH + oh) * OW + ow).to(tl.int64) * C + c
            index = tl.load(indices + offset, mask=mask & inside, other=-1).to(tl.int32)
            is_maximum = mask & inside & (index == kh * KW + kw)
            total += tl.load(grad_output + offset, mask=is_maximum, other=0.0)
    tl.store(grad_input + n.to(tl.int64) * C + c, total, mask=mask)


def _launch(kernel: Any, tensors: Sequence[Tensor], count: int, channels: int, *sizes: int) -> None:
    """Launch a kernel for `count` windows or pixels of `channels` channels each, BLOCK_WINDOWS by program."""
    block_c = block_size(channels, 64)
    grid = triton.cdiv(count, BLOCK_WINDOWS), triton.cdiv(channels, block_c)
    kernel[grid](*tensors, count, channels, *sizes, BLOCK_WINDOWS, block_c)


def max_pool(x: Tensor, size: Sequence[int], relu: bool) -> Tensor:
    """Max-pooling of x (..., C, H, W), or of relu(x), over windows that tile it: (..., C, H // kh, W // kw)."""
    out: Tensor = _max_pool_op(channels_last(x), size, relu)
    return out.movedim(-1, -3)


@torch.library.custom_op("feddwa::max_pool", mutates_args=())
def _max_pool_op(x: Tensor, size: list[int], relu: bool) -> Tensor:
    *leading, height, width, channels = x.shape
    out = x.new_empty(*leading, height // size[0], width // size[1], channels)
    _launch(_max_pool, (x, out), out.shape[:-1].numel(), channels, height, width, *size, relu)
    return out


def max_pool_backward(grad_output: Tensor, x: Tensor, size: Sequence[int], relu: bool) -> Tensor:
    """The gradient (..., C, H, W) with respect to x of `max_pool`. grad_output: (..., C, H // kh, W // kw)."""
    out: Tensor = _max_pool_backward_op(channels_last(grad_output), channels_last(x), size, relu)
    return out.movedim(-1, -3)


@torch.library.custom_op("feddwa::max_pool_backward", mutates_args=())
def _max_pool_backward_op(grad_output: Tensor, x: Tensor, size: list[int], relu: bool) -> Tensor:
    height, width, channels = x.shape[-3:]
    grad_input = torch.empty_like(x)
    num_windows = x.shape[:-3].numel() * triton.cdiv(height, size[0]) * triton.cdiv(width, size[1])
    _launch(_max_pool_backward, (grad_output, x, grad_input), num_windows, channels, height, width, *size, relu)
    return grad_input


def max_pool_with_indices(
    x: Tensor, size: Pair, stride: Pair, padding: Pair, output_size: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Max-pooling of x (..., C, H, W) over windows that may overlap.

    Returns the maxima and their indices in the windows (int8, so that a window has at most 128 entries), both
    (..., C, *output_size).
    """
    out, indices = _max_pool_with_indices_op(channels_last(x), size, stride, padding, output_size)
    return out.movedim(-1, -3), indices.movedim(-1, -3)


@torch.library.custom_op("feddwa::max_pool_with_indices", mutates_args=())
def _max_pool_with_indices_op(
    x: Tensor, size: list[int], stride: list[int], padding: list[int], output_size: list[int]
) -> tuple[Tensor, Tensor]:
    *leading, height, width, channels = x.shape
    out = x.new_empty(*leading, *output_size, channels)
    indices = torch.empty_like(out, dtype=torch.int8)
    geometry = height, width, *output_size, *size, *stride, *padding
    _launch(_max_pool_with_indices, (x, out, indices), out.shape[:-1].numel(), channels, *geometry)
    return out, indices


def max_pool_with_indices_backward(
    grad_output: Tensor, indices: Tensor, input_size: Sequence[int], size: Pair, stride: Pair, padding: Pair
) -> Tensor:
    """The gradient (..., C, *input_size) with respect to x of `max_pool_with_indices`.

    grad_output, indices: (..., C, *output_size).
    """
    out: Tensor = _max_pool_with_indices_backward_op(
        channels_last(grad_output), channels_last(indices), input_size, size, stride, padding
    )
    return out.movedim(-1, -3)


@torch.library.custom_op("feddwa::max_pool_with_indices_backward", mutates_args=())
def _max_pool_with_indices_backward_op(
    grad_output: Tensor, indices: Tensor, input_size: list[int], size: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    *leading, height, width, channels = grad_output.shape
    grad_input = grad_output.new_empty(*leading, *input_size, channels)
    geometry = *input_size, height, width, *size, *stride, *padding
    tensors, num_pixels = (grad_output, indices, grad_input), grad_input.shape[:-1].numel()
    _launch(_max_pool_with_indices_backward, tensors, num_pixels, channels, *geometry)
    return grad_input
