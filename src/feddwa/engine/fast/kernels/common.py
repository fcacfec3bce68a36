"""Block sizes, split-K and index arithmetic that the kernels share."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

TARGET_PROGRAMS = 2048  # programs that keep a GPU busy

# Triton compiles a kernel anew for arguments that are 1 or multiples of 16. These change with the batch, the number of
# clients or the key, so a kernel would be compiled several times for one layer.
_NOT_SPECIALIZED = [
    "batch", "num_clients", "terms_per_split", "num_windows", "num_pixels", "num_draws", "stride_shift", "multiplier",
    "increment",
]  # fmt: skip
kernel = triton.jit(do_not_specialize=_NOT_SPECIALIZED)


@triton.jit
def unravel_index(n, H: tl.constexpr, W: tl.constexpr):
    """Image, row and column of pixel n of a batch of images (B, H, W)."""
    return n // (H * W), n // W % H, n % W


def channels_last(x: Tensor) -> Tensor:
    """Permute (..., C, H, W) to (..., H, W, C), contiguous."""
    return x.movedim(-3, -1).contiguous()


def split_k(terms: int, block: int, num_programs: int, min_steps: int = 1) -> tuple[int, int]:
    """Number of partial sums of a split-K reduction over `terms`, and the terms of each.

    A program adds `block` terms per step. `num_programs` programs add up one partial sum of every output, so there are
    as many partial sums as it takes to have TARGET_PROGRAMS programs. Each has at least `min_steps` steps.
    """
    steps = triton.cdiv(terms, block)
    num_splits = max(1, min(steps // min_steps, triton.cdiv(TARGET_PROGRAMS, num_programs)))
    return num_splits, triton.cdiv(steps, num_splits) * block


def block_size(length: int, maximum: int) -> int:
    """The smallest power of two that is at least `length`, between 16 and `maximum`."""
    return min(maximum, max(16, 1 << (length - 1).bit_length()))
