"""Batch normalisation mapped over clients: every client's channel is a channel of one large batch normalisation.

torch's own rule for `vmap` normalises without scale and shift, and applies these in a dozen further passes over the
activations. Here the clients' scales and shifts are merged like the channels, so that torch's kernels need one pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.fast.dispatch import (
    BackwardFunction,
    clients_first,
    clients_first_each,
    clients_in_channels,
    implementation,
)

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
    """`F.batch_norm` with its own vmap rule for images (B, C, H, W). Updates the running statistics."""
    if (
        running_mean is None or running_var is None or weight is None or bias is None or input.ndim != 4
        or (training and input[:, 0].numel() == 1)
    ):  # fmt: skip
        input = input.contiguous()  # under vmap torch cannot request another layout
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
    """`torch.group_norm` and `F.group_norm` for any memory layout: under vmap torch's own fails on some."""
    return torch.group_norm(input.contiguous(), *args, **kwargs)


class _BatchNorm(torch.autograd.Function):
    """Batch normalisation in training mode.

    One client: x (B, C, H, W), the others (C,). Returns the output, the new running mean and variance, and for the
    backward pass the batch's mean and inverse standard deviation, (C,) each.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
    ) -> tuple[Tensor, ...]:
        running_mean, running_var = running_mean.clone(), running_var.clone()
        out, *saved = aten.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
        return out, running_mean, running_var, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, *_, ctx.eps = inputs
        ctx.save_for_backward(x, weight, *output[3:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> Any:
        return *_BatchNormBackward.apply(grad_output, *ctx.saved_tensors, ctx.eps), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, *others: Any) -> Any:
        m, (*tensors, momentum, eps) = info.batch_size, others
        parameters = clients_first_each(tensors, in_dims[1:5], m)  # (m, C) each: weight, bias, running statistics
        if implementation(x) == "kernels":
            from feddwa.engine.fast import kernels

            x = clients_first(x, in_dims[0], m)  # (m, B, C, H, W)
            out, *statistics = kernels.batch_norm(_to_pixels(x), *parameters, momentum, eps)
            return (_to_images(out, x), *statistics), (0,) * 5
        merged, split, axis = _merge(x, in_dims[0], m)
        weight, bias, mean, var = (value.flatten() for value in parameters)  # (m C,) each
        out, *statistics = _BatchNorm.forward(merged, weight, bias, mean, var, momentum, eps)
        return (split(out), *(value.unflatten(0, (m, -1)) for value in statistics)), (axis, 0, 0, 0, 0)


class _BatchNormBackward(BackwardFunction):
    """Gradients of batch normalisation with respect to its input, weight and bias.

    One client: grad_output, x (B, C, H, W); weight, save_mean, save_invstd (C,).
    """

    @staticmethod
    def forward(
        grad_output: Tensor, x: Tensor, weight: Tensor, save_mean: Tensor, save_invstd: Tensor, eps: float
    ) -> Any:
        """torch's own backward pass."""
        return aten.native_batch_norm_backward(
            grad_output, x, weight, None, None, save_mean, save_invstd, True, eps, [True, True, True]
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad_output: Tensor, x: Tensor, *others: Any) -> Any:
        m, (*tensors, eps) = info.batch_size, others
        parameters = clients_first_each(tensors, in_dims[2:5], m)  # (m, C) each: weight, mean, inverse deviation
        if implementation(x) == "kernels":
            from feddwa.engine.fast import kernels

            grad_output, x = clients_first_each((grad_output, x), in_dims[:2], m)  # (m, B, C, H, W)
            out, *grads = kernels.batch_norm_backward(_to_pixels(grad_output), _to_pixels(x), *parameters)
            return (_to_images(out, x), *grads), (0, 0, 0)
        merged_grad, _, _ = _merge(grad_output, in_dims[0], m)
        merged_x, split, axis = _merge(x, in_dims[1], m)
        weight, save_mean, save_invstd = (value.flatten() for value in parameters)  # (m C,) each
        grad_x, *grads = _BatchNormBackward.forward(merged_grad, merged_x, weight, save_mean, save_invstd, eps)
        return (split(grad_x), *(value.unflatten(0, (m, -1)) for value in grads)), (axis, 0, 0)


def _merge(x: Tensor, dim: int | None, m: int) -> Any:
    """x (B, C, H, W), with a client axis m at `dim`, as images with m C channels.

    Returns the images, a function that splits the clients off the channels again, and the client axis it creates.
    """
    if implementation(x) != "channels":
        planes = clients_first(x, dim, m).transpose(1, 2)  # (m, C, B, H, W), as stacked_conv leaves it in memory
        _, channels, batch, height, width = planes.shape
        merged = planes.reshape(1, m * channels, batch * height, width)  # a channel's batch is one tall image
        return merged, lambda new: new.reshape(m, channels, batch, height, width).transpose(1, 2), 0
    return clients_in_channels(x, dim, m), lambda new: new.unflatten(1, (m, -1)), 1


def _to_pixels(images: Tensor) -> Tensor:
    """(m, B, C, H, W) -> (m, B H W, C)."""
    from feddwa.engine.fast import kernels

    return kernels.channels_last(images).flatten(1, 3)


def _to_images(pixels: Tensor, like: Tensor) -> Tensor:
    """(m, B H W, C) -> (m, B, C, H, W), the shape of `like`."""
    images: Tensor = pixels.unflatten(1, (like.shape[1], *like.shape[3:])).movedim(-1, 2)
    return images
