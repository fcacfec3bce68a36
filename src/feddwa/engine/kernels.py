"""Convolution, pooling, BatchNorm and random numbers of many clients as single GPU kernels, in Triton.

A client's convolution is a matrix product of the patches of its images (n, K) and its kernels (K, O), with K = kh kw C
and n = batch x places. Written out, the patches are nine times the images, and moving them is what such a step spends
its time on. Here a program computes a tile of one client's product and gathers just the patches it needs. Images are
(m, B, C, H, W) with the channels last in memory, so that a pixel is read as one piece; the first layer's may lie in any
order.

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

# Sizes and numbers of stages come from sweeps over the layers of the CIFAR CNN on an H200.
TILE = {"tf32": 128, "tf32x3": 64}  # places per program of a convolution
STAGES = {"tf32": 3, "tf32x3": 2}  # tiles of a convolution that are on their way at once
ENTRIES = {"tf32": 64, "tf32x3": 32}  # of a kernel, per program of its gradient
DEPTH = 32  # terms of a sum that are added at once
WINDOWS = 32  # per program of a pooling
PIXELS = 64  # of BatchNorm, at once
BLOCK = 512  # single values per program of an element-wise kernel
MANY = 2048  # programs that keep a GPU busy


def precision() -> str:
    """How products are to be computed now."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# Batches differ in length: a kernel is compiled once for a layer, not for every length.
_ANY = ["batch", "rows", "share", "count", "pixels", "at_centre", "factor", "summand"]
_kernel = triton.jit(do_not_specialize=_ANY)


@triton.jit
def _pixel(n, H: tl.constexpr, W: tl.constexpr):
    """Number n of a batch's pixels -> its image, row and column."""
    return n // (H * W), n // W % H, n % W


@triton.jit
def _patch(
    corner, top, left, k, i, j, inside, at_c, at_h, at_w,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Entries k (1, K'), at row i and column j, of patches that begin at corners (N', 1); zeros around the image."""
    real = inside & (k < KH * KW * C)
    if EDGES:
        h, w = top + i * DH, left + j * DW
        real = real & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    return tl.load(corner + (k % C * at_c + i * DH * at_h + j * DW * at_w), mask=real, other=0.0)


@_kernel
def _conv(
    x, weight, bias, out, batch, at_m, at_b, at_c, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[row, n, o] = bias[row, o] + sum_k patch[row, n, k] weight[row, o, k], with k in the order (kh, kw, C)."""
    K: tl.constexpr = KH * KW * C
    row = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    b, oh, ow = _pixel(n, OH, OW)
    top, left = oh * SH - PH, ow * SW - PW
    corner = x + row * at_m + (b * at_b + top * at_h + left * at_w)
    total = tl.zeros((BLOCK_N, BLOCK_O), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        if C % BLOCK_K == 0:  # one place of the kernel at a time: its row and column are plain numbers
            i, j = start // (KW * C), start // C % KW
        else:
            i, j = k // (KW * C), k // C % KW
        patch = _patch(corner, top, left, k, i, j, b < batch, at_c, at_h, at_w, C, H, W, KH, KW, DH, DW, EDGES)
        kernel = tl.load(weight + row * O * K + o[:, None] * K + k, mask=(o < O)[:, None] & (k < K), other=0.0)
        total = tl.dot(patch, tl.trans(kernel), total, input_precision=PRECISION)
    total += tl.load(bias + row * O + o, mask=o < O, other=0.0)[None, :]
    place = out + row * batch * OH * OW * O + n * O + o[None, :]
    tl.store(place, total, mask=(b < batch) & (o < O)[None, :])


@_kernel
def _conv_to_weight(
    gradient, x, out, to_bias, batch, rows, share, at_m, at_b, at_c, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[piece, row, o, k] = sum over the piece's n of gradient[row, n, o] patch[row, n, k]; to_bias without patch."""
    K: tl.constexpr = KH * KW * C
    tiles: tl.constexpr = (O + BLOCK_O - 1) // BLOCK_O
    piece, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) % tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    k = tl.program_id(0) // tiles * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    i, j = k // (KW * C), k // C % KW
    come_from = gradient + row * batch * OH * OW * O + o[None, :]
    total, plain = tl.zeros((BLOCK_O, BLOCK_K), dtype=tl.float32), tl.zeros((BLOCK_N, BLOCK_O), dtype=tl.float32)
    for start in range(piece * share, piece * share + share, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        b, oh, ow = _pixel(n, OH, OW)
        top, left = oh * SH - PH, ow * SW - PW
        corner = x + row * at_m + (b * at_b + top * at_h + left * at_w)
        patch = _patch(corner, top, left, k, i, j, b < batch, at_c, at_h, at_w, C, H, W, KH, KW, DH, DW, EDGES)
        come = tl.load(come_from + n * O, mask=(b < batch) & (o < O)[None, :], other=0.0)
        total = tl.dot(tl.trans(come), patch, total, input_precision=PRECISION)
        plain += come
    place = (piece * rows + row) * O + o
    tl.store(out + place[:, None] * K + k, total, mask=(o < O)[:, None] & (k < K))
    if tl.program_id(0) // tiles == 0:
        tl.store(to_bias + place, tl.sum(plain, 0), mask=o < O)


@_kernel
def _pool(
    x, out, count, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[p, c] = the largest value of window p of x (B, H, W, C), or of its relu; NaN where one is."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    real = (p < count) & (c < C)
    b, oh, ow = _pixel(p, H // KH, W // KW)
    corner = x + ((b * H + oh * KH) * W + ow * KW).to(tl.int64) * C + c
    best = tl.load(corner, mask=real)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(corner + (i * W + j) * C, mask=real)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    if RELU:
        best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + p.to(tl.int64) * C + c, best, mask=real)


@_kernel
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
    b, oh, ow = _pixel(p, (H + KH - 1) // KH, (W + KW - 1) // KW)
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


@_kernel
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


@_kernel
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


@_kernel
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


@triton.jit
def _mixed(v):
    """`keys.mix` of a number."""
    v = (v ^ ((v >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    v = (v ^ ((v >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return v ^ ((v >> 31) & 0x1FFFFFFFF)


@_kernel
def _mix(z, out, count, factor, summand, BLOCK: tl.constexpr):
    """`keys.mix` of factor z + summand for every z."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + n, _mixed(tl.load(z + n, mask=n < count, other=0) * factor + summand), mask=n < count)


@_kernel
def _uniform(key, out, count, BLOCK: tl.constexpr):
    """`keys.uniform` of every key: out (keys, count)."""
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    drawn = _mixed(tl.load(key + row) + (n + 1).to(tl.int64) * -0x61C8864680B583EB)
    tl.store(out + row * count + n, ((drawn >> 40) & 0xFFFFFF).to(tl.float32) * 2.0**-24, mask=n < count)


def channels_last(x: Tensor) -> Tensor:
    """(..., C, H, W) -> (..., H, W, C), contiguous."""
    return x.movedim(-3, -1).contiguous()


def conv(x: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    """(m, B, C, H, W), (m, O, C, kh, kw), (m, O) -> (m, B, O, H', W')."""
    stride, padding, dilation = geometry
    places = [
        (length + 2 * margin - by * (size - 1) - 1) // step + 1
        for length, size, step, margin, by in zip(x.shape[3:], weight.shape[3:], *geometry, strict=True)
    ]
    if x.shape[2] % 16 == 0:  # few channels are as good in any order
        x = channels_last(x).movedim(-1, 2)
    out: Tensor = _conv_at(x, weight, bias, places, stride, padding, dilation, precision())
    return out.movedim(-1, 2)


def conv_to_input(gradient: Tensor, weight: Tensor, image: Sequence[int], geometry: Geometry) -> Tensor:
    """The gradient (m, B, C, H, W) of the input, from that of the output (m, B, O, H', W').

    It is a convolution, too: of the gradients, a stride apart and with zeros all around, and the kernels turned over.
    """
    stride, padding, dilation = geometry
    apart = channels_last(gradient)  # (m, B, H', W', O)
    if stride != (1, 1):
        lengths = [by * (n - 1) + 1 for by, n in zip(stride, gradient.shape[3:], strict=True)]
        apart = gradient.new_zeros(*gradient.shape[:2], *lengths, gradient.shape[2])
        apart[:, :, :: stride[0], :: stride[1]] = gradient.movedim(2, -1)
    turned = weight.flip(3, 4).transpose(1, 2)  # (m, C, O, kh, kw)
    before = [by * (size - 1) - margin for size, margin, by in zip(weight.shape[3:], padding, dilation, strict=True)]
    none = weight.new_zeros(turned.shape[:2])
    out: Tensor = _conv_at(apart.movedim(-1, 2), turned, none, image, (1, 1), before, dilation, precision())
    return out.movedim(-1, 2)


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
    """A convolution with so many places, the first one so far before the image; (m, B, H', W', O)."""
    m, outputs, channels, *size = weight.shape
    batch, image = x.shape[1], x.shape[3:]
    out = x.new_empty(m, batch, *places, outputs)
    block, tile = _block(outputs, 64), TILE[precision]
    _conv[triton.cdiv(batch * places[0] * places[1], tile), triton.cdiv(outputs, block), m](
        x, weight.permute(0, 1, 3, 4, 2).contiguous(), bias.contiguous(), out, batch, *x.stride(),
        outputs, channels, *image, *size, *places, *stride, *before, *dilation,
        _reaches_out(image, size, places, stride, before, dilation), block, tile, DEPTH, precision,
        num_stages=STAGES[precision],
    )  # fmt: skip
    return out


def conv_to_weight(gradient: Tensor, x: Tensor, size: Sequence[int], geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The gradients (m, O, C, kh, kw) of the kernels and (m, O) of the bias."""
    if x.shape[2] % 16 == 0:  # few channels are as good in any order
        x = channels_last(x).movedim(-1, 2)
    to_weight, to_bias = _conv_to_weight_at(channels_last(gradient), x, size, *geometry, precision())
    return to_weight.movedim(-1, 2), to_bias


@torch.library.custom_op("feddwa::conv_to_weight", mutates_args=())
def _conv_to_weight_at(
    gradient: Tensor,
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    precision: str,
) -> tuple[Tensor, Tensor]:
    """(m, B, H', W', O), (m, B, C, H, W) -> (m, O, kh, kw, C), (m, O). Long sums are cut into pieces, enough of them to
    keep a GPU busy, and the pieces added in a fixed order."""
    m, batch, *places, outputs = gradient.shape
    channels, image = x.shape[2], x.shape[3:]
    entries = channels * size[0] * size[1]
    block_o, block_k = _block(outputs, 64), _block(entries, ENTRIES[precision])
    tiles = triton.cdiv(outputs, block_o) * triton.cdiv(entries, block_k)
    pieces, share = _cut(batch * places[0] * places[1], DEPTH, tiles * m)
    to_weight, to_bias = x.new_empty(pieces, m, outputs, entries), x.new_empty(pieces, m, outputs)
    _conv_to_weight[tiles, pieces, m](
        gradient, x, to_weight, to_bias, batch, m, share, *x.stride(),
        outputs, channels, *image, *size, *places, *stride, *padding, *dilation,
        _reaches_out(image, size, places, stride, padding, dilation), block_o, DEPTH, block_k, precision,
        num_warps=4 if block_o * block_k > 32 * 32 else 1, num_stages=1,
    )  # fmt: skip
    return to_weight.sum(0).reshape(m, outputs, *size, channels), to_bias.sum(0)


def pool(x: Tensor, size: Sequence[int], relu: bool) -> Tensor:
    """The maxima (..., C, H // kh, W // kw) of windows of x, or of its relu, that do not overlap."""
    out: Tensor = _pool_at(channels_last(x), size, relu)
    return out.movedim(-1, -3)


@torch.library.custom_op("feddwa::pool", mutates_args=())
def _pool_at(x: Tensor, size: list[int], relu: bool) -> Tensor:
    *many, height, width, channels = x.shape
    out = x.new_empty(*many, height // size[0], width // size[1], channels)
    count, block = out.shape[:-1].numel(), _block(channels, 64)
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
    out, block = torch.empty_like(x), _block(channels, 64)
    count = x.shape[:-3].numel() * triton.cdiv(height, size[0]) * triton.cdiv(width, size[1])
    _pool_to_input[triton.cdiv(count, WINDOWS), triton.cdiv(channels, block)](
        gradient, x, out, count, channels, height, width, *size, relu, WINDOWS, block
    )
    return out


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
    block = _block(channels, 64)
    pieces, share = _cut(pixels, PIXELS, triton.cdiv(channels, block) * m)
    grid, out = (triton.cdiv(channels, block), pieces, m), x.new_empty(2, pieces, m, channels)
    _sums[grid](a, x, centre, out, pixels, m, share, centre.stride(0), channels, squared, block, PIXELS)
    return out, grid, (share, block, PIXELS)


@torch.library.custom_op("feddwa::mix", mutates_args=())
def mix(z: Tensor, factor: int, summand: int) -> Tensor:
    """`keys.mix` of factor z + summand in one kernel instead of ten."""
    z = z.contiguous()
    out = torch.empty_like(z)
    _mix[(triton.cdiv(z.numel(), BLOCK),)](z, out, z.numel(), factor, summand, BLOCK)
    return out


@mix.register_vmap
def _(info: Any, in_dims: Any, z: Tensor, factor: int, summand: int) -> tuple[Tensor, int]:
    found: Tensor = mix(z, factor, summand)
    return found, in_dims[0]


@torch.library.custom_op("feddwa::uniform", mutates_args=())
def uniform(key: Tensor, count: int) -> Tensor:
    """`keys.uniform` of all keys (...) at once: (..., count)."""
    key = key.contiguous()
    out = torch.empty(*key.shape, count, dtype=torch.float32, device=key.device)
    _uniform[triton.cdiv(count, BLOCK), key.numel()](key, out, count, BLOCK)
    return out


@uniform.register_vmap
def _(info: Any, in_dims: Any, key: Tensor, count: int) -> tuple[Tensor, int]:
    return uniform(key.movedim(in_dims[0], 0), count), 0


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


def _cut(length: int, step: int, programs: int) -> tuple[int, int]:
    """Into how many pieces a sum of so many terms is cut, of how many terms each, if so many programs add up one."""
    steps = triton.cdiv(length, step)
    pieces = max(1, min(steps, triton.cdiv(MANY, programs)))
    return pieces, triton.cdiv(steps, pieces) * step


def _block(count: int, most: int) -> int:
    return min(most, max(16, 1 << (count - 1).bit_length()))
