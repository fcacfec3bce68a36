"""In which form operations of many clients are done, by where their tensors lie, and what the forms share."""

import functools
import importlib.util
from typing import Any, Literal

import torch
from torch import Tensor

Pair = tuple[int, int]
Geometry = tuple[Pair, Pair, Pair]  # of a convolution: stride, padding, dilation
Wanted = tuple[bool, bool, bool]  # gradients wanted: of the input, of the kernel, of the bias


def form(x: Tensor) -> Literal["channels", "patches", "kernels"]:
    """How stacked operations are done: clients merged into channels, patches written out, or kernels of our own."""
    if not x.is_cuda:
        return "channels"
    return "kernels" if x.dtype in (torch.float32, torch.int64) and _has_triton() else "patches"


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def pair(value: Any) -> Pair:
    """One number for both axes, or one for each."""
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)


def into_channels(x: Tensor, dim: int) -> Tensor:
    """(B, C, H, W) with a client axis m at `dim` -> (B, m * C, H, W) in channels-last memory."""
    x = x.movedim(dim, 1).permute(0, 3, 4, 1, 2)  # (B, H, W, m, C)
    return x.reshape(*x.shape[:3], -1).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def batched(x: Tensor, dim: int | None, m: int, at: int = 0) -> Tensor:
    """The client axis moved to `at`, or made where all clients share x."""
    return x.unsqueeze(at).expand(*x.shape[:at], m, *x.shape[at:]) if dim is None else x.movedim(dim, at)


def view(input: Tensor, *shape: Any, **options: Any) -> Tensor:
    """`Tensor.view`, which users write after convolutions and our layouts do not allow: where it must, it copies."""
    if options or isinstance(shape[0], torch.dtype):
        return input.view(*shape, **options)
    return input.reshape(*shape)


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
