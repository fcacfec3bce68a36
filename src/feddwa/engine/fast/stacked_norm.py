"""Batch normalisation mapped over clients: every client's channel is a channel of one large batch normalisation.

torch's own rule for `vmap` normalises without scale and shift and leaves those, and their gradients, to a dozen passes
over the activations. With the clients' scales and shifts merged as the channels are, torch's kernels do it in one.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.fast.dispatch import WayBack, batched, form, into_channels

aten = torch.ops.aten


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm`, with rules of our own for images; the running statistics move on in place."""
    if (
        running_mean is None or running_var is None or weight is None or bias is None or input.ndim != 4
        or (training and input[:, 0].numel() == 1)
    ):  # fmt: skip
        input = input.contiguous()  # under vmap torch cannot ask for another layout
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        scale = weight * torch.rsqrt(running_var + eps)
        shift = bias - running_mean * scale
        return torch.addcmul(shift[:, None, None], input, scale[:, None, None])
    out, mean, var, *_ = _BatchNorm.apply(input, weight, bias, running_mean, running_var, momentum, eps)
    running_mean.copy_(mean)
    running_var.copy_(var)
    return out  # type: ignore[no-any-return]


def group_norm(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`torch.group_norm`, and `F.group_norm`, of an input in any layout: under vmap torch's own fails on some."""
    return torch.group_norm(input.contiguous(), *args, **kwargs)


class _BatchNorm(torch.autograd.Function):
    """Outputs, the new running statistics, and the batch's own mean and inverse deviation for the way back."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float
    ) -> tuple[Tensor, ...]:
        mean, var = mean.clone(), var.clone()
        out, *own = aten.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps)
        return out, mean, var, *own

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, *_, ctx.eps = inputs
        ctx.save_for_backward(x, weight, *output[3:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        return *_BatchNormBackward.apply(gradient, *ctx.saved_tensors, ctx.eps), None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        momentum: float,
        eps: float,
    ) -> Any:
        m = info.batch_size
        if form(x) == "kernels":
            from feddwa.engine.fast import kernels

            x, *own = (batched(own, dim, m) for own, dim in zip((x, weight, bias, mean, var), in_dims, strict=False))
            out, *found = kernels.normalise(_pixels(x), *own, momentum, eps)
            return (_images(out, x), *found), (0,) * 5
        merged, split, place = _merge(x, in_dims[0], m)
        channels = (batched(own, dim, m).flatten() for own, dim in zip((weight, bias), in_dims[1:3], strict=True))
        mean, var = (batched(own, dim, m).flatten().clone() for own, dim in zip((mean, var), in_dims[3:5], strict=True))
        out, *own = aten.native_batch_norm(merged, *channels, mean, var, True, momentum, eps)
        return (split(out), *(value.unflatten(0, (m, -1)) for value in (mean, var, *own))), (place, 0, 0, 0, 0)


class _BatchNormBackward(WayBack):
    """Gradients with respect to the input, the scale and the shift."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor, eps: float) -> Any:
        return _backward(gradient, x, weight, mean, deviation, eps)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        deviation: Tensor,
        eps: float,
    ) -> Any:
        m = info.batch_size
        if form(x) == "kernels":
            from feddwa.engine.fast import kernels

            own = zip((gradient, x, weight, mean, deviation), in_dims, strict=False)
            gradient, x, *rest = (batched(value, dim, m) for value, dim in own)
            out, *found = kernels.normalise_to_input(_pixels(gradient), _pixels(x), *rest)
            return (_images(out, x), *found), (0, 0, 0)
        outer, _, _ = _merge(gradient, in_dims[0], m)
        inner, split, place = _merge(x, in_dims[1], m)
        weight, mean, deviation = (
            batched(own, dim, m).flatten() for own, dim in zip((weight, mean, deviation), in_dims[2:5], strict=True)
        )
        to_x, to_weight, to_bias = _backward(outer, inner, weight, mean, deviation, eps)
        return (split(to_x), to_weight.unflatten(0, (m, -1)), to_bias.unflatten(0, (m, -1))), (place, 0, 0)


def _backward(gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor, eps: float) -> Any:
    return aten.native_batch_norm_backward(
        gradient, x, weight, None, None, mean, deviation, True, eps, [True, True, True]
    )


def _merge(x: Tensor, dim: int | None, m: int) -> Any:
    """x with all clients' channels as one channel axis; how to undo that; and where the client axis is then."""
    if form(x) != "channels":
        planes = batched(x, dim, m).transpose(1, 2)  # (m, C, B, H, W), as stacked_conv leaves it in memory
        _, channels, batch, height, width = planes.shape
        merged = planes.reshape(1, m * channels, batch * height, width)  # a channel's batch is one tall image
        return merged, lambda new: new.reshape(m, channels, batch, height, width).transpose(1, 2), 0
    return into_channels(batched(x, dim, m, 1), 1), lambda new: new.unflatten(1, (m, -1)), 1


def _pixels(images: Tensor) -> Tensor:
    """(m, B, C, H, W) -> (m, B H W, C)."""
    from feddwa.engine.fast import kernels

    return kernels.channels_last(images).flatten(1, 3)


def _images(pixels: Tensor, like: Tensor) -> Tensor:
    """The way back."""
    images: Tensor = pixels.unflatten(1, (like.shape[1], *like.shape[3:])).movedim(-1, 2)
    return images
