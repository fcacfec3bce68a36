"""Convolution and pooling of many clients as single GPU kernels, in Triton.

A client's convolution is a matrix product of its kernels (O, K) and the patches of its images (K, n), with K = C kh kw
and n = batch x places. Written out, the patches are nine times the images, and moving them is what such a step spends
its time on. Here a program computes a tile of one client's product and gathers just the patches it needs. Activations
are (m, C, B, H, W), in any memory order on the way in and contiguous on the way out.

Factors of float32 products are rounded to TensorFloat-32 where the user allows it (`--dtype tf32`); else each is split
into three parts of that width, which keeps the digits of float32.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: E741  (O is the number of output channels, as in every paper)

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128  # places, or single values, per program
MANY = 1024  # programs that keep a GPU busy


def precision() -> str:
    """How products are to be computed now."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# Batches differ in length, and strides with them: a kernel is compiled once for a layer, not for every such number.
_ANY_SIZE = ["batch", "rows", "share", "count"]
_ANY_STRIDE = [f"at_{axis}" for axis in ("m", "c", "o", "b", "h", "w", "gm", "go", "gb", "gh", "gw")]
_kernel = triton.jit(do_not_specialize=_ANY_SIZE + _ANY_STRIDE)


@triton.jit
def _place(k, n, KW: tl.constexpr, KK: tl.constexpr, OW: tl.constexpr, L: tl.constexpr):
    """Patch entry k -> channel, kernel row, kernel column; n -> image, row, column."""
    rest, spot = k % KK, n % L
    return k // KK, rest // KW, rest % KW, n // L, spot // OW, spot % OW


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
    L: tl.constexpr = OH * OW
    row = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK_O, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c, i, j, b, oh, ow = _place(k[:, None], n[None, :], KW, KH * KW, OW, L)
        h = oh * SH - PH + i * DH
        w = ow * SW - PW + j * DW
        inside = (k[:, None] < K) & (b < batch) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        patch = tl.load(x + row * at_m + c * at_c + b * at_b + h * at_h + w * at_w, mask=inside, other=0.0)
        own = (o[:, None] < O) & (k[None, :] < K)
        kernel = tl.load(weight + row * O * K + o[:, None] * K + k[None, :], mask=own, other=0.0)
        total = tl.dot(kernel, patch, total, input_precision=PRECISION)
    total += tl.load(bias + row * O + o, mask=o < O, other=0.0)[:, None]
    real = (o[:, None] < O) & (n[None, :] < batch * L)
    tl.store(out + (row * O + o[:, None]) * batch * L + n[None, :], total.to(out.dtype.element_ty), mask=real)


@_kernel
def _conv_to_input(
    gradient, weight, out, batch, at_m, at_o, at_b, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[row, c, n] = sum over o, i, j of weight[row, o, c, i, j] gradient[row, o, what saw n through (i, j)]."""
    K: tl.constexpr = O * KH * KW
    row = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_C, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        o, i, j, b, h, w = _place(k[:, None], n[None, :], KW, KH * KW, W, H * W)
        top, left = h + PH - i * DH, w + PW - j * DW
        oh, ow = top // SH, left // SW
        seen = (top >= 0) & (left >= 0) & (top % SH == 0) & (left % SW == 0) & (oh < OH) & (ow < OW)
        place = gradient + row * at_m + o * at_o + b * at_b + oh * at_h + ow * at_w
        come = tl.load(place, mask=seen & (k[:, None] < K) & (b < batch), other=0.0)
        entry = (k // (KH * KW)) * C * KH * KW + k % (KH * KW)  # of weight (O, C, kh, kw), channel apart
        own = (c[:, None] < C) & (k[None, :] < K)
        kernel = tl.load(weight + row * O * C * KH * KW + c[:, None] * KH * KW + entry[None, :], mask=own, other=0.0)
        total = tl.dot(kernel, come, total, input_precision=PRECISION)
    real = (c[:, None] < C) & (n[None, :] < batch * H * W)
    tl.store(out + (row * C + c[:, None]) * batch * H * W + n[None, :], total.to(out.dtype.element_ty), mask=real)


@_kernel
def _conv_to_weight(
    gradient, x, out, batch, rows, share, at_gm, at_go, at_gb, at_gh, at_gw, at_m, at_c, at_b, at_h, at_w,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[piece, row, o, k] = sum over the piece's n of gradient[row, o, n] patch[row, k, n].

    A patch has an entry more, K, that is always 1: its gradient is that of the bias.
    """
    K: tl.constexpr = C * KH * KW
    L: tl.constexpr = OH * OW
    tiles: tl.constexpr = (O + BLOCK_O - 1) // BLOCK_O
    piece, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) % tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    k = tl.program_id(0) // tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_O, BLOCK_K), dtype=tl.float32)
    for start in range(piece * share, piece * share + share, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        c, i, j, b, oh, ow = _place(k[:, None], n[None, :], KW, KH * KW, OW, L)
        h = oh * SH - PH + i * DH
        w = ow * SW - PW + j * DW
        inside = (k[:, None] < K) & (b < batch) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        patch = tl.load(x + row * at_m + c * at_c + b * at_b + h * at_h + w * at_w, mask=inside, other=0.0)
        patch = tl.where(k[:, None] == K, 1.0, patch).to(x.dtype.element_ty)
        place = gradient + row * at_gm + o[:, None] * at_go + b * at_gb + oh * at_gh + ow * at_gw
        come = tl.load(place, mask=(o[:, None] < O) & (b < batch), other=0.0)
        total = tl.dot(come, tl.trans(patch), total, input_precision=PRECISION)
    real = (o[:, None] < O) & (k[None, :] <= K)
    place = out + ((piece * rows + row) * O + o[:, None]) * (K + 1) + k[None, :]
    tl.store(place, total, mask=real)


@_kernel
def _pool(x, out, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr):
    """out[p, oh, ow] = the largest value of its window of x (P, H, W); NaN where one is."""
    OH: tl.constexpr = H // KH
    OW: tl.constexpr = W // KW
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    corner = n // (OH * OW) * H * W + n // OW % OH * KH * W + n % OW * KW
    best = tl.load(x + corner, mask=n < count)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(x + corner + i * W + j, mask=n < count)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + n, best, mask=n < count)


@_kernel
def _pool_to_input(
    gradient, x, out, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr
):
    """The gradient at the first place of each window's largest value (the last NaN, if any), zeros elsewhere."""
    OH: tl.constexpr = H // KH
    OW: tl.constexpr = W // KW
    UP: tl.constexpr = (H + KH - 1) // KH  # windows, with those that are cut off at the edge and were not looked at
    ACROSS: tl.constexpr = (W + KW - 1) // KW
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    p, oh, ow = n // (UP * ACROSS), n // ACROSS % UP, n % ACROSS
    corner = p * H * W + oh * KH * W + ow * KW
    whole = (n < count) & (oh < OH) & (ow < OW)
    best = tl.load(x + corner, mask=whole)
    place = tl.zeros((BLOCK,), dtype=tl.int32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            value = tl.load(x + corner + i * W + j, mask=whole)
            better = (value > best) | (value != value)
            best, place = tl.where(better, value, best), tl.where(better, i * KW + j, place)
    come = tl.load(gradient + (p * OH + oh) * OW + ow, mask=whole, other=0.0)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            real = (n < count) & (oh * KH + i < H) & (ow * KW + j < W)
            tl.store(out + corner + i * W + j, tl.where(place == i * KW + j, come, 0.0), mask=real)


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
        block, TILE, 32, precision,
    )  # fmt: skip
    return out


@torch.library.custom_op("feddwa::conv_to_input", mutates_args=())
def conv_to_input(
    gradient: Tensor,
    weight: Tensor,
    image: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    precision: str,
) -> Tensor:
    """The gradient (m, C, B, H, W) of the input, from that of the output (m, O, B, H', W')."""
    m, outputs, channels, *size = weight.shape
    batch, *places = gradient.shape[2:]
    out = gradient.new_empty(m, channels, batch, *image)
    block = _block(channels)
    _conv_to_input[triton.cdiv(batch * image[0] * image[1], TILE), triton.cdiv(channels, block), m](
        gradient, weight.contiguous(), out, batch, *gradient.stride(),
        outputs, channels, *image, *size, *places, *stride, *padding, *dilation,
        block, TILE, 32, precision,
    )  # fmt: skip
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
    """The gradients (m, O, C kh kw + 1) of the kernels, and in the last column of the bias.

    Long sums are cut into pieces, as many as it takes to keep the GPU busy, and the pieces added in a fixed order.
    """
    m, outputs, batch, *places = gradient.shape
    channels, image = x.shape[1], x.shape[3:]
    entries = channels * size[0] * size[1] + 1
    block_o, block_k, block_n = _block(outputs), min(64, _block(entries)), 32
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
    return out.sum(0).to(x.dtype) if pieces > 1 else out[0].to(x.dtype)


@torch.library.custom_op("feddwa::pool", mutates_args=())
def pool(x: Tensor, size: list[int]) -> Tensor:
    """The maxima (..., H // kh, W // kw) of windows that do not overlap."""
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-2], *(length // own for length, own in zip(x.shape[-2:], size, strict=True)))
    _pool[(triton.cdiv(out.numel(), 4 * TILE),)](x, out, out.numel(), *x.shape[-2:], *size, 4 * TILE)
    return out


@torch.library.custom_op("feddwa::pool_to_input", mutates_args=())
def pool_to_input(gradient: Tensor, x: Tensor, size: list[int]) -> Tensor:
    """The gradient of the input of `pool`."""
    x, gradient = x.contiguous(), gradient.contiguous()
    out = torch.empty_like(x)
    windows = [triton.cdiv(length, own) for length, own in zip(x.shape[-2:], size, strict=True)]
    count = x[..., 0, 0].numel() * windows[0] * windows[1]
    _pool_to_input[(triton.cdiv(count, 4 * TILE),)](gradient, x, out, count, *x.shape[-2:], *size, 4 * TILE)
    return out


def _places(length: int, size: int, stride: int, padding: int, dilation: int) -> int:
    return (length + 2 * padding - dilation * (size - 1) - 1) // stride + 1


def _block(count: int) -> int:
    return min(64, max(16, 1 << (count - 1).bit_length()))
