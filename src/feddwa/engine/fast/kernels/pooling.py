"""Max-pooling and its gradient.

Windows side by side are looked at again on the way back, and what is pooled may be the relu of x, which is never made.
Where windows overlap, the places of their maxima are kept, and a pixel adds up what the windows around it send there:
no two programs write to one place, so that the sum is always the same.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.dispatch import Pair
from feddwa.engine.fast.kernels.common import block_of, channels_last, kernel, pixel

WINDOWS = 32  # per program


@kernel
def _pool(
    x, out, count, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[p, c] = the largest value of window p of x (B, H, W, C), or of its relu; NaN where one is."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    real = (p < count) & (c < C)
    b, oh, ow = pixel(p, H // KH, W // KW)
    corner = x + ((b * H + oh * KH) * W + ow * KW).to(tl.int64) * C + c
    best = tl.load(corner, mask=real)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(corner + (i * W + j) * C, mask=real)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    if RELU:
        best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + p.to(tl.int64) * C + c, best, mask=real)


@kernel
def _pool_to_input(
    gradient, x, out, count, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient at the first place of each window's largest value (the last NaN, if any), zeros elsewhere.

    Rows and columns that windows leave over are windows that are not whole, and get zeros.
    """
    OH: tl.constexpr = H // KH
    OW: tl.constexpr = W // KW
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    real = (p < count) & (c < C)
    b, oh, ow = pixel(p, (H + KH - 1) // KH, (W + KW - 1) // KW)
    whole = real & (oh < OH) & (ow < OW)
    corner = ((b * H + oh * KH) * W + ow * KW).to(tl.int64) * C + c
    best = tl.load(x + corner, mask=whole, other=0.0)
    place = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.int32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(x + corner + (i * W + j) * C, mask=whole, other=0.0)
            better = (value > best) | (value != value)
            best, place = tl.where(better, value, best), tl.where(better, i * KW + j, place)
    come = tl.load(gradient + ((b * OH + oh) * OW + ow).to(tl.int64) * C + c, mask=whole, other=0.0)
    if RELU:
        come = tl.where(best <= 0, 0.0, come)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            inside = real & (oh * KH + i < H) & (ow * KW + j < W)
            tl.store(out + corner + (i * W + j) * C, tl.where(place == i * KW + j, come, 0.0), mask=inside)


@kernel
def _pool_places(
    x, out, places, count, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[p, c] = the largest value of window p of x (B, H, W, C), and its place there; of several the first."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    real = (p < count) & (c < C)
    b, oh, ow = pixel(p, OH, OW)
    best = tl.full((BLOCK_P, BLOCK_C), float("-inf"), dtype=tl.float32)
    place = tl.full((BLOCK_P, BLOCK_C), -1, dtype=tl.int32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            h, w = oh * SH - PH + i, ow * SW - PW + j
            inside = real & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            value = tl.load(x + ((b * H + h) * W + w).to(tl.int64) * C + c, mask=inside, other=float("-inf"))
            better = inside & ((value > best) | (value != value) | (place < 0))
            best, place = tl.where(better, value, best), tl.where(better, i * KW + j, place)
    at = p.to(tl.int64) * C + c
    tl.store(out + at, best, mask=real)
    tl.store(places + at, place.to(tl.int8), mask=real)


@kernel
def _places_to_input(
    gradient, places, out, count, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[n, c] = the sum of the gradients of those windows around pixel n of (B, H, W, C) whose maximum it is."""
    n = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    real = (n < count) & (c < C)
    b, h, w = pixel(n, H, W)
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for i in tl.static_range((KH + SH - 1) // SH):
        for j in tl.static_range((KW + SW - 1) // SW):
            oh, ow = (h + PH) // SH - i, (w + PW) // SW - j
            own_i, own_j = h + PH - oh * SH, w + PW - ow * SW  # where the pixel is in that window
            inside = (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW) & (own_i < KH) & (own_j < KW)
            at = ((b * OH + oh) * OW + ow).to(tl.int64) * C + c
            place = tl.load(places + at, mask=real & inside, other=-1).to(tl.int32)
            mine = real & inside & (place == own_i * KW + own_j)
            total += tl.load(gradient + at, mask=mine, other=0.0)
    tl.store(out + n.to(tl.int64) * C + c, total, mask=real)


def pool(x: Tensor, size: Sequence[int], relu: bool) -> Tensor:
    """The maxima (..., C, H // kh, W // kw) of windows of x, or of its relu, that do not overlap."""
    out: Tensor = _pool_at(channels_last(x), size, relu)
    return out.movedim(-1, -3)


@torch.library.custom_op("feddwa::pool", mutates_args=())
def _pool_at(x: Tensor, size: list[int], relu: bool) -> Tensor:
    *many, height, width, channels = x.shape
    out = x.new_empty(*many, height // size[0], width // size[1], channels)
    count, block = out.shape[:-1].numel(), block_of(channels, 64)
    _pool[triton.cdiv(count, WINDOWS), triton.cdiv(channels, block)](
        x, out, count, channels, height, width, *size, relu, WINDOWS, block
    )
    return out


def pool_to_input(gradient: Tensor, x: Tensor, size: Sequence[int], relu: bool) -> Tensor:
    """The gradient of the input of `pool`."""
    out: Tensor = _pool_to_input_at(channels_last(gradient), channels_last(x), size, relu)
    return out.movedim(-1, -3)


@torch.library.custom_op("feddwa::pool_to_input", mutates_args=())
def _pool_to_input_at(gradient: Tensor, x: Tensor, size: list[int], relu: bool) -> Tensor:
    height, width, channels = x.shape[-3:]
    out, block = torch.empty_like(x), block_of(channels, 64)
    count = x.shape[:-3].numel() * triton.cdiv(height, size[0]) * triton.cdiv(width, size[1])
    _pool_to_input[triton.cdiv(count, WINDOWS), triton.cdiv(channels, block)](
        gradient, x, out, count, channels, height, width, *size, relu, WINDOWS, block
    )
    return out


def pool_places(x: Tensor, size: Pair, stride: Pair, padding: Pair, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The maxima (..., C, *shape) of windows of x that may overlap, and their places in the windows."""
    out, places = _pool_places_at(channels_last(x), size, stride, padding, shape)
    return out.movedim(-1, -3), places.movedim(-1, -3)


@torch.library.custom_op("feddwa::pool_places", mutates_args=())
def _pool_places_at(
    x: Tensor, size: list[int], stride: list[int], padding: list[int], shape: list[int]
) -> tuple[Tensor, Tensor]:
    *many, height, width, channels = x.shape
    out = x.new_empty(*many, *shape, channels)
    places, block = torch.empty_like(out, dtype=torch.int8), block_of(channels, 64)
    count = out.shape[:-1].numel()
    _pool_places[triton.cdiv(count, WINDOWS), triton.cdiv(channels, block)](
        x, out, places, count, channels, height, width, *shape, *size, *stride, *padding, WINDOWS, block
    )
    return out, places


def places_to_input(
    gradient: Tensor, places: Tensor, image: Sequence[int], size: Pair, stride: Pair, padding: Pair
) -> Tensor:
    """The gradient (..., C, *image) of the input of `pool_places`."""
    out: Tensor = _places_to_input_at(channels_last(gradient), channels_last(places), image, size, stride, padding)
    return out.movedim(-1, -3)


@torch.library.custom_op("feddwa::places_to_input", mutates_args=())
def _places_to_input_at(
    gradient: Tensor, places: Tensor, image: list[int], size: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    *many, height, width, channels = gradient.shape
    out, block = gradient.new_empty(*many, *image, channels), block_of(channels, 64)
    count = out.shape[:-1].numel()
    _places_to_input[triton.cdiv(count, WINDOWS), triton.cdiv(channels, block)](
        gradient, places, out, count, channels, *image, height, width, *size, *stride, *padding, WINDOWS, block
    )
    return out
