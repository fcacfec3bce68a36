"""Keyed random numbers, as `engine/keys.py` defines them, to the bit."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.kernels.common import kernel

BLOCK = 512  # numbers per program


@triton.jit
def _splitmix64(z):
    """SplitMix64's finaliser, `keys.mix`, of int64 numbers. The masks make the shifts unsigned."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@kernel
def _mix(z, out, num_draws, multiplier, increment, BLOCK: tl.constexpr):
    """out[n] = splitmix64(multiplier * z[n] + increment), for num_draws numbers."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = n < num_draws
    tl.store(out + n, _splitmix64(tl.load(z + n, mask=mask, other=0) * multiplier + increment), mask=mask)


@kernel
def _uniform(key, out, num_draws, BLOCK: tl.constexpr):
    """out[row, n] = draw n of key[row], for num_draws draws per key: float32 in [0, 1) of 24 bits."""
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = _splitmix64(tl.load(key + row) + (n + 1).to(tl.int64) * -0x61C8864680B583EB)
    tl.store(out + row * num_draws + n, ((bits >> 40) & 0xFFFFFF).to(tl.float32) * 2.0**-24, mask=n < num_draws)


@torch.library.custom_op("feddwa::mix", mutates_args=())
def mix(z: Tensor, multiplier: int, increment: int) -> Tensor:
    """`keys.mix(multiplier * z + increment)` of int64 z of any shape, in one kernel instead of ten."""
    z = z.contiguous()
    out = torch.empty_like(z)
    _mix[(triton.cdiv(z.numel(), BLOCK),)](z, out, z.numel(), multiplier, increment, BLOCK)
    return out


@mix.register_vmap
def _(info: Any, in_dims: Any, z: Tensor, multiplier: int, increment: int) -> tuple[Tensor, int]:
    out: Tensor = mix(z, multiplier, increment)
    return out, in_dims[0]


@torch.library.custom_op("feddwa::uniform", mutates_args=())
def uniform(key: Tensor, num_draws: int) -> Tensor:
    """`keys.uniform` of all keys (...) at once: (..., num_draws) float32."""
    key = key.contiguous()
    out = torch.empty(*key.shape, num_draws, dtype=torch.float32, device=key.device)
    _uniform[triton.cdiv(num_draws, BLOCK), key.numel()](key, out, num_draws, BLOCK)
    return out


@uniform.register_vmap
def _(info: Any, in_dims: Any, key: Tensor, num_draws: int) -> tuple[Tensor, int]:
    return uniform(key.movedim(in_dims[0], 0), num_draws), 0
