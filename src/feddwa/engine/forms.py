"""In which form operations of many clients are done, by where their tensors lie."""

import functools
import importlib.util
from typing import Literal

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
