"""The implementation of each stacked operation by device and dtype, and helpers that the operations share."""

import functools
import importlib.util
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

Pair = tuple[int, int]  # along H, along W
Geometry = tuple[Pair, Pair, Pair]  # of a convolution: stride, padding, dilation
OutputMask = tuple[bool, bool, bool]  # gradients that a backward pass computes: of input, weight, bias


def implementation(x: Tensor) -> Literal["channels", "patches", "kernels"]:
    """The implementation of operations on x, with one set of parameters per client.

    "channels": the client axis is merged into the channels, for torch's grouped operations; on a CPU
    "kernels": Triton kernels, on a GPU in float32 (int64 for random keys)
    "patches": im2col and one matrix product per client; on a GPU in any other dtype or without Triton
    """
    if not x.is_cuda:
        return "channels"
    return "kernels" if x.dtype in (torch.float32, torch.int64) and _has_triton() else "patches"


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def pair(value: Any) -> Pair:
    """(along H, along W) from two numbers, or from one for both."""
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)


def numbers(value: Any, count: int) -> tuple[int, ...]:
    """`count` numbers, one per axis, from as many or from one for all."""
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    return tuple(int(number) for number in (given if len(given) == count else given * count))


def clients_first(x: Tensor, dim: int | None, m: int) -> Tensor:
    """x with its client axis moved from `dim` to the front. `dim` None: all m clients share x, which is expanded."""
    return x.expand(m, *x.shape) if dim is None else x.movedim(dim, 0)


def clients_first_each(values: Iterable[Tensor], dims: Iterable[int | None], m: int) -> list[Tensor]:
    """`clients_first` of several tensors."""
    return [clients_first(value, dim, m) for value, dim in zip(values, dims, strict=True)]


def clients_in_channels(x: Tensor, dim: int | None, m: int) -> Tensor:
    """(B, C, H, W), with a client axis m at `dim` or shared by all, -> (B, m * C, H, W) in channels-last memory."""
    x = clients_first(x, dim, m).permute(1, 3, 4, 0, 2)  # (B, H, W, m, C)
    return x.reshape(*x.shape[:3], -1).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def view(input: Tensor, *shape: Any, **options: Any) -> Tensor:
    """`Tensor.view`, as a copy if strides require it: networks call it on the layouts of stacked convolutions."""
    if options or isinstance(shape[0], torch.dtype):
        return input.view(*shape, **options)
    return input.reshape(*shape)


class BackwardFunction(torch.autograd.Function):
    """Base class of backward passes written as operations with their own rule for vmap.

    They cannot be differentiated again.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        """Raise an error instead of returning a wrong second derivative."""
        raise RuntimeError(
            "no second derivatives through convolution, max-pooling and BatchNorm; use finite differences instead"
        )
