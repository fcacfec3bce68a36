"""Pooling in forms that stay fast when mapped over clients, on the layouts that `stacked_conv.py` leaves in memory.

Kernels of our own pool what a relu has made without its ever being made.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.fast.dispatch import Pair, WayBack, batched, form, into_channels, pair

aten = torch.ops.aten


Relu = tuple[Tensor, Tensor]  # what a relu has made, and of what


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    relu: Relu | None = None,
) -> Any:
    """`F.max_pool2d`, with rules of our own. `relu` was the last call: where its result is pooled, kernels do both."""
    if input.ndim != 4 or return_indices:
        pool: Any = F.max_pool2d
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    window = pair(kernel_size), pair(stride or kernel_size), pair(padding), pair(dilation), ceil_mode
    if form(input) == "kernels" and _side_by_side(window):
        if relu is not None and relu[0] is input:
            return _Pool.apply(relu[1], window[0], True)
        return _Pool.apply(input, window[0], False)
    return _MaxPool.apply(input, window)[0]


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """`F.adaptive_avg_pool2d`. Down to one pixel torch takes the mean too, but then sets strides, which vmap cannot."""
    if output_size in (1, (1, 1), [1, 1]):
        return input.mean((-2, -1), keepdim=True)
    return F.adaptive_avg_pool2d(input, output_size)


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
        if _by_kernels(x, window):
            from feddwa.engine.fast import kernels

            size, stride, padding, _, ceil_mode = window
            along = zip(x.shape[-2:], size, stride, padding, strict=True)
            shape = [_windows(*axis, ceil_mode) for axis in along]
            return kernels.pool_places(x.movedim(in_dims[0], 0), size, stride, padding, shape), (0, 0)
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
        if _by_kernels(x, window):
            from feddwa.engine.fast import kernels

            gradient, places = (
                batched(own, dim, info.batch_size) for own, dim in ((gradient, in_dims[0]), (places, in_dims[2]))
            )
            return kernels.places_to_input(gradient, places, x.shape[-2:], *window[:3]), 0
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


def _by_kernels(x: Tensor, window: Any) -> bool:
    """Whether windows that may overlap are for our kernels, which know no dilation and count places in eight bits."""
    size, _, _, dilation, _ = window
    return form(x) == "kernels" and dilation == (1, 1) and size[0] * size[1] < 128


def _windows(length: int, size: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """How many windows there are along an axis; `ceil_mode`: the last may reach over the edge, if it begins inside."""
    steps = (length + 2 * padding - size + (stride - 1 if ceil_mode else 0)) // stride
    return steps if ceil_mode and steps * stride >= length + padding else steps + 1


def _side_by_side(window: Any) -> bool:
    """Windows that do not overlap and do not reach over the edge."""
    size, stride, padding, dilation, ceil_mode = window
    return bool(size == stride and padding == (0, 0) and dilation == (1, 1) and not ceil_mode)


class _Pool(torch.autograd.Function):
    """Max-pooling by our kernels, over windows that do not overlap, of x or of its relu."""

    @staticmethod
    def forward(x: Tensor, size: Pair, rectified: bool) -> Tensor:
        from feddwa.engine.fast import kernels

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
        return _Pool.apply(x.movedim(in_dims[0], 0), size, rectified), 0


class _PoolBackward(WayBack):
    """The gradient goes to the places of the maxima, where they count."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, size: Pair, rectified: bool) -> Tensor:
        from feddwa.engine.fast import kernels

        out: Tensor = kernels.pool_to_input(gradient, x, size, rectified)
        return out

    @staticmethod
    def vmap(info: Any, in_dims: Any, gradient: Tensor, x: Tensor, size: Pair, rectified: bool) -> Any:
        gradient, x = (batched(own, dim, info.batch_size) for own, dim in zip((gradient, x), in_dims, strict=False))
        return _PoolBackward.apply(gradient, x, size, rectified), 0
