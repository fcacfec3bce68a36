"""Convolution in forms that stay fast when mapped over clients.

`vmap` of a convolution with a kernel per client is a grouped convolution, and what follows it copies the result into
another layout. On a CPU we keep the client axis inside the channels, in channels-last memory, from one layer to the
next: no copies, and pooling runs over whole vectors. On a GPU cuDNN launches one kernel per group, so there it is one
matrix product per client, of its kernels and its patches. In float32, with Triton, kernels of our own gather the
patches as they multiply (`engine/kernels/`), with channels last in memory; else they are written out
(`engine/patches.py`), and the channels stand before the batch in memory, (m, C, B, H, W), from one layer to the next,
so that a client's whole batch is one matrix.

These are ordinary `autograd.Function`s with a rule for `vmap`; for a single client it is torch's own operation. Pooling
and BatchNorm (`stacked_pool.py`, `stacked_norm.py`) take the layouts as they are and leave them so.
"""

from typing import Any

import torch
from torch import Tensor

from feddwa.engine.fast import patches
from feddwa.engine.fast.dispatch import Geometry, Wanted, WayBack, batched, form, into_channels, pair

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
    """`torch.conv2d`, with rules of our own where there is one kernel per client."""
    if isinstance(padding, str) or groups != 1 or input.ndim != 4:
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    out: Tensor = _Conv.apply(input, weight, bias, (pair(stride), pair(padding), pair(dilation)))[0]
    return out


class _Conv(torch.autograd.Function):
    """Convolution; the second output holds the patches, where they were gathered, for the way back."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> tuple[Tensor, Tensor]:
        return torch.conv2d(x, weight, bias, *geometry), x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.geometry = inputs
        ctx.save_for_backward(x, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        wanted = tuple(ctx.needs_input_grad[:3])
        return *_ConvBackward.apply(gradient, *ctx.saved_tensors, ctx.geometry, wanted), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Any:
        m = info.batch_size
        weight = batched(weight, in_dims[1], m)  # (m, O, C, kh, kw)
        bias = None if bias is None else batched(bias, in_dims[2], m)  # (m, O)
        how = form(x)
        if how == "kernels":
            from feddwa.engine.fast import kernels

            out = kernels.conv(batched(x, in_dims[0], m), weight, bias, geometry)
            return (out, x.new_empty(0)), (0, None)
        if how == "patches":
            return patches.conv(batched(x, in_dims[0], m), weight, bias, geometry), (0, 0)
        merged = into_channels(batched(x, in_dims[0], m, 1), 1)
        merged_bias = None if bias is None else bias.flatten()
        out = torch.conv2d(merged, weight.flatten(0, 1), merged_bias, *geometry, groups=m)
        return (out.unflatten(1, (m, -1)), x.new_empty(0)), (1, None)


class _ConvBackward(WayBack):
    """Gradients of a convolution with respect to its input, its kernel and its bias."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, columns: Tensor, geometry: Geometry, wanted: Wanted
    ) -> Any:
        return _backward(gradient, x, weight, geometry, 1, wanted)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        columns: Tensor,
        geometry: Geometry,
        wanted: Wanted,
    ) -> Any:
        m = info.batch_size
        weight = batched(weight, in_dims[2], m)
        how = form(x)
        if how != "channels":
            gradient, x = batched(gradient, in_dims[0], m), batched(x, in_dims[1], m)
            if how == "kernels":
                return _kernel_gradients(gradient, x, weight, geometry, wanted), (0, 0, 0)
            return patches.gradients(gradient, x, weight, columns, geometry, wanted), (0, 0, 0)
        gradient = into_channels(batched(gradient, in_dims[0], m, 1), 1)
        x = into_channels(batched(x, in_dims[1], m, 1), 1)
        found = _backward(gradient, x, weight.flatten(0, 1), geometry, m, wanted)
        places = (1, 0, 0)  # of the client axis: inside the channels, or in front of the output channels
        split = tuple(
            None if value is None else value.unflatten(place, (m, -1))
            for value, place in zip(found, places, strict=True)
        )
        return split, tuple(None if value is None else place for value, place in zip(found, places, strict=True))


def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, groups: int, wanted: Wanted
) -> tuple[Tensor | None, ...]:
    found = aten.convolution_backward(
        gradient, x, weight, [len(weight)], *geometry, False, [0, 0], groups, list(wanted)
    )
    return tuple(value if use else None for value, use in zip(found, wanted, strict=True))


def _kernel_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: Wanted
) -> tuple[Tensor | None, ...]:
    """The gradients (m, B, ...) by our kernels."""
    from feddwa.engine.fast import kernels

    to_x = to_weight = to_bias = None
    if wanted[0]:
        to_x = kernels.conv_to_input(gradient, weight, x.shape[3:], geometry)
    if wanted[1] or wanted[2]:
        to_weight, to_bias = kernels.conv_to_weight(gradient, x, weight.shape[3:], geometry, wanted[2])
    return to_x, to_weight, to_bias
