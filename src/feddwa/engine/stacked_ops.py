"""Convolution and max-pooling in forms that stay fast when mapped over clients.

`vmap` of a convolution with a kernel per client is a grouped convolution, and what follows it copies the result into
another layout. On a CPU we keep the client axis inside the channels, in channels-last memory, from one layer to the
next: no copies, and pooling runs over whole vectors. On a GPU cuDNN launches one kernel per group, so there it is one
matrix product per client, of its kernels and its patches: the channels stand before the batch in memory,
(m, C, B, H, W), from one layer to the next, so that a client's whole batch is one matrix. In float32, with Triton,
kernels of our own gather the patches as they multiply (`engine/kernels.py`); else they are written out
(`engine/patches.py`).
All are ordinary `autograd.Function`s with a rule for `vmap`; for a single client they are torch's own operations; only
pooling by our kernels is the same for one.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine import patches
from feddwa.engine.forms import Geometry, Pair, Wanted, form

aten = torch.ops.aten


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv2d`, with rules of our own where there is one kernel per client."""
    if isinstance(padding, str) or groups != 1 or x.ndim != 4:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    out: Tensor = _Conv.apply(x, weight, bias, (_pair(stride), _pair(padding), _pair(dilation)))[0]
    return out


def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    relu_of: Tensor | None = None,
) -> Any:
    """`F.max_pool2d`, with rules of our own. If x is the relu of a tensor, kernels rectify that as they go."""
    if x.ndim != 4 or return_indices:
        pool: Any = F.max_pool2d
        return pool(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    window = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding), _pair(dilation), ceil_mode
    if form(x) == "kernels" and _side_by_side(window):
        return _Pool.apply(x if relu_of is None else relu_of, window[0], relu_of is not None)
    return _MaxPool.apply(x, window)[0]


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """`F.adaptive_avg_pool2d`. Down to one pixel torch takes the mean too, but then sets strides, which vmap cannot."""
    if output_size in (1, (1, 1), [1, 1]):
        return x.mean((-2, -1), keepdim=True)
    return F.adaptive_avg_pool2d(x, output_size)


def _pair(value: Any) -> Pair:
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)


def into_channels(x: Tensor, dim: int) -> Tensor:
    """(B, C, H, W) with a client axis m at `dim` -> (B, m * C, H, W) in channels-last memory."""
    x = x.movedim(dim, 1).permute(0, 3, 4, 1, 2)  # (B, H, W, m, C)
    return x.reshape(*x.shape[:3], -1).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def batched(x: Tensor, dim: int | None, m: int, at: int = 0) -> Tensor:
    """The client axis moved to `at`, or made where all clients share x."""
    return x.unsqueeze(at).expand(*x.shape[:at], m, *x.shape[at:]) if dim is None else x.movedim(dim, at)


class WayBack(torch.autograd.Function):
    """The gradients of an operation, as an operation: it has no derivative itself."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Refused aloud, so that nobody gets a wrong one."""
        raise RuntimeError(
            "no second derivatives through convolution, max-pooling and BatchNorm; use finite differences instead"
        )


class _Conv(torch.autograd.Function):
    """Convolution; the second output holds the patches, where they were gathered, for the way back."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
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
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Any:
        m = info.batch_size
        weight = batched(weight, in_dims[1], m)  # (m, O, C, kh, kw)
        bias = batched(bias, in_dims[2], m)  # (m, O)
        how = form(x)
        if how == "kernels":
            from feddwa.engine import kernels

            x = batched(x, in_dims[0], m).transpose(1, 2)
            out = kernels.conv(x, weight, bias, geometry)
            return (out.transpose(1, 2), x.new_empty(0)), (0, None)
        if how == "patches":
            return patches.conv(batched(x, in_dims[0], m), weight, bias, geometry), (0, 0)
        merged = into_channels(batched(x, in_dims[0], m, 1), 1)
        out = torch.conv2d(merged, weight.flatten(0, 1), bias.flatten(), *geometry, groups=m)
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
    from feddwa.engine import kernels

    gradient, x = gradient.transpose(1, 2), x.transpose(1, 2)
    to_x = to_weight = to_bias = None
    if wanted[0]:
        to_x = kernels.conv_to_input(gradient, weight, x.shape[3:], geometry).transpose(1, 2)
    if wanted[1]:
        to_weight = kernels.conv_to_weight(gradient, x, weight.shape[3:], geometry)
    if wanted[2]:
        to_bias = gradient.sum((2, 3, 4))
    return to_x, to_weight, to_bias


class _MaxPool(torch.autograd.Function):
    """Max-pooling, with the places of the maxima as second output."""

    @staticmethod
    def forward(x: Tensor, window: Any) -> Any:
        return aten.max_pool2d_with_indices(x, *window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.window = inputs
        ctx.save_for_backward(x, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        x, places = ctx.saved_tensors
        return _MaxPoolBackward.apply(gradient, x, places, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, window: Any) -> Any:
        if form(x) != "channels":
            x = x.movedim(in_dims[0], 0).transpose(1, 2)  # (m, C, B, H, W)
            pair = aten.max_pool2d_with_indices(x.flatten(0, 1), *window)
            return tuple(value.unflatten(0, x.shape[:2]).transpose(1, 2) for value in pair), (0, 0)
        out, places = aten.max_pool2d_with_indices(into_channels(x, in_dims[0]), *window)
        return (out.unflatten(1, (info.batch_size, -1)), places.unflatten(1, (info.batch_size, -1))), (1, 1)


class _MaxPoolBackward(WayBack):
    """The gradient goes to the places of the maxima."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, places: Tensor, window: Any) -> Any:
        return aten.max_pool2d_with_indices_backward(gradient, x, *window, places)

    @staticmethod
    def vmap(info: Any, in_dims: Any, gradient: Tensor, x: Tensor, places: Tensor, window: Any) -> Any:
        if form(x) != "channels":
            gradient, x = (
                own.movedim(dim, 0).transpose(1, 2) for own, dim in zip((gradient, x), in_dims, strict=False)
            )
            places = places.movedim(in_dims[2], 0).transpose(1, 2)  # all (m, C, B, H, W)
            if window[0] == window[1] and window[3] == (1, 1):  # windows that do not overlap: one value a place
                zeros = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(3)
                out = zeros.scatter_(3, places.flatten(3), gradient.flatten(3)).reshape(x.shape)
            else:
                flat = (value.flatten(0, 1) for value in (gradient, x))
                out = aten.max_pool2d_with_indices_backward(*flat, *window, places.flatten(0, 1))
                out = out.unflatten(0, x.shape[:2])
            return out.transpose(1, 2), 0
        gradient, x, places = (
            into_channels(value, dim) for value, dim in zip((gradient, x, places), in_dims, strict=False)
        )
        out = aten.max_pool2d_with_indices_backward(gradient, x, *window, places)
        return out.unflatten(1, (info.batch_size, -1)), 1


def _side_by_side(window: Any) -> bool:
    """Windows that do not overlap and do not reach over the edge."""
    size, stride, padding, dilation, ceil_mode = window
    return bool(size == stride and padding == (0, 0) and dilation == (1, 1) and not ceil_mode)


class _Pool(torch.autograd.Function):
    """Max-pooling by our kernels, over windows that do not overlap, of x or of its relu."""

    @staticmethod
    def forward(x: Tensor, size: Pair, rectified: bool) -> Tensor:
        from feddwa.engine import kernels

        out: Tensor = kernels.pool(x, size, rectified)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.size, ctx.rectified = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _PoolBackward.apply(gradient, *ctx.saved_tensors, ctx.size, ctx.rectified), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, size: Pair, rectified: bool) -> Any:
        x = x.movedim(in_dims[0], 0).transpose(1, 2)  # (m, C, B, H, W)
        return _Pool.apply(x, size, rectified).transpose(1, 2), 0


class _PoolBackward(WayBack):
    """The gradient goes to the places of the maxima, where they count."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, size: Pair, rectified: bool) -> Tensor:
        from feddwa.engine import kernels

        out: Tensor = kernels.pool_to_input(gradient, x, size, rectified)
        return out

    @staticmethod
    def vmap(info: Any, in_dims: Any, gradient: Tensor, x: Tensor, size: Pair, rectified: bool) -> Any:
        both = (batched(own, dim, info.batch_size) for own, dim in zip((gradient, x), in_dims, strict=False))
        gradient, x = (own.transpose(1, 2) for own in both)
        return _PoolBackward.apply(gradient, x, size, rectified).transpose(1, 2), 0
