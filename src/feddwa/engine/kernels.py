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

from feddwa.engine.forms import Geometry

TILE = 64  # places per program of a convolution
DEPTH = 16  # terms of a sum that are added at once
BLOCK = 512  # single values per program of an element-wise kernel
MANY = 2048  # programs that keep a GPU busy


def precision() -> str:
    """How products are to be computed now."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# Batches differ in length, and strides with them: a kernel is compiled once for a layer, not for every such number.
_ANY_SIZE = ["batch", "rows", "share", "count"]
_ANY_STRIDE = [f"at_{axis}" for axis in ("m", "c", "b", "h", "w", "gm", "go", "gb", "gh", "gw")]
_kernel = triton.jit(do_not_specialize=_ANY_SIZE + _ANY_STRIDE)


@triton.jit
def _pixel(n, H: tl.constexpr, W: tl.constexpr):
    """Number n of a batch's pixels -> its image, row and column."""
    return n // (H * W), n // W % H, n % W


@_kernel
def _conv(
    x, weight, bias, out, batch, at_m, at_c, at_b, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[row, o, n] = bias[row, o] + sum_k weight[row, o, k] patch[row, k, n], with k in the order (kh, kw, C)."""
    K: tl.constexpr = KH * KW * C
    row = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    b, oh, ow = _pixel(n, OH, OW)
    top, left = (oh * SH - PH)[None, :], (ow * SW - PW)[None, :]
    corner = x + row * at_m + (b * at_b)[None, :] + top * at_h + left * at_w  # an address is a corner and steps from it
    total = tl.zeros((BLOCK_O, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[:, None]
        real = (b < batch)[None, :]
        if C % BLOCK_K == 0:  # one place of the kernel at a time: its row and column are plain numbers
            i, j = start // (KW * C), start // C % KW
        else:
            i, j = k // (KW * C), k // C % KW
            real &= k < K
        if EDGES:
            h, w = top + i * DH, left + j * DW
            real &= (h >= 0) & (h < H) & (w >= 0) & (w < W)
        patch = tl.load(corner + k % C * at_c + (i * DH * at_h + j * DW * at_w), mask=real, other=0.0)
        k = start + tl.arange(0, BLOCK_K)[None, :]
        kernel = tl.load(weight + row * O * K + o[:, None] * K + k, mask=(o < O)[:, None] & (k < K), other=0.0)
        total = tl.dot(kernel, patch, total, input_precision=PRECISION)
    total += tl.load(bias + row * O + o, mask=o < O, other=0.0)[:, None]
    place = out + (row * O + o[:, None]) * batch * OH * OW + n[None, :]
    tl.store(place, total, mask=(o < O)[:, None] & (b < batch)[None, :])


@_kernel
def _conv_to_weight(
    gradient, x, out, batch, rows, share, at_gm, at_go, at_gb, at_gh, at_gw, at_m, at_c, at_b, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[piece, row, o, k] = sum over the piece's n of gradient[row, o, n] patch[row, k, n]."""
    K: tl.constexpr = C * KH * KW
    tiles: tl.constexpr = (O + BLOCK_O - 1) // BLOCK_O
    piece, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) % tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    k = tl.program_id(0) // tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    c, i, j = k // (KH * KW), k // KW % KH, k % KW
    entry = x + row * at_m + c * at_c + i * DH * at_h + j * DW * at_w
    channel = gradient + row * at_gm + o * at_go
    total = tl.zeros((BLOCK_O, BLOCK_K), dtype=tl.float32)
    for start in range(piece * share, piece * share + share, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        b, oh, ow = _pixel(n, OH, OW)
        top, left = oh * SH - PH, ow * SW - PW
        real = (k < K)[:, None] & (b < batch)[None, :]
        if EDGES:
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
def _pool(
    x, out, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[p, oh, ow] = the largest value of its window of x (P, H, W), or of its relu; NaN where one is."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p, oh, ow = _pixel(n, H // KH, W // KW)
    corner = x + p.to(tl.int64) * H * W + oh * KH * W + ow * KW
    best = tl.load(corner, mask=n < count)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(corner + i * W + j, mask=n < count)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    if RELU:
        best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + n, best, mask=n < count)


@_kernel
def _pool_to_input(
    gradient, x, out, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
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
    if RELU:
        mine = mine & ~(best <= 0)
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


def conv(x: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    """(m, C, B, H, W), (m, O, C, kh, kw), (m, O) -> (m, O, B, H', W')."""
    stride, padding, dilation = geometry
    places = [
        (length + 2 * margin - by * (size - 1) - 1) // step + 1
        for length, size, step, margin, by in zip(x.shape[3:], weight.shape[3:], *geometry, strict=True)
    ]
    out: Tensor = _conv_at(x, weight, bias, places, stride, padding, dilation, precision())
    return out


def conv_to_input(gradient: Tensor, weight: Tensor, image: Sequence[int], geometry: Geometry) -> Tensor:
    """The gradient (m, C, B, H, W) of the input, from that of the output (m, O, B, H', W').

    It is a convolution, too: of the gradients, a stride apart and with zeros all around, and the kernels turned over.
    """
    stride, padding, dilation = geometry
    apart = gradient
    if stride != (1, 1):
        lengths = [by * (n - 1) + 1 for by, n in zip(stride, gradient.shape[3:], strict=True)]
        apart = gradient.new_zeros(*gradient.shape[:3], *lengths)
        apart[..., :: stride[0], :: stride[1]] = gradient
    turned = weight.flip(3, 4).transpose(1, 2)  # (m, C, O, kh, kw)
    before = [by * (size - 1) - margin for size, margin, by in zip(weight.shape[3:], padding, dilation, strict=True)]
    none = weight.new_zeros(turned.shape[:2])
    out: Tensor = _conv_at(apart, turned, none, image, (1, 1), before, dilation, precision())
    return out


@torch.library.custom_op("feddwa::conv", mutates_args=())
def _conv_at(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    places: list[int],
    stride: list[int],
    before: list[int],
    dilation: list[int],
    precision: str,
) -> Tensor:
    """A convolution with so many places, the first one so far before the image; around the image there are zeros."""
    m, outputs, channels, *size = weight.shape
    batch, *image = x.shape[2:]
    out = x.new_empty(m, outputs, batch, *places)
    block, depth = _block(outputs, 64), DEPTH if channels % DEPTH == 0 else 2 * DEPTH  # few channels: all at once
    _conv[triton.cdiv(batch * places[0] * places[1], TILE), triton.cdiv(outputs, block), m](
        x, weight.permute(0, 1, 3, 4, 2).contiguous(), bias.contiguous(), out, batch, *x.stride(),
        outputs, channels, *image, *size, *places, *stride, *before, *dilation,
        _reaches_out(image, size, places, stride, before, dilation), block, TILE, depth, precision,
    )  # fmt: skip
    return out


def conv_to_weight(gradient: Tensor, x: Tensor, size: Sequence[int], geometry: Geometry) -> Tensor:
    """The gradient (m, O, C, kh, kw) of the kernels."""
    found: Tensor = _conv_to_weight_at(gradient, x, size, *geometry, precision())
    return found


@torch.library.custom_op("feddwa::conv_to_weight", mutates_args=())
def _conv_to_weight_at(
    gradient: Tensor,
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    precision: str,
) -> Tensor:
    """Long sums are cut into pieces, enough of them to keep a GPU busy, and the pieces added in a fixed order."""
    m, outputs, batch, *places = gradient.shape
    channels, image = x.shape[1], x.shape[3:]
    entries = channels * size[0] * size[1]
    block_o, block_k = _block(outputs, 64), _block(entries, 128)
    tiles = triton.cdiv(outputs, block_o) * triton.cdiv(entries, block_k)
    steps = triton.cdiv(batch * places[0] * places[1], DEPTH)
    pieces = max(1, min(steps, triton.cdiv(MANY, tiles * m)))
    share = triton.cdiv(steps, pieces) * DEPTH
    out = x.new_empty(pieces, m, outputs, entries)
    _conv_to_weight[tiles, pieces, m](
        gradient, x, out, batch, m, share, *gradient.stride(), *x.stride(),
        outputs, channels, *image, *size, *places, *stride, *padding, *dilation,
        _reaches_out(image, size, places, stride, padding, dilation), block_o, DEPTH, block_k, precision,
        num_warps=4 if block_o * block_k > 32 * 32 else 1,
    )  # fmt: skip
    found = out.sum(0) if pieces > 1 else out[0]
    return found.reshape(m, outputs, channels, *size)


@torch.library.custom_op("feddwa::pool", mutates_args=())
def pool(x: Tensor, size: list[int], relu: bool) -> Tensor:
    """The maxima (..., H // kh, W // kw) of windows of x, or of its relu, that do not overlap."""
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-2], *(length // own for length, own in zip(x.shape[-2:], size, strict=True)))
    _pool[(triton.cdiv(out.numel(), BLOCK),)](x, out, out.numel(), *x.shape[-2:], *size, relu, BLOCK)
    return out


@torch.library.custom_op("feddwa::pool_to_input", mutates_args=())
def pool_to_input(gradient: Tensor, x: Tensor, size: list[int], relu: bool) -> Tensor:
    """The gradient of the input of `pool`."""
    x, gradient, out = x.contiguous(), gradient.contiguous(), x.new_empty(x.shape)
    _pool_to_input[(triton.cdiv(x.numel(), BLOCK),)](gradient, x, out, x.numel(), *x.shape[-2:], *size, relu, BLOCK)
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


def _reaches_out(
    image: Sequence[int],
    size: Sequence[int],
    places: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Whether some patch has entries outside the image."""
    last = [(n - 1) * by - margin for n, by, margin in zip(places, stride, before, strict=True)]
    ends = [at + by * (own - 1) for at, by, own in zip(last, dilation, size, strict=True)]
    return any(margin > 0 for margin in before) or any(end >= n for end, n in zip(ends, image, strict=True))


def _block(count: int, most: int) -> int:
    return min(most, max(16, 1 << (count - 1).bit_length()))
