"""What the kernels share."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

MANY = 2048  # programs that keep a GPU busy

# Batches differ in length: a kernel is compiled once for a layer, not for every length.
_ANY = ["batch", "rows", "share", "count", "pixels", "at_centre", "factor", "summand"]
kernel = triton.jit(do_not_specialize=_ANY)


@triton.jit
def pixel(n, H: tl.constexpr, W: tl.constexpr):
    """Number n of a batch's pixels -> its image, row and column."""
    return n // (H * W), n // W % H, n % W


def channels_last(x: Tensor) -> Tensor:
    """(..., C, H, W) -> (..., H, W, C), contiguous."""
    return x.movedim(-3, -1).contiguous()


def cut(length: int, step: int, programs: int, least: int = 1) -> tuple[int, int]:
    """Into how many pieces a sum of so many terms is cut, of how many terms each, if so many programs add up one.

    A piece is at least so many steps.
    """
    steps = triton.cdiv(length, step)
    pieces = max(1, min(steps // least, triton.cdiv(MANY, programs)))
    return pieces, triton.cdiv(steps, pieces) * step


def block_of(count: int, most: int) -> int:
    """A power of two that holds so many, from 16 to `most`."""
    return min(most, max(16, 1 << (count - 1).bit_length()))
