"""Convolution of many clients at once, and its gradients.

The convolution of a client is a matrix product of its patches (N, K) and its weights (K, O). N = B OH OW counts output
positions, K = KH KW C the entries of a patch. Written out (im2col), the patches of a 3 x 3 kernel are nine times the
images, and moving them takes most of a step's time. Here a program computes one tile of a client's product and gathers
only the patches of that tile (implicit GEMM). Images and weights may have any strides; they are read fastest with the
input channels last.

Products of float32 are rounded to TensorFloat-32 where the user allows it (`--dtype tf32`). Otherwise every factor is
split into three parts of that width ("tf32x3"), which keeps the precision of float32.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: E741  (O is the number of output channels, as in every paper)

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.dispatch import Geometry
from feddwa.engine.fast.kernels.common import block_size, channels_last, kernel, split_k, unravel_index

BLOCK_POSITIONS = {"tf32": 128, "tf32x3": 64}  # output positions per program of a convolution
NUM_STAGES = {"tf32": 3, "tf32x3": 2}  # of a convolution's software pipeline
BLOCK_ENTRIES = {"tf32": 64, "tf32x3": 32}  # patch entries per program of the weight gradient
BLOCK_REDUCTION = 32  # terms of a sum per step
MIN_STEPS = 4  # of a partial sum of the weight gradient, because partial sums are written and read again


def precision() -> str:
    """The precision of products that `torch.set_float32_matmul_precision` asks for now: "tf32" or "tf32x3"."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@triton.jit
def _load_patch(
    image, top, left, k, i, j, mask, stride_xc, stride_xh, stride_xw,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, INPUT_DILATION_H: tl.constexpr, INPUT_DILATION_W: tl.constexpr,
    CHECK_BOUNDS: tl.constexpr,
):  # fmt: skip
    """Load entries k of patches: (BLOCK_N, BLOCK_K).

    image, top, left: (BLOCK_N, 1), the pointer to a patch's image and where in it the patch begins. k: (1, BLOCK_K), in
    order (KH, KW, C), with i and j its row and column in the kernel. Entries are zero outside the image and, with an
    input dilation, between its pixels. CHECK_BOUNDS: some patch has such entries.
    """
    mask = mask & (k < KH * KW * C)
    if INPUT_DILATION_H == 1 and INPUT_DILATION_W == 1:
        pointer = (
            image
            + (top * stride_xh + left * stride_xw)
            + (k % C * stride_xc + i * DILATION_H * stride_xh + j * DILATION_W * stride_xw)
        )
    else:
        pointer = image + (
            (top + i * DILATION_H) // INPUT_DILATION_H * stride_xh
            + (left + j * DILATION_W) // INPUT_DILATION_W * stride_xw
            + k % C * stride_xc
        )
    if CHECK_BOUNDS:
        h, w = top + i * DILATION_H, left + j * DILATION_W
        mask = mask & (h >= 0) & (h < H * INPUT_DILATION_H) & (w >= 0) & (w < W * INPUT_DILATION_W)
        mask = mask & (h % INPUT_DILATION_H == 0) & (w % INPUT_DILATION_W == 0)
    return tl.load(pointer, mask=mask, other=0.0)


@kernel
def _conv(
    x, weight, bias, out, batch,
    stride_xm, stride_xb, stride_xc, stride_xh, stride_xw, stride_wm, stride_wo, stride_wc, stride_wh, stride_ww,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    OFFSET_H: tl.constexpr, OFFSET_W: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    INPUT_DILATION_H: tl.constexpr, INPUT_DILATION_W: tl.constexpr,
    CHECK_BOUNDS: tl.constexpr, FLIPPED: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[client, n, o] = bias[client, o] + sum_k patch[client, n, k] weight[client, o, k], k in order (KH, KW, C).

    x: (m, B, C, H, W) and weight: (m, O, C, KH, KW) of any strides; bias: (m, O); out: (m, B, OH, OW, O), contiguous.
    A program computes BLOCK_N output positions and BLOCK_O output channels of one client.
    OFFSET: padding before the first pixel. INPUT_DILATION: distance of the input's pixels, with zeros between them.
    FLIPPED: weights are read from their last row and column to their first.
    """
    K: tl.constexpr = KH * KW * C
    client = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    b, oh, ow = unravel_index(n, OH, OW)
    top, left = oh * STRIDE_H - OFFSET_H, ow * STRIDE_W - OFFSET_W
    image = x + client * stride_xm + b * stride_xb
    total = tl.zeros((BLOCK_N, BLOCK_O), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        if C % BLOCK_K == 0:  # the block lies within one row and column of the kernel: i and j are scalars
            i, j = start // (KW * C), start // C % KW
        else:
            i, j = k // (KW * C), k // C % KW
        patch = _load_patch(
            image, top, left, k, i, j, b < batch, stride_xc, stride_xh, stride_xw, C, H, W, KH, KW,
            DILATION_H, DILATION_W, INPUT_DILATION_H, INPUT_DILATION_W, CHECK_BOUNDS,
        )  # fmt: skip
        weight_i, weight_j = i, j
        if FLIPPED:
            weight_i, weight_j = KH - 1 - i, KW - 1 - j
        offset = o[:, None] * stride_wo + (k % C * stride_wc + weight_i * stride_wh + weight_j * stride_ww)
        weights = tl.load(weight + client * stride_wm + offset, mask=(o < O)[:, None] & (k < K), other=0.0)
        total = tl.dot(patch, tl.trans(weights), total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + client * O + o, mask=o < O, other=0.0)[None, :]
    pointer = out + client * batch * OH * OW * O + n * O + o[None, :]
    tl.store(pointer, total, mask=(b < batch) & (o < O)[None, :])


@kernel
def _conv_grad_weight(
    grad_output, x, grad_weight, grad_bias, batch, num_clients, terms_per_split,
    stride_xm, stride_xb, stride_xc, stride_xh, stride_xw,
    O: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    CHECK_BOUNDS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """grad_weight[split, client, o, k] = sum over the split's n of grad_output[client, n, o] patch[client, n, k].

    grad_output: (m, B, OH, OW, O), contiguous; x: (m, B, C, H, W) of any strides.
    grad_weight: (splits, m, O, KH, KW, C); grad_bias: (splits, m, O), the sum of grad_output alone.
    """
    K: tl.constexpr = KH * KW * C
    blocks_o: tl.constexpr = (O + BLOCK_O - 1) // BLOCK_O
    split, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) % blocks_o * BLOCK_O + tl.arange(0, BLOCK_O)
    k = tl.program_id(0) // blocks_o * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    i, j = k // (KW * C), k // C % KW
    grad_pointer = grad_output + client * batch * OH * OW * O + o[None, :]
    total, bias_total = tl.zeros((BLOCK_O, BLOCK_K), dtype=tl.float32), tl.zeros((BLOCK_N, BLOCK_O), dtype=tl.float32)
    for start in range(split * terms_per_split, split * terms_per_split + terms_per_split, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        b, oh, ow = unravel_index(n, OH, OW)
        top, left = oh * STRIDE_H - PADDING_H, ow * STRIDE_W - PADDING_W
        image = x + client * stride_xm + b * stride_xb
        patch = _load_patch(
            image, top, left, k, i, j, b < batch, stride_xc, stride_xh, stride_xw, C, H, W, KH, KW,
            DILATION_H, DILATION_W, 1, 1, CHECK_BOUNDS,
        )  # fmt: skip
        grad = tl.load(grad_pointer + n * O, mask=(b < batch) & (o < O)[None, :], other=0.0)
        total = tl.dot(tl.trans(grad), patch, total, input_precision=PRECISION)
        if HAS_BIAS:
            bias_total += grad
    offset = (split * num_clients + client) * O + o
    tl.store(grad_weight + offset[:, None] * K + k, total, mask=(o < O)[:, None] & (k < K))
    if HAS_BIAS and tl.program_id(0) // blocks_o == 0:
        tl.store(grad_bias + offset, tl.sum(bias_total, 0), mask=o < O)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Convolution of m clients. x: (m, B, C, H, W); weight: (m, O, C, kh, kw); bias: (m, O).

    Returns (m, B, O, H', W'), with the channels last in memory.
    """
    output_size = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[3:], weight.shape[3:], *geometry, strict=True)
    ]
    if x.shape[2] % 16 == 0:  # few channels are as good in any order
        x = _with_channels_last(x)
    out: Tensor = _conv_op(x, _with_channels_last(weight), bias, output_size, *geometry, (1, 1), False, precision())
    return out.movedim(-1, 2)  # (m, B, O, H', W')


def _with_channels_last(x: Tensor) -> Tensor:
    """The same (m, B, C, H, W) or (m, O, C, kh, kw) with its channels, the third axis, last in memory."""
    return channels_last(x).movedim(-1, 2)


def conv_grad_input(grad_output: Tensor, weight: Tensor, input_size: Sequence[int], geometry: Geometry) -> Tensor:
    """The gradient (m, B, C, H, W) with respect to the input of `conv`.

    grad_output: (m, B, O, H', W'); weight: (m, O, C, kh, kw); input_size: (H, W). It is a convolution of grad_output,
    dilated by the stride, with the flipped weights, whose input and output channels are swapped.
    """
    stride, padding, dilation = geometry
    offset = [d * (k - 1) - p for k, p, d in zip(weight.shape[3:], padding, dilation, strict=True)]
    grad = _with_channels_last(grad_output)  # (m, B, O, H', W')
    swapped = _with_channels_last(weight).transpose(1, 2)  # (m, C, O, kh, kw)
    out: Tensor = _conv_op(grad, swapped, None, input_size, (1, 1), offset, dilation, stride, True, precision())
    return out.movedim(-1, 2)  # (m, B, C, H, W)


@torch.library.custom_op("feddwa::conv", mutates_args=())
def _conv_op(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output_size: list[int],
    stride: list[int],
    offset: list[int],
    dilation: list[int],
    input_dilation: list[int],
    flipped: bool,
    precision: str,
) -> Tensor:
    """Strided, dilated convolution of m clients at once.

    x: (m, B, C, H, W); weight: (m, O, C, kh, kw); bias: (m, O); returns (m, B, H', W', O), with output_size (H', W').
    `offset`: padding before the first pixel. `input_dilation`: distance of the input's pixels, with zeros between them.
    `flipped`: the weights are read in reverse along both axes.
    """
    m, outputs, channels, *size = weight.shape
    batch, input_size = x.shape[1], x.shape[3:]
    out = x.new_empty(m, batch, *output_size, outputs)
    block_o, block_n = block_size(outputs, 64), BLOCK_POSITIONS[precision]
    check_bounds = max(input_dilation) > 1 or _reaches_outside(input_size, size, output_size, stride, offset, dilation)
    _conv[triton.cdiv(batch * output_size[0] * output_size[1], block_n), triton.cdiv(outputs, block_o), m](
        x, weight, out if bias is None else bias.contiguous(), out, batch, *x.stride(), *weight.stride(),
        outputs, channels, *input_size, *size, *output_size, *stride, *offset, *dilation, *input_dilation,
        check_bounds, flipped, bias is not None,
        block_o, block_n, BLOCK_REDUCTION, precision, num_stages=NUM_STAGES[precision],
    )  # fmt: skip
    return out


def conv_grad_weight(
    grad_output: Tensor, x: Tensor, size: Sequence[int], geometry: Geometry, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients with respect to weight (m, O, C, kh, kw) and, if `bias`, to bias (m, O) of `conv`.

    grad_output: (m, B, O, H', W'); x: (m, B, C, H, W); size: (kh, kw).
    """
    if x.shape[2] % 16 == 0:  # few channels are as good in any order
        x = _with_channels_last(x)
    weight_splits, bias_splits = _conv_grad_weight_op(
        channels_last(grad_output), x, size, *geometry, bias, precision()
    )  # (splits, m, O, kh, kw, C), (splits, m, O)
    return _sum_splits(weight_splits).movedim(-1, 2), _sum_splits(bias_splits) if bias else None


def _sum_splits(partial_sums: Tensor) -> Tensor:
    """The sum over the first axis, in a fixed order."""
    return partial_sums.sum(0) if len(partial_sums) > 1 else partial_sums[0]


@torch.library.custom_op("feddwa::conv_grad_weight", mutates_args=())
def _conv_grad_weight_op(
    grad_output: Tensor,
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    bias: bool,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """Partial sums of the gradients, (splits, m, O, kh, kw, C) of the weight and (splits, m, O) of the bias.

    grad_output: (m, B, H', W', O); x: (m, B, C, H, W); size: (kh, kw). The sums run over all output positions and their
    results are small, so they are split until there are enough programs to keep a GPU busy.
    """
    m, batch, *output_size, outputs = grad_output.shape
    channels, input_size = x.shape[2], x.shape[3:]
    entries = channels * size[0] * size[1]
    block_o, block_k = block_size(outputs, 64), block_size(entries, BLOCK_ENTRIES[precision])
    tiles = triton.cdiv(outputs, block_o) * triton.cdiv(entries, block_k)
    positions = batch * output_size[0] * output_size[1]
    num_splits, terms_per_split = split_k(positions, BLOCK_REDUCTION, tiles * m, MIN_STEPS)
    grad_weight = x.new_empty(num_splits, m, outputs, *size, channels)
    grad_bias = x.new_empty(num_splits, m, outputs) if bias else x.new_empty(0)
    _conv_grad_weight[tiles, num_splits, m](
        grad_output, x, grad_weight, grad_bias, batch, m, terms_per_split, *x.stride(),
        outputs, channels, *input_size, *size, *output_size, *stride, *padding, *dilation,
        _reaches_outside(input_size, size, output_size, stride, padding, dilation), bias,
        block_o, BLOCK_REDUCTION, block_k, precision,
        num_warps=4 if block_o * block_k > 32 * 32 else 1, num_stages=1,
    )  # fmt: skip
    return grad_weight, grad_bias


def _reaches_outside(
    input_size: Sequence[int],
    size: Sequence[int],
    output_size: Sequence[int],
    stride: Sequence[int],
    offset: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Whether some patch has entries outside the image. All arguments are (along H, along W)."""
    starts = [(n - 1) * s - p for n, s, p in zip(output_size, stride, offset, strict=True)]  # of the last patch
    ends = [start + d * (k - 1) for start, d, k in zip(starts, dilation, size, strict=True)]
    return any(p > 0 for p in offset) or any(end >= n for end, n in zip(ends, input_size, strict=True))
