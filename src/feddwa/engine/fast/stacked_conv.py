"""Convolution that stays fast when it is mapped over clients.

`vmap` of a convolution with weights per client is a grouped convolution, and the next layer copies its result into
another layout. The implementations here (`dispatch.implementation`) avoid that copy:

- "channels", on a CPU: the client axis stays inside the channels, in channels-last memory, from one layer to the
  next. Pooling then runs over whole vectors. A client's groups become further groups.
- "kernels", on a GPU: cuDNN would launch one kernel per group, so a convolution is one matrix product per client.
  Triton kernels (`kernels/`) gather the patches as they multiply. Channels are last in memory.
- "patches", on a GPU in other dtypes: patches are written to memory (`patches.py`). Channels precede the batch in
  memory, (m, C, B, H, W), from one layer to the next, so that a client's batch is one matrix.

Sequences (B, C, L) are images of height one. Depthwise convolutions, for which torch has a kernel of any shape, and
those of volumes are "channels" everywhere. `convolutions.py` has the rest for a GPU: grouped, transposed, pointwise.

These are ordinary `autograd.Function`s with a rule for `vmap`; for a single client they are torch's own operation.
Pooling and BatchNorm (`stacked_pool.py`, `stacked_norm.py`) accept and keep these layouts.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.fast import convolutions
from feddwa.engine.fast.convolutions import Convolution
from feddwa.engine.fast.dispatch import (
    BackwardFunction,
    OutputMask,
    clients_first,
    clients_first_each,
    clients_in_channels,
    implementation,
    numbers,
)

aten = torch.ops.aten


def _conv(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv1d`, `conv2d` or `conv3d`, with a rule of our own for vmap."""
    dilation = numbers(dilation, dims)
    if isinstance(padding, str):
        input, padding = _named_padding(input, weight, padding, dilation)
    none = (0,) * dims
    conv = Convolution(numbers(stride, dims), numbers(padding, dims), dilation, False, none, groups)
    return _apply(input, weight, bias, conv)


def _conv_transpose(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """`torch.conv_transpose1d`, `conv_transpose2d` or `conv_transpose3d`, with a rule of our own for vmap."""
    stride, padding, dilation = (numbers(value, dims) for value in (stride, padding, dilation))
    conv = Convolution(stride, padding, dilation, True, numbers(output_padding, dims), groups)
    return _apply(input, weight, bias, conv)


conv1d, conv2d, conv3d = (partial(_conv, dims) for dims in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (partial(_conv_transpose, dims) for dims in (1, 2, 3))


def _named_padding(input: Tensor, weight: Tensor, name: str, dilation: tuple[int, ...]) -> tuple[Tensor, Any]:
    """The padding for "same" or "valid". For an even window, "same" pads the end of the input by one more."""
    if name == "valid":
        return input, 0
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    behind = [number % 2 for number in total]
    input = F.pad(input, [side for number in reversed(behind) for side in (0, number)]) if any(behind) else input
    return input, tuple(number // 2 for number in total)


def _apply(input: Tensor, weight: Tensor, bias: Tensor | None, conv: Convolution) -> Tensor:
    """The convolution of a batch or of one sample; sequences, images or volumes."""
    dims = len(conv.stride)
    if input.ndim == dims + 1:
        return _apply(input.unsqueeze(0), weight, bias, conv).squeeze(0)
    if dims == 1:
        stride, padding, dilation, output_padding = (
            (n, *own) for n, own in zip((1, 0, 1, 0), (*conv[:3], conv[4]), strict=True)
        )
        flat = Convolution(stride, padding, dilation, conv.transposed, output_padding, conv.groups)
        return _apply(input.unsqueeze(2), weight.unsqueeze(2), bias, flat).squeeze(2)
    out: Tensor = _Conv.apply(input, weight, bias, conv)[0]
    return out


class _Conv(torch.autograd.Function):
    """Convolution. Returns the output and, for the backward pass, the patches ("patches") or an empty tensor.

    One client: x (B, C, *size), weight (O, C / groups, *kernel), bias (O,) -> (B, O, *size').
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, conv: Convolution) -> tuple[Tensor, Tensor]:
        return torch.convolution(x, weight, bias, *conv), x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.conv = inputs
        ctx.save_for_backward(x, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _: Any) -> Any:
        output_mask = tuple(ctx.needs_input_grad[:3])
        return *_ConvBackward.apply(grad_output, *ctx.saved_tensors, ctx.conv, output_mask), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, conv: Convolution) -> Any:
        m = info.batch_size
        if in_dims[1] is None and (bias is None or in_dims[2] is None):  # frozen: one convolution of all images
            images = clients_first(x, in_dims[0], m).flatten(0, 1)  # (m B, C, H, W)
            out = torch.convolution(images, weight, bias, *conv)
            return (out.unflatten(0, (m, -1)), x.new_empty(0)), (0, None)
        chosen = _implementation(x, weight, in_dims, conv)
        weight = clients_first(weight, in_dims[1], m)  # (m, O, C / groups, kh, kw)
        bias = None if bias is None else clients_first(bias, in_dims[2], m)  # (m, O)
        if chosen != "channels":
            out, kept = convolutions.forward(clients_first(x, in_dims[0], m), weight, bias, conv, chosen)
            return (out, kept), (0, 0 if kept.numel() else None)
        merged_bias = None if bias is None else bias.flatten()
        merged = _merged(x, in_dims[0], m)  # (B, m C, H, W)
        out = torch.convolution(merged, weight.flatten(0, 1), merged_bias, *_of_all(conv, m))  # (B, m O, H', W')
        return (out.unflatten(1, (m, -1)), x.new_empty(0)), (1, None)


class _ConvBackward(BackwardFunction):
    """Gradients of a convolution with respect to its input, weight and bias; None where `output_mask` is False.

    One client: grad_output (B, O, *size'), x (B, C, *size), weight as in `_Conv`; kept: `_Conv`'s second output.
    """

    @staticmethod
    def forward(
        grad_output: Tensor, x: Tensor, weight: Tensor, kept: Tensor, conv: Convolution, output_mask: OutputMask
    ) -> Any:
        return _backward(grad_output, x, weight, conv, output_mask)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        grad_output: Tensor,
        x: Tensor,
        weight: Tensor,
        kept: Tensor,
        conv: Convolution,
        output_mask: OutputMask,
    ) -> Any:
        m = info.batch_size
        if in_dims[2] is None and output_mask == (True, False, False):  # a frozen weight: all images at once
            inputs = clients_first_each((grad_output, x), in_dims[:2], m)
            grad_output, x = (value.flatten(0, 1) for value in inputs)  # (m B, O, H', W'), (m B, C, H, W)
            grads = _backward(grad_output, x, weight, conv, output_mask)
            return tuple(None if value is None else value.unflatten(0, (m, -1)) for value in grads), (0, None, None)
        chosen = _implementation(x, weight, in_dims[1:], conv)
        weight = clients_first(weight, in_dims[2], m)  # (m, O, C / groups, kh, kw)
        if chosen != "channels":
            grad_output, x = clients_first_each((grad_output, x), in_dims[:2], m)  # (m, B, O, H', W'), (m, B, C, H, W)
            return convolutions.backward(grad_output, x, weight, kept, conv, output_mask, chosen), (0, 0, 0)
        grad_output = _merged(grad_output, in_dims[0], m)  # (B, m O, H', W')
        x = _merged(x, in_dims[1], m)  # (B, m C, H, W)
        merged = _backward(grad_output, x, weight.flatten(0, 1), _of_all(conv, m), output_mask)
        axes = (1, 0, 0)  # client axis: channels of the input, first axis of weight and bias
        grads = tuple(
            None if value is None else value.unflatten(axis, (m, -1)) for value, axis in zip(merged, axes, strict=True)
        )
        return grads, tuple(None if value is None else axis for value, axis in zip(merged, axes, strict=True))


def _backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, conv: Convolution, output_mask: OutputMask
) -> tuple[Tensor | None, ...]:
    """torch's backward pass of a convolution."""
    grads = aten.convolution_backward(grad_output, x, weight, [grad_output.shape[1]], *conv, list(output_mask))
    return tuple(value if wanted else None for value, wanted in zip(grads, output_mask, strict=True))


def _implementation(x: Tensor, weight: Tensor, in_dims: Any, conv: Convolution) -> Any:
    """The implementation for clients with separate weights; in_dims: the client axes of x and weight."""
    channels = x.movedim(in_dims[0], 0).shape[2] if in_dims[0] is not None else x.shape[1]
    depthwise = conv.groups == channels > 1
    shared = in_dims[1] is None  # no patches were kept
    return "channels" if len(conv.stride) != 2 or depthwise or shared else implementation(x)


def _of_all(conv: Convolution, m: int) -> Convolution:
    """The convolution of m clients with merged channels."""
    return conv._replace(groups=m * conv.groups)


def _merged(x: Tensor, dim: int | None, m: int) -> Tensor:
    """(B, C, ...), with a client axis m at `dim` or shared by all, -> (B, m * C, ...).

    On a CPU in channels-last memory; on a GPU torch's depthwise kernel needs the default layout.
    """
    if x.is_cuda or x.ndim - (dim is not None) != 4:
        return clients_first(x, dim, m).transpose(0, 1).flatten(1, 2).contiguous()
    return clients_in_channels(x, dim, m)
