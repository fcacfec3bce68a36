"""Convolution, pooling and random numbers of many clients as single GPU kernels, in Triton.

A client's convolution is a matrix product of its kernels (O, K) and the patches of its images (K, n), with K = C kh kw
and n = batch x places. Written out, the patches are nine times the images, and moving them is what such a step spends
its time on. Here a program computes a tile of one client's product and gathers just the patches it needs. Activations
are (m, C, B, H, W), in any memory order on the way in and contiguous on the way out.

Factors of float32 products are rounded to TensorFloat-32 where the user allows it (`--dtype tf32`); else each is split
into three parts of that width, which keeps the digits of float32.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: E741  (O is the number of output channels, as in every paper)

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]
TILE = 64  # places per program of a convolution
DEPTH = {"tf32": 32, "tf32x3": 16}  # terms of a sum that are added at once
BLOCK = 512  # single values per program of an element-wise kernel
MANY = 1024  # programs that keep a GPU busy


def precision() -> str:
    """How products are to be computed now."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# Batches differ in length, and strides with them: a kernel is compiled once for a layer, not for every such number.
_ANY_SIZE = ["batch", "rows", "share", "count"]
_ANY_STRIDE = [f"at_{axis}" for axis in ("m", "c", "b", "h", "w", "gm", "go", "gb", "gh", "gw")]
_kernel = triton.jit(do_not_specialize=_ANY_SIZE + _ANY_STRIDE)


@triton.jit
def _entry(k, KH: tl.constexpr, KW: tl.constexpr):
    """Number k of a patch's entries -> its channel, kernel row and kernel column."""
    return k // (KH * KW), k // KW % KH, k % KW


@triton.jit
def _pixel(n, H: tl.constexpr, W: tl.constexpr):
    """Number n of a batch's pixels -> its image, row and column."""
    return n // (H * W), n // W % H, n % W


@_kernel
def _conv(
    x, weight, bias, out, batch, at_m, at_c, at_b, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[row, o, n] = bias[row, o] + sum_k weight[row, o, k] patch[row, k, n]."""
    K: tl.constexpr = C * KH * KW
    row = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    b, oh, ow = _pixel(n, OH, OW)
    top, left = oh * SH - PH, ow * SW - PW
    corner = x + row * at_m + b * at_b + top * at_h + left * at_w  # an address is a corner and a step from it
    total = tl.zeros((BLOCK_O, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c, i, j = _entry(k, KH, KW)
        real = (k < K)[:, None] & (b < batch)[None, :]
        if PH + PW > 0:
            h, w = top[None, :] + (i * DH)[:, None], left[None, :] + (j * DW)[:, None]
            real &= (h >= 0) & (h < H) & (w >= 0) & (w < W)
        step = c * at_c + i * DH * at_h + j * DW * at_w
        patch = tl.load(corner[None, :] + step[:, None], mask=real, other=0.0)
        own = (o < O)[:, None] & (k < K)[None, :]
        kernel = tl.load(weight + row * O * K + o[:, None] * K + k[None, :], mask=own, other=0.0)
        total = tl.dot(kernel, patch, total, input_precision=PRECISION)
    total += tl.load(bias + row * O + o, mask=o < O, other=0.0)[:, None]
    place = out + (row * O + o[:, None]) * batch * OH * OW + n[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(o < O)[:, None] & (b < batch)[None, :])


@_kernel
def _conv_to_weight(
    gradient, x, out, batch, rows, share, at_gm, at_go, at_gb, at_gh, at_gw, at_m, at_c, at_b, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[piece, row, o, k] = sum over the piece's n of gradient[row, o, n] patch[row, k, n]."""
    K: tl.constexpr = C * KH * KW
    tiles: tl.constexpr = (O + BLOCK_O - 1) // BLOCK_O
    piece, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) % tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    k = tl.program_id(0) // tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    c, i, j = _entry(k, KH, KW)
    entry = x + row * at_m + c * at_c + i * DH * at_h + j * DW * at_w
    channel = gradient + row * at_gm + o * at_go
    total = tl.zeros((BLOCK_O, BLOCK_K), dtype=tl.float32)
    for start in range(piece * share, piece * share + share, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        b, oh, ow = _pixel(n, OH, OW)
        top, left = oh * SH - PH, ow * SW - PW
        real = (k < K)[:, None] & (b < batch)[None, :]
        if PH + PW > 0:
            h, w = top[None, :] + (i * DH)[:, None], left[None, :] + (j * DW)[:, None]
            real &= (h >= 0) & (h < H) & (w >= 0) & (w < W)
        step = b * at_b + top * at_h + left * at_w
        patch = tl.load(entry[:, None] + step[None, :], mask=real, other=0.0)
        step = b * at_gb + oh * at_gh + ow * at_gw
        come = tl.load(channel[:, None] + step[None, :], mask=(o < O)[:, None] & (b < batch)[None, :], other=0.0)
        total = tl.dot(come, tl.trans(patch), total, input_precision=PRECISION)
    place = out + ((piece * rows + row) * O + o[:, None]) * K + k[None, :]
    tl.store(place, total, mask=(o < O)[:, None] & (k < K)[None, :])


@_kernel
def _pool(x, out, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr):
    """out[p, oh, ow] = the largest value of its window of x (P, H, W); NaN where one is."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p, oh, ow = _pixel(n, H // KH, W // KW)
    corner = x + p.to(tl.int64) * H * W + oh * KH * W + ow * KW
    best = tl.load(corner, mask=n < count)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(corner + i * W + j, mask=n < count)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + n, best, mask=n < count)


@_kernel
def _pool_to_input(
    gradient, x, out, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr
):
    """The gradient at the first place of each window's largest value (the last NaN, if any), zeros elsewhere."""
    OH: tl.constexpr = H // KH
    OW: tl.constexpr = W // KW
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p, h, w = _pixel(n, H, W)
    oh, ow = h // KH, w // KW
    whole = (n < count) & (oh < OH) & (ow < OW)
    corner = x + p.to(tl.int64) * H * W + oh * KH * W + ow * KW
    best = tl.load(corner, mask=whole)
    place = tl.zeros((BLOCK,), dtype=tl.int32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(corner + i * W + j, mask=whole)
            better = (value > best) | (value != value)
            best, place = tl.where(better, value, best), tl.where(better, i * KW + j, place)
    mine = whole & (place == h % KH * KW + w % KW)
    come = tl.load(gradient + p.to(tl.int64) * OH * OW + oh * OW + ow, mask=mine, other=0.0)
    tl.store(out + n, come, mask=n < count)


@_kernel
def _mix(z, out, count, BLOCK: tl.constexpr):
    """`keys.mix` of every number."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(z + n, mask=n < count, other=0)
    v = (v ^ ((v >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    v = (v ^ ((v >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    tl.store(out + n, v ^ ((v >> 31) & 0x1FFFFFFFF), mask=n < count)


@torch.library.custom_op("feddwa::conv", mutates_args=())
def conv(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int], precision: str
) -> Tensor:
    """(m, C, B, H, W), (m, O, C, kh, kw), (m, O) -> (m, O, B, H', W')."""
    m, outputs, channels, *size = weight.shape
    batch, *image = x.shape[2:]
    places = [_places(*geometry) for geometry in zip(image, size, stride, padding, dilation, strict=True)]
    out = x.new_empty(m, outputs, batch, *places)
    block = _block(outputs)
    _conv[triton.cdiv(batch * places[0] * places[1], TILE), triton.cdiv(outputs, block), m](
        x, weight.contiguous(), bias.contiguous(), out, batch, *x.stride(),
        outputs, channels, *image, *size, *places, *stride, *padding, *dilation,
        block, TILE, DEPTH[precision], precision,
    )  # fmt: skip
    return out


def conv_to_input(
    gradient: Tensor, weight: Tensor, image: Sequence[int], stride: Pair, padding: Pair, dilation: Pair, precision: str
) -> Tensor:
    """The gradient (m, C, B, H, W) of the input, from that of the output (m, O, B, H', W').

    It is a convolution, too: of the gradients, a stride apart and with zeros all around, and the kernels turned over.
    """
    apart = gradient
    if stride != (1, 1):
        lengths = [by * (n - 1) + 1 for by, n in zip(stride, gradient.shape[3:], strict=True)]
        apart = gradient.new_zeros(*gradient.shape[:3], *lengths)
        apart[..., :: stride[0], :: stride[1]] = gradient
    margins: list[int] = []
    for axis in (1, 0):  # `pad` begins with the last one
        reach = dilation[axis] * (weight.shape[3 + axis] - 1)
        before = reach - padding[axis]
        margins += [before, image[axis] + reach - before - apart.shape[3 + axis]]
    turned = weight.flip(3, 4).transpose(1, 2)  # (m, C, O, kh, kw)
    none = weight.new_zeros(turned.shape[:2])
    out: Tensor = conv(F.pad(apart, margins), turned, none, (1, 1), (0, 0), dilation, precision)
    return out


@torch.library.custom_op("feddwa::conv_to_weight", mutates_args=())
def conv_to_weight(
    gradient: Tensor,
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    precision: str,
) -> Tensor:
    """The gradient (m, O, C, kh, kw) of the kernels.

    Long sums are cut into pieces, as many as it takes to keep the GPU busy, and the pieces added in a fixed order.
    """
    m, outputs, batch, *places = gradient.shape
    channels, image = x.shape[1], x.shape[3:]
    entries = channels * size[0] * size[1]
    block_o, block_k, block_n = _block(outputs), _block(entries), DEPTH[precision]
    tiles = triton.cdiv(outputs, block_o) * triton.cdiv(entries, block_k)
    steps = triton.cdiv(batch * places[0] * places[1], block_n)
    pieces = max(1, min(steps, triton.cdiv(MANY, tiles * m)))
    share = triton.cdiv(steps, pieces) * block_n
    out = x.new_empty(pieces, m, outputs, entries, dtype=torch.float32)
    _conv_to_weight[tiles, pieces, m](
        gradient, x, out, batch, m, share, *gradient.stride(), *x.stride(),
        outputs, channels, *image, *size, *places, *stride, *padding, *dilation,
        block_o, block_n, block_k, precision,
    )  # fmt: skip
    found = out.sum(0) if pieces > 1 else out[0]
    return found.to(x.dtype).reshape(m, outputs, channels, *size)


@torch.library.custom_op("feddwa::pool", mutates_args=())
def pool(x: Tensor, size: list[int]) -> Tensor:
    """The maxima (..., H // kh, W // kw) of windows that do not overlap."""
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-2], *(length // own for length, own in zip(x.shape[-2:], size, strict=True)))
    _pool[(triton.cdiv(out.numel(), BLOCK),)](x, out, out.numel(), *x.shape[-2:], *size, BLOCK)
    return out


@torch.library.custom_op("feddwa::pool_to_input", mutates_args=())
def pool_to_input(gradient: Tensor, x: Tensor, size: list[int]) -> Tensor:
    """The gradient of the input of `pool`."""
    x, gradient, out = x.contiguous(), gradient.contiguous(), x.new_empty(x.shape)
    _pool_to_input[(triton.cdiv(x.numel(), BLOCK),)](gradient, x, out, x.numel(), *x.shape[-2:], *size, BLOCK)
    return out


@torch.library.custom_op("feddwa::mix", mutates_args=())
def mix(z: Tensor) -> Tensor:
    """`keys.mix` in one kernel instead of eight."""
    z = z.contiguous()
    out = torch.empty_like(z)
    _mix[(triton.cdiv(z.numel(), BLOCK),)](z, out, z.numel(), BLOCK)
    return out


@mix.register_vmap
def _(info: Any, in_dims: Any, z: Tensor) -> tuple[Tensor, int]:
    found: Tensor = mix(z)
    return found, in_dims[0]


def _places(length: int, size: int, stride: int, padding: int, dilation: int) -> int:
    return (length + 2 * padding - dilation * (size - 1) - 1) // stride + 1


def _block(count: int) -> int:
    return min(64, max(16, 1 << (count - 1).bit_length()))
