"""Keyed randomness: every draw is a pure function of (seed, round, client, purpose, ...), never of a global state.

Keys and draws are 64-bit integers mixed by SplitMix64's finaliser in exact tensor arithmetic. A draw is therefore the
same on every device and backend, and a client's draws do not depend on the other clients in the batch, on chunking or
on a resume.
"""

import hashlib
import math

import torch
from torch import Tensor

from feddwa.engine.fast import draws
from feddwa.engine.fast.dispatch import implementation

_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, odd, as a signed 64-bit integer


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of 64-bit integers that flips each output bit with probability one half."""
    if implementation(z) == "kernels":
        from feddwa.engine.fast import kernels

        mixed: Tensor = kernels.mix(z, 1, 0)
        return mixed
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47  # the mask turns >> into an unsigned shift
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def _signed(number: int) -> int:
    """The low 64 bits of a number as a signed integer, as tensor arithmetic would give."""
    return (number + 2**63) % 2**64 - 2**63


def fold(key: Tensor, data: Tensor | int) -> Tensor:
    """A new key from a key and a number; both may be tensors, broadcast against each other."""
    number = _signed((data + 1) * _GOLDEN) if isinstance(data, int) else (data + 1) * _GOLDEN
    if isinstance(number, int) and implementation(key) == "kernels":
        from feddwa.engine.fast import kernels

        folded: Tensor = kernels.mix(key, 3, number)
        return folded
    return mix(key * 3 + number)


def key(seed: int, purpose: str, *data: Tensor | int) -> Tensor:
    """The key of a purpose and its context: `key(seed, "batches", round, clients)` has the shape of clients."""
    purpose_number = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little", signed=True)
    result = mix(torch.tensor(seed, dtype=torch.int64) ^ torch.tensor(purpose_number, dtype=torch.int64))
    for item in data:
        result = fold(result.to(item.device) if isinstance(item, Tensor) else result, item)
    return result


def seed_of(key: Tensor) -> int:
    """A key as a non-negative integer seed for other generators (initialisation, partition)."""
    return int(key) & 0x7FFFFFFFFFFFFFFF


def bits(key: Tensor, count: int) -> Tensor:
    """`count` 64-bit draws for every key: (*key.shape, count)."""
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=key.device)
    return mix(key.unsqueeze(-1) + counter * _GOLDEN)


def uniform(key: Tensor, shape: torch.Size) -> Tensor:
    """Float32 draws in [0, 1) of the given shape from one key; 24 bits each, so they are exact."""
    drawn: Tensor
    if implementation(key) == "kernels":
        from feddwa.engine.fast import kernels

        drawn = kernels.uniform(key, shape.numel())
        return drawn.reshape(shape)
    if key.device.type == "cpu":
        drawn = draws.uniform(key, shape.numel())
        return drawn.reshape(shape)
    return ((bits(key, shape.numel()) >> 40) & 0xFFFFFF).to(torch.float32).mul(2.0**-24).reshape(shape)


def uniform64(key: Tensor, count: int) -> Tensor:
    """Float64 draws in [0, 1), 53 bits each: (m, count) from keys (m,)."""
    return ((bits(key, count) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def normal64(key: Tensor, count: int) -> Tensor:
    """Standard normal draws in float64 (Box and Muller): (m, count) from keys (m,)."""
    radius, angle = uniform64(key, 2 * count).chunk(2, dim=1)
    return (-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * math.pi * angle)


def normal(key: Tensor, shape: torch.Size) -> Tensor:
    """Standard normal draws in float64 of the given shape from one key (Box and Muller, both of a pair).

    Radii use 48 bits, so that tails extend to 8 standard deviations; angles use 24.
    """
    count = shape.numel()
    pairs = (count + 1) // 2
    high, low, angle = uniform(key, torch.Size((3, pairs))).double().unbind(0)
    radius = (-2 * torch.log1p(-(high + low * 2.0**-24))).sqrt()
    both = torch.cat([radius * torch.cos(2 * math.pi * angle), radius * torch.sin(2 * math.pi * angle)])
    return both[:count].reshape(shape)


def permutations(keys: Tensor, sizes: Tensor) -> Tensor:
    """A random order of 0..sizes[i]-1 in row i: (m, max size). Beyond a row's size the entries are meaningless."""
    longest = int(sizes.max())
    draws = (
        bits(keys, longest) >> 1
    ) & 0x3FFFFFFFFFFFFFFF  # 62 bits: ties, broken by position, practically never occur
    outside = torch.arange(longest, device=keys.device) >= sizes.to(keys.device).unsqueeze(1)
    return draws.masked_fill(outside, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)


def sample(key: Tensor, population: int, count: int) -> Tensor:
    """`count` distinct numbers below `population`, uniformly, in ascending order."""
    return permutations(key.reshape(1), torch.tensor([population]))[0, :count].sort().values
