"""Convolutions of a stack of clients on a GPU: plain, pointwise, grouped and transposed ones, and their gradients.

x: (m, B, C, H, W); weight: (m, O, C / groups, kh, kw), for a transposed convolution (m, C, O / groups, kh, kw); bias:
(m, O). Plain convolutions are Triton kernels ("kernels") or im2col ("patches"). The others reduce to these:

- pointwise (1 x 1, "kernels"): a matrix product of torch's. A Triton kernel is compiled for every shape, which takes
  about a second; a MobileNet has dozens of shapes, nearly all of them pointwise.
- grouped: every group of a client becomes a client.
- transposed: the input gradient of a convolution; its own input gradient is that convolution.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from feddwa.engine.fast import patches
from feddwa.engine.fast.dispatch import Geometry, OutputMask

Gradients = tuple[Tensor | None, ...]  # of input, weight, bias


class Convolution(NamedTuple):
    """The parameters of a convolution, in the order of `torch.convolution`; one number per axis of the images."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @property
    def geometry(self) -> Geometry:
        """Stride, padding and dilation of a convolution of images."""
        return self[:3]  # type: ignore[return-value]  # two numbers each

    def output_size(self, size: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """(H', W') of a transposed convolution."""
        axes = zip(size, kernel, self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        return [(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, s, p, d, extra in axes]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv: Convolution, chosen: Literal["patches", "kernels"]
) -> tuple[Tensor, Tensor]:
    """The output (m, B, O, H', W') and a tensor kept for the backward pass: (m, ...), or empty."""
    if conv.groups > 1:
        m, one = len(x), conv._replace(groups=1)
        bias = None if bias is None else _groups_of(bias, conv.groups, 1)
        out, kept = forward(_groups_of(x, conv.groups, 2), _groups_of(weight, conv.groups, 1), bias, one, chosen)
        return _join_groups(out, m, 2), kept.unflatten(0, (m, -1)) if kept.numel() else kept
    if conv.transposed:
        out = _transposed(x, weight, conv, chosen)
        return out if bias is None else out + bias[:, None, :, None, None], x.new_empty(0)
    if chosen == "patches":
        return patches.conv(x, weight, bias, conv.geometry)
    if _pointwise(weight, conv):
        return _product(x, weight, bias), x.new_empty(0)
    from feddwa.engine.fast import kernels

    return kernels.conv(x, weight, bias, conv.geometry), x.new_empty(0)


def backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    kept: Tensor,
    conv: Convolution,
    output_mask: OutputMask,
    chosen: Literal["patches", "kernels"],
) -> Gradients:
    """The gradients with respect to x, weight and bias; None where `output_mask` is False."""
    if conv.groups > 1:
        m, one = len(x), conv._replace(groups=1)
        grad, x = (_groups_of(value, conv.groups, 2) for value in (grad_output, x))
        kept = kept.flatten(0, 1) if kept.numel() else kept
        grads = backward(grad, x, _groups_of(weight, conv.groups, 1), kept, one, output_mask, chosen)
        axes = (2, 1, 1)
        return tuple(None if g is None else _join_groups(g, m, axis) for g, axis in zip(grads, axes, strict=True))
    if conv.transposed:
        return _transposed_backward(grad_output, x, weight, conv, output_mask, chosen)
    if chosen == "patches":
        return patches.conv_backward(grad_output, x, weight, kept, conv.geometry, output_mask)
    if _pointwise(weight, conv):
        return _product_backward(grad_output, x, weight, output_mask)
    return _kernels_backward(grad_output, x, weight, conv.geometry, output_mask)


def _groups_of(value: Tensor, groups: int, axis: int) -> Tensor:
    """(m, ..., groups * n, ...) with the channels at `axis` -> (m * groups, ..., n, ...)."""
    parts: Tensor = value.unflatten(axis, (groups, -1)).movedim(axis, 1).flatten(0, 1)
    return parts


def _join_groups(value: Tensor, m: int, axis: int) -> Tensor:
    """The inverse of `_groups_of`."""
    joined: Tensor = value.unflatten(0, (m, -1)).movedim(1, axis).flatten(axis, axis + 1)
    return joined


def _kernels_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, output_mask: OutputMask
) -> Gradients:
    from feddwa.engine.fast import kernels

    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_x = kernels.conv_grad_input(grad_output, weight, x.shape[3:], geometry)
    if output_mask[1] or output_mask[2]:
        grad_weight, grad_bias = kernels.conv_grad_weight(grad_output, x, weight.shape[3:], geometry, output_mask[2])
    return grad_x, grad_weight, grad_bias


def _transposed(x: Tensor, weight: Tensor, conv: Convolution, chosen: str) -> Tensor:
    """The transposed convolution (m, B, O, H', W') without its bias."""
    size = conv.output_size(x.shape[3:], weight.shape[3:])
    if chosen == "kernels":
        from feddwa.engine.fast import kernels

        out: Tensor = kernels.conv_grad_input(x, weight, size, conv.geometry)
        return out
    like = x.new_empty(()).expand(*x.shape[:2], weight.shape[2], *size)
    grad, _, _ = patches.conv_backward(x, like, weight, x, conv.geometry, (True, False, False))
    assert grad is not None
    return grad


def _transposed_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, conv: Convolution, output_mask: OutputMask, chosen: str
) -> Gradients:
    grad_bias = grad_output.sum((1, 3, 4)) if output_mask[2] else None
    grad_weight: Any
    if chosen == "kernels":
        from feddwa.engine.fast import kernels

        grad_x = kernels.conv(grad_output, weight, None, conv.geometry) if output_mask[0] else None
        size = weight.shape[3:]
        grad_weight = (
            kernels.conv_grad_weight(x, grad_output, size, conv.geometry, False)[0] if output_mask[1] else None
        )
        return grad_x, grad_weight, grad_bias
    grad_x, columns = patches.conv(grad_output, weight, None, conv.geometry)
    grad_weight = patches.conv_backward(x, grad_output, weight, columns, conv.geometry, (False, output_mask[1], False))
    return grad_x, grad_weight[1], grad_bias


def _pointwise(weight: Tensor, conv: Convolution) -> bool:
    return weight.shape[3:] == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0)


def _pixels(images: Tensor) -> Tensor:
    """(m, B, C, H, W) -> (m, B H W, C)."""
    return images.movedim(2, -1).flatten(1, 3)


def _images(pixels: Tensor, like: Tensor) -> Tensor:
    """(m, B H W, C) -> (m, B, C, H, W), with batch, height and width of `like` (m, B, ., H, W)."""
    images: Tensor = pixels.unflatten(1, (like.shape[1], *like.shape[3:])).movedim(-1, 2)
    return images


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A pointwise convolution (m, B, O, H, W), with channels last in memory."""
    matrix = weight.flatten(2).mT  # (m, C, O)
    pixels = _pixels(x)
    out = pixels @ matrix if bias is None else torch.baddbmm(bias.unsqueeze(1), pixels, matrix)
    return _images(out, x)


def _product_backward(grad_output: Tensor, x: Tensor, weight: Tensor, output_mask: OutputMask) -> Gradients:
    grad = _pixels(grad_output)  # (m, N, O)
    grad_x = _images(grad @ weight.flatten(2), x) if output_mask[0] else None
    grad_weight = (grad.mT @ _pixels(x)).reshape(weight.shape) if output_mask[1] else None
    return grad_x, grad_weight, grad.sum(1) if output_mask[2] else None
