"""Convolution that stays fast when it is mapped over clients.

`vmap` of a convolution with weights per client is a grouped convolution, and the next layer copies its result into
another layout. The implementations here (`dispatch.implementation`) avoid that copy:

- "channels", on a CPU: the client axis stays inside the channels, in channels-last memory, from one layer to the next.
  Pooling then runs over whole vectors.
- "kernels", on a GPU: cuDNN would launch one kernel per group, so a convolution is one matrix product per client.
  Triton kernels (`kernels/`) gather the patches as they multiply. Channels are last in memory.
- "patches", on a GPU in other dtypes: patches are written out (`patches.py`). Channels stand before the batch in
  memory, (m, C, B, H, W), from one layer to the next, so that the batch of a client is one matrix.

These are ordinary `autograd.Function`s with a rule for `vmap`; for a single client they are torch's own operation.
Pooling and BatchNorm (`stacked_pool.py`, `stacked_norm.py`) take these layouts as they are and keep them.
"""

from typing import Any

import torch
from torch import Tensor

from feddwa.engine.fast import patches
from feddwa.engine.fast.dispatch import (
    BackwardFunction,
    Geometry,
    OutputMask,
    clients_first,
    clients_first_each,
    clients_in_channels,
    implementation,
    pair,
)

aten = torch.ops.aten


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv2d`, with a rule of our own for vmap. Grouped convolutions and padding by name are torch's."""
    if isinstance(padding, str) or groups != 1 or input.ndim != 4:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    out: Tensor = _Conv.apply(input, weight, bias, (pair(stride), pair(padding), pair(dilation)))[0]
    return out


class _Conv(torch.autograd.Function):
    """Convolution. Returns the output and, for the backward pass, the patches ("patches") or an empty tensor.

    One client: x (B, C, H, W), weight (O, C, kh, kw), bias (O,) -> (B, O, H', W').
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> tuple[Tensor, Tensor]:
        return torch.conv2d(x, weight, bias, *geometry), x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.geometry = inputs
        ctx.save_for_backward(x, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _: Any) -> Any:
        output_mask = tuple(ctx.needs_input_grad[:3])
        return *_ConvBackward.apply(grad_output, *ctx.saved_tensors, ctx.geometry, output_mask), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Any:
        m = info.batch_size
        if in_dims[1] is None and (bias is None or in_dims[2] is None):  # frozen: one convolution of all images
            images = clients_first(x, in_dims[0], m).flatten(0, 1)  # (m B, C, H, W)
            out = torch.conv2d(images, weight, bias, *geometry)
            return (out.unflatten(0, (m, -1)), x.new_empty(0)), (0, None)
        weight = clients_first(weight, in_dims[1], m)  # (m, O, C, kh, kw)
        bias = None if bias is None else clients_first(bias, in_dims[2], m)  # (m, O)
        chosen = implementation(x)
        if chosen == "kernels":
            from feddwa.engine.fast import kernels

            out = kernels.conv(clients_first(x, in_dims[0], m), weight, bias, geometry)  # (m, B, O, H', W')
            return (out, x.new_empty(0)), (0, None)
        if chosen == "patches":
            return patches.conv(clients_first(x, in_dims[0], m), weight, bias, geometry), (0, 0)
        merged = clients_in_channels(x, in_dims[0], m)  # (B, m C, H, W)
        merged_bias = None if bias is None else bias.flatten()
        out = torch.conv2d(merged, weight.flatten(0, 1), merged_bias, *geometry, groups=m)  # (B, m O, H', W')
        return (out.unflatten(1, (m, -1)), x.new_empty(0)), (1, None)


class _ConvBackward(BackwardFunction):
    """Gradients of a convolution with respect to its input, weight and bias; None where `output_mask` is False.

    One client: grad_output (B, O, H', W'), x (B, C, H, W), weight (O, C, kh, kw); columns: what `_Conv` has kept.
    """

    @staticmethod
    def forward(
        grad_output: Tensor, x: Tensor, weight: Tensor, columns: Tensor, geometry: Geometry, output_mask: OutputMask
    ) -> Any:
        return _backward(grad_output, x, weight, geometry, 1, output_mask)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        grad_output: Tensor,
        x: Tensor,
        weight: Tensor,
        columns: Tensor,
        geometry: Geometry,
        output_mask: OutputMask,
    ) -> Any:
        m = info.batch_size
        if in_dims[2] is None and output_mask == (True, False, False):  # a frozen weight: all images at once
            inputs = clients_first_each((grad_output, x), in_dims[:2], m)
            grad_output, x = (value.flatten(0, 1) for value in inputs)  # (m B, O, H', W'), (m B, C, H, W)
            grads = _backward(grad_output, x, weight, geometry, 1, output_mask)
            return tuple(None if value is None else value.unflatten(0, (m, -1)) for value in grads), (0, None, None)
        chosen = "channels" if in_dims[2] is None else implementation(x)  # of a shared weight no patches were kept
        weight = clients_first(weight, in_dims[2], m)  # (m, O, C, kh, kw)
        if chosen != "channels":
            grad_output, x = clients_first_each((grad_output, x), in_dims[:2], m)  # (m, B, O, H', W'), (m, B, C, H, W)
            if chosen == "kernels":
                return _kernels_backward(grad_output, x, weight, geometry, output_mask), (0, 0, 0)
            return patches.conv_backward(grad_output, x, weight, columns, geometry, output_mask), (0, 0, 0)
        grad_output = clients_in_channels(grad_output, in_dims[0], m)  # (B, m O, H', W')
        x = clients_in_channels(x, in_dims[1], m)  # (B, m C, H, W)
        merged = _backward(grad_output, x, weight.flatten(0, 1), geometry, m, output_mask)
        axes = (1, 0, 0)  # of the clients: in the channels of the input, in the output channels of weight and bias
        grads = tuple(
            None if value is None else value.unflatten(axis, (m, -1)) for value, axis in zip(merged, axes, strict=True)
        )
        return grads, tuple(None if value is None else axis for value, axis in zip(merged, axes, strict=True))


def _backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, groups: int, output_mask: OutputMask
) -> tuple[Tensor | None, ...]:
    """torch's backward pass of a grouped convolution. weight: (groups O, C, kh, kw)."""
    grads = aten.convolution_backward(
        grad_output, x, weight, [len(weight)], *geometry, False, [0, 0], groups, list(output_mask)
    )
    return tuple(value if wanted else None for value, wanted in zip(grads, output_mask, strict=True))


def _kernels_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, output_mask: OutputMask
) -> tuple[Tensor | None, ...]:
    """The same by Triton kernels. grad_output: (m, B, O, H', W'); x: (m, B, C, H, W); weight: (m, O, C, kh, kw)."""
    from feddwa.engine.fast import kernels

    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_x = kernels.conv_grad_input(grad_output, weight, x.shape[3:], geometry)
    if output_mask[1] or output_mask[2]:
        grad_weight, grad_bias = kernels.conv_grad_weight(grad_output, x, weight.shape[3:], geometry, output_mask[2])
    return grad_x, grad_weight, grad_bias
