"""Convolution and its gradients.

A client's convolution is a matrix product of the patches of its images (n, K) and its kernels (K, O), with K = kh kw C
and n = batch x places. Written out, the patches are nine times the images, and moving them is what such a step spends
its time on. Here a program computes a tile of one client's product and gathers just the patches it needs. The first
layer's images may lie in memory in any order, and so may kernels; they are read fastest with the input channels last.

Factors of float32 products are rounded to TensorFloat-32 where the user allows it (`--dtype tf32`); else each is split
into three parts of that width, which keeps the digits of float32.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: E741  (O is the number of output channels, as in every paper)

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.dispatch import Geometry
from feddwa.engine.fast.kernels.common import block_of, channels_last, cut, kernel, pixel

TILE = {"tf32": 128, "tf32x3": 64}  # places per program of a convolution
STAGES = {"tf32": 3, "tf32x3": 2}  # tiles of a convolution that are on their way at once
ENTRIES = {"tf32": 64, "tf32x3": 32}  # of a kernel, per program of its gradient
DEPTH = 32  # terms of a sum that are added at once
LEAST = 4  # times as many make a piece of a kernel's gradient, at least: pieces are written, and read to be added up


def precision() -> str:
    """How products are to be computed now."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@triton.jit
def _patch(
    image, top, left, k, i, j, inside, at_c, at_h, at_w,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Entries k (1, K'), at row i and column j, of patches that begin at top and left of images (N', 1); zeros around
    the image, and between its pixels where those are more than one apart (UH, UW)."""
    real = inside & (k < KH * KW * C)
    if UH == 1 and UW == 1:
        at = image + (top * at_h + left * at_w) + (k % C * at_c + i * DH * at_h + j * DW * at_w)
    else:
        at = image + ((top + i * DH) // UH * at_h + (left + j * DW) // UW * at_w + k % C * at_c)
    if EDGES:
        h, w = top + i * DH, left + j * DW
        real = real & (h >= 0) & (h < H * UH) & (w >= 0) & (w < W * UW) & (h % UH == 0) & (w % UW == 0)
    return tl.load(at, mask=real, other=0.0)


@kernel
def _conv(
    x, weight, bias, out, batch, at_m, at_b, at_c, at_h, at_w, of_m, of_o, of_c, of_i, of_j,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr,
    EDGES: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[row, n, o] = bias[row, o] + sum_k patch[row, n, k] weight[row, o, k], with k in the order (kh, kw, C).

    UH and UW: rows and columns of the images are so far apart, with zeros between them. TURNED: kernels are read from
    their last row and column to their first.
    """
    K: tl.constexpr = KH * KW * C
    row = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    b, oh, ow = pixel(n, OH, OW)
    top, left = oh * SH - PH, ow * SW - PW
    image = x + row * at_m + b * at_b
    total = tl.zeros((BLOCK_N, BLOCK_O), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        if C % BLOCK_K == 0:  # one place of the kernel at a time: its row and column are plain numbers
            i, j = start // (KW * C), start // C % KW
        else:
            i, j = k // (KW * C), k // C % KW
        patch = _patch(image, top, left, k, i, j, b < batch, at_c, at_h, at_w, C, H, W, KH, KW, DH, DW, UH, UW, EDGES)
        own_i, own_j = i, j
        if TURNED:
            own_i, own_j = KH - 1 - i, KW - 1 - j
        at = o[:, None] * of_o + (k % C * of_c + own_i * of_i + own_j * of_j)
        weights = tl.load(weight + row * of_m + at, mask=(o < O)[:, None] & (k < K), other=0.0)
        total = tl.dot(patch, tl.trans(weights), total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + row * O + o, mask=o < O, other=0.0)[None, :]
    place = out + row * batch * OH * OW * O + n * O + o[None, :]
    tl.store(place, total, mask=(b < batch) & (o < O)[None, :])


@kernel
def _conv_to_weight(
    gradient, x, out, to_bias, batch, rows, share, at_m, at_b, at_c, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    EDGES: tl.constexpr, BIAS: tl.constexpr,
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
        b, oh, ow = pixel(n, OH, OW)
        top, left = oh * SH - PH, ow * SW - PW
        image = x + row * at_m + b * at_b
        patch = _patch(image, top, left, k, i, j, b < batch, at_c, at_h, at_w, C, H, W, KH, KW, DH, DW, 1, 1, EDGES)
        come = tl.load(come_from + n * O, mask=(b < batch) & (o < O)[None, :], other=0.0)
        total = tl.dot(tl.trans(come), patch, total, input_precision=PRECISION)
        if BIAS:
            plain += come
    place = (piece * rows + row) * O + o
    tl.store(out + place[:, None] * K + k, total, mask=(o < O)[:, None] & (k < K))
    if BIAS and tl.program_id(0) // tiles == 0:
        tl.store(to_bias + place, tl.sum(plain, 0), mask=o < O)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """(m, B, C, H, W), (m, O, C, kh, kw), (m, O) -> (m, B, O, H', W')."""
    places = [
        (length + 2 * margin - by * (size - 1) - 1) // step + 1
        for length, size, step, margin, by in zip(x.shape[3:], weight.shape[3:], *geometry, strict=True)
    ]
    if x.shape[2] % 16 == 0:  # few channels are as good in any order
        x = _ordered(x)
    out: Tensor = _conv_at(x, _ordered(weight), bias, places, *geometry, (1, 1), False, precision())
    return out.movedim(-1, 2)


def _ordered(x: Tensor) -> Tensor:
    """The same with its third axis, the channels, last in memory."""
    return channels_last(x).movedim(-1, 2)


def conv_to_input(gradient: Tensor, weight: Tensor, image: Sequence[int], geometry: Geometry) -> Tensor:
    """The gradient (m, B, C, H, W) of the input, from that of the output (m, B, O, H', W').

    It is a convolution, too: of the gradients, a stride apart and with zeros all around, and the kernels turned over.
    """
    stride, padding, dilation = geometry
    before = [by * (size - 1) - margin for size, margin, by in zip(weight.shape[3:], padding, dilation, strict=True)]
    come, swapped = _ordered(gradient), _ordered(weight).transpose(1, 2)  # (m, B, O, H', W'), (m, C, O, kh, kw)
    out: Tensor = _conv_at(come, swapped, None, image, (1, 1), before, dilation, stride, True, precision())
    return out.movedim(-1, 2)


@torch.library.custom_op("feddwa::conv", mutates_args=())
def _conv_at(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    places: list[int],
    stride: list[int],
    before: list[int],
    dilation: list[int],
    apart: list[int],
    turned: bool,
    precision: str,
) -> Tensor:
    """A convolution with so many places, the first one so far before the image, whose pixels are so far apart;
    (m, B, H', W', O)."""
    m, outputs, channels, *size = weight.shape
    batch, image = x.shape[1], x.shape[3:]
    out = x.new_empty(m, batch, *places, outputs)
    block, tile = block_of(outputs, 64), TILE[precision]
    _conv[triton.cdiv(batch * places[0] * places[1], tile), triton.cdiv(outputs, block), m](
        x, weight, out if bias is None else bias.contiguous(), out, batch, *x.stride(), *weight.stride(),
        outputs, channels, *image, *size, *places, *stride, *before, *dilation, *apart,
        max(apart) > 1 or _reaches_out(image, size, places, stride, before, dilation), turned, bias is not None,
        block, tile, DEPTH, precision, num_stages=STAGES[precision],
    )  # fmt: skip
    return out


def conv_to_weight(
    gradient: Tensor, x: Tensor, size: Sequence[int], geometry: Geometry, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients (m, O, C, kh, kw) of the kernels and, where there is one, (m, O) of the bias."""
    if x.shape[2] % 16 == 0:  # few channels are as good in any order
        x = _ordered(x)
    to_weight, to_bias = _conv_to_weight_at(channels_last(gradient), x, size, *geometry, bias, precision())
    return _total(to_weight).movedim(-1, 2), _total(to_bias) if bias else None


def _total(pieces: Tensor) -> Tensor:
    """Their sum, in a fixed order."""
    return pieces.sum(0) if len(pieces) > 1 else pieces[0]


@torch.library.custom_op("feddwa::conv_to_weight", mutates_args=())
def _conv_to_weight_at(
    gradient: Tensor,
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: bool,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """(m, B, H', W', O), (m, B, C, H, W) -> (pieces, m, O, kh, kw, C), (pieces, m, O): long sums are cut into pieces,
    enough of them to keep a GPU busy."""
    m, batch, *places, outputs = gradient.shape
    channels, image = x.shape[2], x.shape[3:]
    entries = channels * size[0] * size[1]
    block_o, block_k = block_of(outputs, 64), block_of(entries, ENTRIES[precision])
    tiles = triton.cdiv(outputs, block_o) * triton.cdiv(entries, block_k)
    pieces, share = cut(batch * places[0] * places[1], DEPTH, tiles * m, LEAST)
    to_weight = x.new_empty(pieces, m, outputs, *size, channels)
    to_bias = x.new_empty(pieces, m, outputs) if bias else x.new_empty(0)
    _conv_to_weight[tiles, pieces, m](
        gradient, x, to_weight, to_bias, batch, m, share, *x.stride(),
        outputs, channels, *image, *size, *places, *stride, *padding, *dilation,
        _reaches_out(image, size, places, stride, padding, dilation), bias, block_o, DEPTH, block_k, precision,
        num_warps=4 if block_o * block_k > 32 * 32 else 1, num_stages=1,
    )  # fmt: skip
    return to_weight, to_bias


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
