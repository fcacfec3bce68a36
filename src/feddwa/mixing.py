"""From models to aggregation weights, and from weights to new models: the server's arithmetic, as pure functions.

Models come as rows, a mapping name -> (m, *shape), or as one matrix (m, d). All sums are taken in float64, over chunks
of parameters, so that nothing of the size of a stack is ever allocated besides the result.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine.rows import Rows
from feddwa.errors import InputError, require
from feddwa.ledger import book

# Parameters handled at a time: on a CPU (100, 4096) numbers stay in the cache, on a GPU fewer launches count.
WIDTH = {"cpu": 4096, "cuda": 1 << 18}
# Products summed in the models' own precision before float64 takes over; a GPU wants many of them at once.
BLOCK = {"cpu": 4096, "cuda": 1024}
LARGE = 1 << 19  # from this many parameters on, float32 models are multiplied in float32
CLOSE, CLOSE_LARGE = 1e-8, 0.25  # below this share of the scale, cancellation would show in the sixth digit
CENTRE = 8  # models whose mean is the origin: all of them would cost a quarter of the time, one may lie far out

Models = Mapping[str, Tensor] | Tensor
Granularity = Literal["model", "layer", "tensor"]


def parameter_groups(names: Iterable[str], granularity: Granularity) -> dict[str, list[str]]:
    """Parameters that get their weights together, by group: all of them, those of a layer, or each by itself."""
    groups: dict[str, list[str]] = {}
    for name in names:
        layer = name.rpartition(".")[0] or "model"  # a network that is one layer has bare names
        groups.setdefault({"model": "model", "layer": layer, "tensor": name}[granularity], []).append(name)
    return groups


def part_of(rows: Rows, names: Iterable[str]) -> Rows:
    """Only these parameters."""
    return {name: rows[name] for name in names}


def squared_distances(a: Models, b: Models) -> Tensor:
    """D[i, j] = ||a_i - b_j||^2 over all parameters: (m, n) in float64, accurate to 1e-6.

    Expanding the square cancels, because clients' models differ by a small share of their norm. So every model is first
    taken relative to the mean of a few, which changes no difference, and pairs that are close even on that scale are
    computed again from the differences themselves. Large float32 models are multiplied in float32, a chunk at a time,
    and summed in float64 over chunks: what a chunk rounds depends on the processor, and over many of them it averages
    out to at most 2e-7 of the scale (measured).
    """
    rows_a, rows_b = _as_rows(a), _as_rows(b)
    _check_alike(rows_a, rows_b)
    m, n = _length(rows_a), _length(rows_b)
    book(m, n, rows_a)
    size = sum(value[0].numel() for value in rows_a.values())
    cross = torch.zeros(m, n, dtype=torch.float64, device=next(iter(rows_a.values())).device)
    norm_a, norm_b = torch.zeros_like(cross[:, 0]), torch.zeros_like(cross[0])
    for x, y in _centred_chunks(rows_a, rows_b, torch.float64 if size < LARGE else torch.float32):
        cross += _products(x, y)
        norm_a += _squared_norms(x)
        norm_b += _squared_norms(y)
    scale = norm_a.unsqueeze(1) + norm_b
    distances = scale - 2 * cross
    close = (distances < (CLOSE if size < LARGE else CLOSE_LARGE) * scale).nonzero()
    for pairs in close.split(max(m, n)):  # as many models at once as there are anyway
        i, j = pairs.unbind(1)
        distances[i, j] = _distances_of_pairs(rows_a, rows_b, i, j)
    return distances


def _products(x: Tensor, y: Tensor) -> Tensor:
    """x @ y.T for x (m, c) and y (n, c), in blocks of columns that are summed in float64."""
    block = min(BLOCK[x.device.type], x.shape[1])
    x, y = (_blocks(value, block).transpose(0, 1) for value in (x, y))  # (blocks, m, block)
    return torch.bmm(x, y.transpose(1, 2)).sum(0, dtype=torch.float64)


def _squared_norms(x: Tensor) -> Tensor:
    """||x_i||^2 for x (m, c), in blocks like the products but shorter: half the time of a sum in float64."""
    norms: Tensor = torch.linalg.vector_norm(_blocks(x, min(512, x.shape[1])), dim=2)  # (m, blocks)
    return norms.double().square().sum(1)


def _blocks(x: Tensor, width: int) -> Tensor:
    """(m, c) -> (m, blocks, width), the last block filled up with zeros."""
    rest = -x.shape[1] % width
    filled: Tensor = F.pad(x, (0, rest)) if rest else x
    return filled.reshape(len(x), -1, width)


def _distances_of_pairs(a: Rows, b: Rows, i: Tensor, j: Tensor) -> Tensor:
    """||a_i - b_j||^2 of single pairs (k,), from the differences: exactly zero for equal models."""
    total = torch.zeros(len(i), dtype=torch.float64, device=i.device)
    for x, y in _chunks(a, b):
        apart = _at_least_float32(x[i]) - _at_least_float32(y[j])
        total += torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64).square()
    return total


def inverse_weights(distances: Tensor, top_k: int) -> Tensor:
    """FedDWA's weights from squared distances (m, n): p_ij ~ 1 / d_ij over the K nearest j, rows summing to 1 (Eq. 15).

    1 / d minimises sum_j p_j^2 d_ij on the simplex. The limit for d_ij = 0 is a uniform weight over exactly those j.
    Of equally near clients the one with the smaller number is kept.
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

    `top_k` counts the client itself; `top_k >= m` keeps everybody.
    """
    distances = squared_distances(guidance, local)
    if not distances.isfinite().all():
        _name_culprit(guidance, "guidance")
        _name_culprit(local, "local")
    return inverse_weights(distances, top_k)


def mix(weights: Tensor, rows: Rows) -> Rows:
    """New rows sum_j weights[i, j] * rows_j: (k, *shape) from weights (k, m) and rows (m, *shape) (Eq. 8)."""
    weights = weights.double()
    book(weights.shape[0], weights.shape[1], rows)
    return {name: _mix_one(weights.to(value.device), value) for name, value in rows.items()}


def mix_groups(shares: Mapping[str, Tensor], groups: Mapping[str, list[str]], rows: Rows) -> tuple[Rows, Tensor]:
    """Every group of parameters mixed by its own P; and one P of all, in which a group counts by its parameters."""
    mixed: dict[str, Tensor] = {}
    for group, weights in shares.items():
        mixed |= mix(weights, part_of(rows, groups[group]))
    sizes = {group: sum(rows[name][0].numel() for name in names) for group, names in groups.items()}
    overall = torch.stack([sizes[group] / sum(sizes.values()) * weights for group, weights in shares.items()]).sum(0)
    return {name: mixed[name] for name in rows}, overall


def _mix_one(weights: Tensor, value: Tensor) -> Tensor:
    flat = value.reshape(len(value), -1)
    new = flat.new_empty(len(weights), flat.shape[1])
    for old, part in zip(flat.split(WIDTH[flat.device.type], 1), new.split(WIDTH[flat.device.type], 1), strict=True):
        part.copy_(weights @ old.double())
    return new.reshape(len(weights), *value.shape[1:])


def _as_rows(models: Models) -> Rows:
    return {"models": models} if isinstance(models, Tensor) else models


def _check_alike(a: Rows, b: Rows) -> None:
    shapes = [{name: value.shape[1:] for name, value in rows.items()} for rows in (a, b)]
    if shapes[0] != shapes[1] or not a:
        raise InputError(f"models: the two stacks must have the same names and shapes, got {shapes[0]} and {shapes[1]}")


def _centred_chunks(a: Rows, b: Rows, kind: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Both stacks relative to the mean of b's first rows, in matching pieces (m, c), (n, c) of at least `kind`.

    The pieces are written into the same two buffers: fresh memory for each would cost more than the arithmetic.
    """
    first = next(iter(a.values()))
    width, kind = WIDTH[first.device.type], torch.promote_types(kind, first.dtype)
    buffers = [first.new_empty(_length(rows), width, dtype=kind) for rows in (a, b)]
    for pieces in _chunks(a, b):
        origin = _at_least_float32(pieces[1][:CENTRE]).mean(0)
        u, v = (
            torch.sub(piece, origin, out=buffer[:, : piece.shape[1]])
            for piece, buffer in zip(pieces, buffers, strict=True)
        )
        yield u, v


def _chunks(a: Rows, b: Rows) -> Iterator[tuple[Tensor, Tensor]]:
    """Both stacks in matching pieces (m, c) and (n, c)."""
    for name, value in a.items():
        width = WIDTH[value.device.type]
        x, y = value.reshape(len(value), -1), b[name].reshape(len(b[name]), -1)
        yield from zip(x.split(width, dim=1), y.split(width, dim=1), strict=True)


def _at_least_float32(value: Tensor) -> Tensor:
    return value if value.dtype == torch.float64 else value.float()


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _name_culprit(models: Models, role: str) -> None:
    for name, value in _as_rows(models).items():
        finite = value.reshape(len(value), -1).isfinite().all(1)
        if not finite.all():
            client = int((~finite).nonzero()[0])
            raise InputError(f"{role} model of client {client}: not finite (NaN or infinity) in {name}")
