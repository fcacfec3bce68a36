"""From models to aggregation weights, and from weights to new models: the server's arithmetic, as pure functions.

Models are a stack, name -> (m, *shape), or one matrix (m, d). All sums are in float64, over chunks of parameters, so
that only the result has the size of a stack.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine import Model, Stack
from feddwa.engine.fast.joint import jointly
from feddwa.engine.rows import count, only, row
from feddwa.errors import InputError, require
from feddwa.ledger import book

# Parameters handled at a time: on a CPU (100, 4096) numbers stay in the cache, on a GPU fewer launches count.
WIDTH = {"cpu": 4096, "cuda": 1 << 18}
# Products summed in the models' own precision before float64 takes over; a GPU wants many of them at once.
BLOCK = {"cpu": 4096, "cuda": 1024}
LARGE = 1 << 19  # number of parameters from which float32 models are multiplied in float32
CLOSE, CLOSE_LARGE = 1e-8, 0.25  # below this share of the scale, cancellation would show in the sixth digit
CENTRE = 8  # models whose mean is the origin: all would cost a quarter of the time, one may be an outlier

Models = Stack | Tensor
Granularity = Literal["model", "layer", "tensor"]


def parameter_groups(names: Iterable[str], granularity: Granularity) -> dict[str, list[str]]:
    """Groups of parameters that share one set of weights: all of them, a layer's, or each by itself."""
    groups: dict[str, list[str]] = {}
    for name in names:
        layer = name.rpartition(".")[0] or "model"  # a network of one layer has bare names
        groups.setdefault({"model": "model", "layer": layer, "tensor": name}[granularity], []).append(name)
    return groups


def squared_distances(a: Models, b: Models) -> Tensor:
    """D[i, j] = ||a_i - b_j||^2 over all parameters: (m, n) in float64, accurate to 1e-6.

    Expanding the square cancels, because clients' models differ by a small share of their norm. Every model is
    therefore taken relative to the mean of a few, and pairs that are close even on that scale are recomputed from their
    differences. Large float32 models are multiplied in float32, a chunk at a time, and summed in float64 over chunks.
    The rounding error of a chunk depends on the processor; over many chunks it averages out to at most 2e-7 of the
    scale (measured).
    """
    stack_a, stack_b = _as_stack(a), _as_stack(b)
    _check_alike(stack_a, stack_b)
    book(count(stack_a), count(stack_b), stack_a)
    return _squared_distances(_flat(stack_a), _flat(stack_b))


@jointly
def _squared_distances(a: Stack, b: Stack) -> Tensor:
    """The same of flat tensors (..., m, d) and (..., n, d): (..., m, n)."""
    large = sum(value.shape[-1] for value in a.values()) >= LARGE
    cross = norm_a = norm_b = torch.zeros((), dtype=torch.float64, device=next(iter(a.values())).device)
    for x, y in _centred_chunks(a, b, torch.float32 if large else torch.float64):
        cross, norm_a, norm_b = cross + _products(x, y), norm_a + _squared_norms(x), norm_b + _squared_norms(y)
    scale = norm_a.unsqueeze(-1) + norm_b.unsqueeze(-2)
    distances = scale - 2 * cross
    close = (distances < (CLOSE_LARGE if large else CLOSE) * scale).nonzero()
    for pairs in close.split(distances[..., 0].numel()):  # as many models at once as in the stacks
        *federation, i, j = pairs.unbind(1)
        distances[(*federation, i, j)] = _distances_of_pairs(a, b, (*federation, i), (*federation, j))
    return distances


def _products(x: Tensor, y: Tensor) -> Tensor:
    """x @ y.T for x (..., m, c) and y (..., n, c), in blocks of columns that are summed in float64."""
    block = min(BLOCK[x.device.type], x.shape[-1])
    x, y = (_blocks(value, block).transpose(-3, -2) for value in (x, y))  # (..., blocks, m, block)
    return (x @ y.mT).sum(-3, dtype=torch.float64)


def _squared_norms(x: Tensor) -> Tensor:
    """||x_i||^2 for x (..., m, c), in shorter blocks than the products: half the time of a sum in float64."""
    norms: Tensor = torch.linalg.vector_norm(_blocks(x, min(512, x.shape[-1])), dim=-1)  # (..., m, blocks)
    return norms.double().square().sum(-1)


def _blocks(x: Tensor, width: int) -> Tensor:
    """(..., c) -> (..., blocks, width), the last block padded with zeros."""
    rest = -x.shape[-1] % width
    filled: Tensor = F.pad(x, (0, rest)) if rest else x
    return filled.reshape(*x.shape[:-1], -1, width)


def _distances_of_pairs(a: Stack, b: Stack, i: tuple[Tensor, ...], j: tuple[Tensor, ...]) -> Tensor:
    """||a_i - b_j||^2 of single pairs (k,), from the differences: exactly zero for equal models.

    i, j: an index (k,) for each axis before the last of a and b.
    """
    total = torch.zeros(len(i[0]), dtype=torch.float64, device=i[0].device)
    for x, y in _chunks(a, b):
        apart = _at_least_float32(x[i]) - _at_least_float32(y[j])
        total += torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64).square()
    return total


def dots(a: Stack, b: Stack) -> Tensor:
    """<a_i, b_i>: (m,) in float64, on the CPU."""
    book(count(a), 1, a)
    return _sum_products(_flat(a), _flat(only(b, a)), _rowwise)


def inner_products(a: Stack, b: Stack) -> Tensor:
    """<a_i, b_j>: (m, n) in float64, on the CPU."""
    book(count(a), count(b), a)
    return _sum_products(_flat(a), _flat(only(b, a)), _pairwise)


def _rowwise(x: Tensor, y: Tensor) -> Tensor:
    return (x.double() * y).sum(-1)


def _pairwise(x: Tensor, y: Tensor) -> Tensor:
    return x.double() @ y.double().mT


@jointly
def _sum_products(a: Stack, b: Stack, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The sum of `product(x, y)` over matching chunks x (..., m, c), y (..., n, c) of flat stacks, on the CPU."""
    total = torch.zeros((), dtype=torch.float64)
    for name in a:  # one copy from the device for every tensor
        pieces = _chunks(only(a, [name]), b)
        total = total + torch.stack([product(x, y) for x, y in pieces]).sum(0).cpu()
    return total


def cosines(a: Stack, b: Stack) -> Tensor:
    """cos(a_i, b_i): (m,); 0 where a_i or b_i is zero."""
    lengths = (dots(a, a) * dots(b, b)).sqrt()
    return torch.where(lengths > 0, dots(a, b) / lengths, 0.0)


def pairwise_cosines(products: Tensor) -> Tensor:
    """cos(d_i, d_j) from the inner products <d_i, d_j>, (m, m) each; 0 where d_i or d_j is zero."""
    norms = products.diagonal().sqrt()
    lengths = norms.unsqueeze(1) * norms
    return torch.where(lengths > 0, products / lengths, 0.0)


def inverse_weights(distances: Tensor, top_k: int) -> Tensor:
    """FedDWA's weights from squared distances (m, n): p_ij ~ 1 / d_ij over the K nearest j, rows summing to 1 (Eq. 15).

    1 / d minimises sum_j p_j^2 d_ij on the simplex. The limit for d_ij = 0 is a uniform weight over exactly those j.
    Ties keep the client with the smaller number.
    """
    require(top_k >= 1, "top_k", top_k, "at least 1")
    nearest = distances.argsort(dim=1, stable=True)[:, :top_k]
    kept = distances.gather(1, nearest)
    zero = kept == 0
    inverse = torch.where(
        zero.any(1, keepdim=True), zero.double(), kept[:, :1] / kept
    )  # scaled by the nearest: no overflow
    return torch.zeros_like(distances).scatter_(1, nearest, inverse / inverse.sum(1, keepdim=True))


def dwa_weights(guidance: Models, local: Models, top_k: int) -> Tensor:
    """P (m, m): the weight of client j's local model in client i's next personalised model (FedDWA, Eq. 15 and top-K).

    `top_k` counts the client itself; `top_k >= m` keeps all clients.
    """
    distances = squared_distances(guidance, local)
    if not distances.isfinite().all():
        _name_culprit(guidance, "guidance")
        _name_culprit(local, "local")
    return inverse_weights(distances, top_k)


def mix(weights: Tensor, stack: Stack, personal: bool = False) -> Stack:
    """New models sum_j weights[i, j] * stack_j: (k, *shape) from weights (k, m) and stack (m, *shape) (Eq. 8).

    Under a defence (`mixing_by`) a robust mean replaces the sum of every row. personal: whether row i is for the client
    whose model is stack_i, k = m.
    """
    return _MEAN.get()(weights, stack, personal)


def weighted_mean(weights: Tensor, stack: Stack, personal: bool = False) -> Stack:
    """The plain sum of `mix`, whatever the defence."""
    weights = weights.double()
    book(weights.shape[0], weights.shape[1], stack)
    return {
        name: value.reshape(len(weights), *stack[name].shape[1:]) for name, value in _mix(weights, _flat(stack)).items()
    }


Mean = Callable[[Tensor, Stack, bool], Stack]  # the signature of `mix`
_MEAN: ContextVar[Mean] = ContextVar("mean", default=weighted_mean)


@contextmanager
def mixing_by(mean: Mean) -> Iterator[None]:
    """Let `mix` use another mean, of the same signature, in the enclosed work."""
    token = _MEAN.set(mean)
    try:
        yield
    finally:
        _MEAN.reset(token)


@jointly
def _mix(weights: Tensor, stack: Stack) -> Stack:
    """The same of weights (..., k, m) and flat tensors (..., m, d): (..., k, d)."""
    places = {device: weights.to(device) for device in {value.device for value in stack.values()}}
    return {name: _mix_one(places[value.device], value) for name, value in stack.items()}


def average(sizes: Tensor, stack: Stack) -> tuple[Model, Tensor]:
    """FedAvg's mean of the models (m, *shape) by data sizes (m,), and its P (m, m): n_j / n in every row."""
    weights = (sizes.double() / sizes.sum()).unsqueeze(0)  # (1, m)
    return row(mix(weights, stack), 0), weights.expand(len(sizes), -1)


def mix_groups(shares: Mapping[str, Tensor], groups: Mapping[str, list[str]], stack: Stack) -> tuple[Stack, Tensor]:
    """Every group of parameters mixed by its own P, and one P of all, weighted by the groups' parameters.

    Row i of each P (m, m) is for client i.
    """
    mixed: dict[str, Tensor] = {}
    for group, weights in shares.items():
        mixed |= mix(weights, only(stack, groups[group]), personal=True)
    sizes = {group: sum(stack[name][0].numel() for name in names) for group, names in groups.items()}
    overall = torch.stack([sizes[group] / sum(sizes.values()) * weights for group, weights in shares.items()]).sum(0)
    return only(mixed, stack), overall


def _mix_one(weights: Tensor, value: Tensor) -> Tensor:
    new, width = value.new_empty(*weights.shape[:-1], value.shape[-1]), _width(value)
    for old, part in zip(value.split(width, -1), new.split(width, -1), strict=True):
        part.copy_(weights @ old.double())
    return new


def _flat(stack: Stack) -> Stack:
    """Tensors (m, *shape) as (m, d)."""
    return {name: value.reshape(len(value), -1) for name, value in stack.items()}


def _width(value: Tensor) -> int:
    """Parameters of flat models (..., m, d) per chunk: fewer with several federations."""
    usual, federations = WIDTH[value.device.type], value.shape[:-2].numel()
    return usual if federations == 1 else max(usual // federations, usual // 8)


def _as_stack(models: Models) -> Stack:
    return {"models": models} if isinstance(models, Tensor) else models


def _check_alike(a: Stack, b: Stack) -> None:
    shapes = [{name: value.shape[1:] for name, value in stack.items()} for stack in (a, b)]
    if shapes[0] != shapes[1] or not a:
        raise InputError(f"models: the two stacks must have the same names and shapes, got {shapes[0]} and {shapes[1]}")


def _centred_chunks(a: Stack, b: Stack, kind: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Both stacks relative to the mean of b's first rows, in matching chunks (..., m, c), (..., n, c).

    The chunks are of type `kind` at least. They share two buffers: allocating each would cost more than the arithmetic.
    """
    first, other = next(iter(a.values())), next(iter(b.values()))
    width, kind = _width(first), torch.promote_types(kind, first.dtype)
    buffers = [value.new_empty(*value.shape[:-1], width, dtype=kind) for value in (first, other)]
    for pieces in _chunks(a, b):
        origin = _at_least_float32(pieces[1][..., :CENTRE, :]).mean(-2, keepdim=True)
        u, v = (
            torch.sub(piece, origin, out=buffer[..., : piece.shape[-1]])
            for piece, buffer in zip(pieces, buffers, strict=True)
        )
        yield u, v


def _chunks(a: Stack, b: Stack) -> Iterator[tuple[Tensor, Tensor]]:
    """Two flat stacks in matching chunks (..., m, c) and (..., n, c)."""
    for name, value in a.items():
        width = _width(value)
        yield from zip(value.split(width, -1), b[name].split(width, -1), strict=True)


def _at_least_float32(value: Tensor) -> Tensor:
    return value if value.dtype == torch.float64 else value.float()


def _name_culprit(models: Models, role: str) -> None:
    for name, value in _as_stack(models).items():
        finite = value.reshape(len(value), -1).isfinite().all(1)
        if not finite.all():
            client = int((~finite).nonzero()[0])
            raise InputError(f"{role} model of client {client}: not finite (NaN or infinity) in {name}")
