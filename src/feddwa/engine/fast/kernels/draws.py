"""Keyed random numbers, as `engine/keys.py` defines them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddwa.engine.fast.kernels.common import kernel

BLOCK = 512  # numbers per program


@triton.jit
def _mixed(v):
    """`keys.mix` of a number."""
    v = (v ^ ((v >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    v = (v ^ ((v >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return v ^ ((v >> 31) & 0x1FFFFFFFF)


@kernel
def _mix(z, out, count, factor, summand, BLOCK: tl.constexpr):
    """`keys.mix` of factor z + summand for every z."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + n, _mixed(tl.load(z + n, mask=n < count, other=0) * factor + summand), mask=n < count)


@kernel
def _uniform(key, out, count, BLOCK: tl.constexpr):
    """`keys.uniform` of every key: out (keys, count)."""
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    drawn = _mixed(tl.load(key + row) + (n + 1).to(tl.int64) * -0x61C8864680B583EB)
    tl.store(out + row * count + n, ((drawn >> 40) & 0xFFFFFF).to(tl.float32) * 2.0**-24, mask=n < count)


@torch.library.custom_op("feddwa::mix", mutates_args=())
def mix(z: Tensor, factor: int, summand: int) -> Tensor:
    """`keys.mix` of factor z + summand in one kernel instead of ten."""
    z = z.contiguous()
    out = torch.empty_like(z)
    _mix[(triton.cdiv(z.numel(), BLOCK),)](z, out, z.numel(), factor, summand, BLOCK)
    return out


@mix.register_vmap
def _(info: Any, in_dims: Any, z: Tensor, factor: int, summand: int) -> tuple[Tensor, int]:
    found: Tensor = mix(z, factor, summand)
    return found, in_dims[0]


@torch.library.custom_op("feddwa::uniform", mutates_args=())
def uniform(key: Tensor, count: int) -> Tensor:
    """`keys.uniform` of all keys (...) at once: (..., count)."""
    key = key.contiguous()
    out = torch.empty(*key.shape, count, dtype=torch.float32, device=key.device)
    _uniform[triton.cdiv(count, BLOCK), key.numel()](key, out, count, BLOCK)
    return out


@uniform.register_vmap
def _(info: Any, in_dims: Any, key: Tensor, count: int) -> tuple[Tensor, int]:
    return uniform(key.movedim(in_dims[0], 0), count), 0
