"""Max-pooling that stays fast under vmap, for the memory layouts of `stacked_conv.py`.

Triton kernels pool relu(x) without writing relu(x) to memory.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.fast.dispatch import (
    BackwardFunction,
    Pair,
    clients_first_each,
    clients_in_channels,
    implementation,
    pair,
)

aten = torch.ops.aten

Relu = tuple[Tensor, Tensor]  # output and input of a relu
Window = tuple[Pair, Pair, Pair, Pair, bool]  # size, stride, padding, dilation, ceil_mode


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
    """`F.max_pool2d` with its own vmap rule.

    relu: output and input of the network's last call, if that was a ReLU. If its output is the input here, Triton
    kernels compute both at once.
    """
    if input.ndim != 4 or return_indices:
        pool: Any = F.max_pool2d
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    window = pair(kernel_size), pair(stride or kernel_size), pair(padding), pair(dilation), ceil_mode
    if implementation(input) == "kernels" and _tiles_the_image(window):
        if relu is not None and relu[0] is input:
            return _TiledMaxPool.apply(relu[1], window[0], True)
        return _TiledMaxPool.apply(input, window[0], False)
    return _MaxPool.apply(input, window)[0]


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """`F.adaptive_avg_pool2d`. Down to one pixel torch also takes the mean, but then sets strides, which vmap does not
    allow.
    """
    if output_size in (1, (1, 1), [1, 1]):
        return input.mean((-2, -1), keepdim=True)
    return F.adaptive_avg_pool2d(input, output_size)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """`F.adaptive_avg_pool1d`, in the same way."""
    return input.mean(-1, keepdim=True) if output_size in (1, (1,), [1]) else F.adaptive_avg_pool1d(input, output_size)


class _MaxPool(torch.autograd.Function):
    """Max-pooling with any window. One client: x (B, C, H, W) -> maxima and their indices, (B, C, H', W') each."""

    @staticmethod
    def forward(x: Tensor, window: Window) -> Any:
        return aten.max_pool2d_with_indices(x, *window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.window = inputs
        ctx.save_for_backward(x, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _: Any) -> Any:
        x, indices = ctx.saved_tensors
        return _MaxPoolBackward.apply(grad_output, x, indices, ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, window: Window) -> Any:
        if _has_kernel(x, window):
            from feddwa.engine.fast import kernels

            size, stride, padding, _, ceil_mode = window
            axes = zip(x.shape[-2:], size, stride, padding, strict=True)
            output_size = [_output_length(*axis, ceil_mode) for axis in axes]
            x = x.movedim(in_dims[0], 0)  # (m, B, C, H, W)
            return kernels.max_pool_with_indices(x, size, stride, padding, output_size), (0, 0)
        if implementation(x) != "channels":
            x = x.movedim(in_dims[0], 0).transpose(1, 2)  # (m, C, B, H, W)
            pooled = aten.max_pool2d_with_indices(x.flatten(0, 1), *window)  # (m C, B, H', W') each
            return tuple(value.unflatten(0, x.shape[:2]).transpose(1, 2) for value in pooled), (0, 0)
        pooled = aten.max_pool2d_with_indices(
            clients_in_channels(x, in_dims[0], info.batch_size), *window
        )  # (B, m C, H', W') each
        return tuple(value.unflatten(1, (info.batch_size, -1)) for value in pooled), (1, 1)


class _MaxPoolBackward(BackwardFunction):
    """The gradient of `_MaxPool`: grad_output at the indices of the maxima, added where windows overlap.

    One client: grad_output, indices (B, C, H', W'); x (B, C, H, W), used for its shape alone.
    """

    @staticmethod
    def forward(grad_output: Tensor, x: Tensor, indices: Tensor, window: Window) -> Any:
        return aten.max_pool2d_with_indices_backward(grad_output, x, *window, indices)

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad_output: Tensor, x: Tensor, indices: Tensor, window: Window) -> Any:
        m = info.batch_size
        if _has_kernel(x, window):
            from feddwa.engine.fast import kernels

            grad_output, indices = clients_first_each(
                (grad_output, indices), (in_dims[0], in_dims[2]), m
            )  # (m, B, C, H', W')
            return kernels.max_pool_with_indices_backward(grad_output, indices, x.shape[-2:], *window[:3]), 0
        inputs = list(zip((grad_output, x, indices), in_dims[:3], strict=True))
        if implementation(x) != "channels":
            grad_output, x, indices = (value.movedim(dim, 0).transpose(1, 2) for value, dim in inputs)
            return _planes_backward(grad_output, x, indices, window).transpose(1, 2), 0  # (m, B, C, H, W)
        grad_output, x, indices = (clients_in_channels(value, dim, m) for value, dim in inputs)  # (B, m C, ., .) each
        grad_x = aten.max_pool2d_with_indices_backward(grad_output, x, *window, indices)
        return grad_x.unflatten(1, (m, -1)), 1


def _planes_backward(grad_output: Tensor, x: Tensor, indices: Tensor, window: Window) -> Tensor:
    """The gradient (m, C, B, H, W). grad_output, indices: (m, C, B, H', W'); x: (m, C, B, H, W)."""
    if window[0] == window[1] and window[3] == (1, 1):  # no overlap: at most one value per pixel
        zeros = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(3)
        return zeros.scatter_(3, indices.flatten(3), grad_output.flatten(3)).reshape(x.shape)
    flat = (value.flatten(0, 1) for value in (grad_output, x))
    grad_x: Tensor = aten.max_pool2d_with_indices_backward(*flat, *window, indices.flatten(0, 1))
    return grad_x.unflatten(0, x.shape[:2])  # type: ignore[no-any-return]


def _has_kernel(x: Tensor, window: Window) -> bool:
    """Whether `_MaxPool` has a Triton kernel: no dilation, at most eight-bit indices."""
    size, _, _, dilation, _ = window
    return implementation(x) == "kernels" and dilation == (1, 1) and size[0] * size[1] < 128


def _output_length(length: int, size: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Number of windows along an axis. `ceil_mode`: the last may extend beyond the image if it begins inside."""
    steps = (length + 2 * padding - size + (stride - 1 if ceil_mode else 0)) // stride
    return steps if ceil_mode and steps * stride >= length + padding else steps + 1


def _tiles_the_image(window: Window) -> bool:
    """Whether windows neither overlap nor extend beyond the image."""
    size, stride, padding, dilation, ceil_mode = window
    return bool(size == stride and padding == (0, 0) and dilation == (1, 1) and not ceil_mode)


class _TiledMaxPool(torch.autograd.Function):
    """Max-pooling of x, or of relu(x), by Triton kernels, over windows that tile the image.

    x: (..., C, H, W), with or without a client axis -> (..., C, H // kh, W // kw).
    """

    @staticmethod
    def forward(x: Tensor, size: Pair, relu: bool) -> Tensor:
        from feddwa.engine.fast import kernels

        out: Tensor = kernels.max_pool(x, size, relu)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.size, ctx.relu = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _TiledMaxPoolBackward.apply(grad_output, *ctx.saved_tensors, ctx.size, ctx.relu), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, size: Pair, relu: bool) -> Any:
        return _TiledMaxPool.apply(x.movedim(in_dims[0], 0), size, relu), 0


class _TiledMaxPoolBackward(BackwardFunction):
    """The gradient of `_TiledMaxPool`: grad_output at each window's first maximum; zero where the ReLU is inactive."""

    @staticmethod
    def forward(grad_output: Tensor, x: Tensor, size: Pair, relu: bool) -> Tensor:
        from feddwa.engine.fast import kernels

        grad_x: Tensor = kernels.max_pool_backward(grad_output, x, size, relu)
        return grad_x

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad_output: Tensor, x: Tensor, size: Pair, relu: bool) -> Any:
        grad_output, x = clients_first_each((grad_output, x), in_dims[:2], info.batch_size)
        return _TiledMaxPoolBackward.apply(grad_output, x, size, relu), 0
