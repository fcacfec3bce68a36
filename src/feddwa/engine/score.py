"""Score models on given samples, all rows at once: the implementation of `Engine.score`, used by `evaluate`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddwa.data.federated import FederatedData, NetworkInput, answers
from feddwa.engine import keys
from feddwa.engine.fast.program import LEADING_BUCKETS, USE_BUCKETS, round_up
from feddwa.engine.fast.record import RecordedFunction
from feddwa.engine.network import Loss, Net, losses_of
from feddwa.engine.rows import take
from feddwa.engine.types import Model, Stack

SAMPLES_AT_ONCE = {"cpu": 4096, "cuda": 16384}  # over all clients; bounds the memory of activations
TOKENS = 8  # this number of tokens counts as one sample there


@dataclass(frozen=True)
class Rated:
    """Models to score, and their samples."""

    model: Stack  # (m, *shape)
    buffers: Stack  # (m, *shape) BatchNorm statistics
    index: Tensor  # (m, longest) samples of each row; meaningless beyond its size
    sizes: Tensor  # (m,) on the CPU
    outputs: bool  # whether to return the network's outputs as well


class Sums(NamedTuple):
    """Scores of each row: sums over all predictions that its samples ask for, (m,) float64 on the CPU."""

    right: Tensor  # correct predictions; NaN if outputs are not class scores
    loss: Tensor
    answers: Tensor  # number of predictions: samples, or tokens to predict
    outputs: list[list[Tensor]]  # of each row, in parts (n, ...); empty unless requested


class Scorer(Protocol):
    """The part of an engine that scores models."""

    module: nn.Module
    data: FederatedData
    dtype: torch.dtype
    scorers: dict[object, RecordedFunction]

    @property
    def loss(self) -> Loss:
        """The loss of a batch."""

    @property
    def mapped_loss(self) -> Loss:
        """The loss that is mapped over rows."""

    def products(self) -> AbstractContextManager[None]:
        """The rounding of the network's matrix products."""


def samples_at_once(data: FederatedData) -> int:
    """Number of samples scored at once, over all clients; fewer for sequences, which have activations at every token.

    In `char-lstm`, 1,020 sequences of 80 tokens at once take 1.4 GiB, 409 at once 0.5 GiB in the same time (on a CPU).
    """
    most, x = SAMPLES_AT_ONCE[data.device.type], data.x
    if not isinstance(x, Tensor) or x.dtype != torch.int64 or x.ndim != 2:
        return most
    return max(1, most // max(1, -(-x.shape[1] // TOKENS)))


def score_rows(engine: Scorer, asked: Rated) -> Sums:
    """The sums of every row, in evaluation mode (BatchNorm uses the running statistics).

    Rows are sorted by number of samples, so that those with samples left are always the first.
    """
    device = engine.data.device
    by_size = torch.argsort(asked.sizes, descending=True, stable=True)
    sizes, index = asked.sizes[by_size], asked.index[by_size.to(device)]
    model, buffers = take(asked.model, by_size), take(asked.buffers, by_size)
    sums = torch.zeros(3, len(sizes), dtype=torch.float64, device=device)  # right, loss, answers
    seen: list[list[Tensor]] = [[] for _ in sizes]
    engine.module.eval()
    score_all = _scorer(engine, tuple(model), tuple(buffers), asked.outputs)
    width = max(1, samples_at_once(engine.data) // len(sizes))
    for start in range(0, int(sizes[0]), width):
        active = int((sizes > start).sum())
        if USE_BUCKETS[device.type]:  # rows without samples left are padding
            active = min(round_up(active, LEADING_BUCKETS), len(sizes))
        samples = index[:active, start : start + width]
        real = torch.arange(start, start + samples.shape[1]) < sizes[:active].unsqueeze(1)  # not padding
        with engine.products():
            hit, losses, *outputs = score_all(
                *(value[:active] for stack in (model, buffers) for value in stack.values()), samples
            )
        wanted = answers(engine.data.y[samples].flatten(0, 1)).reshape(samples.shape).masked_fill(~real.to(device), 0)
        nothing = wanted == 0
        sums[0, :active] += hit.masked_fill(nothing, 0).sum(1)
        sums[1, :active] += (losses * wanted).masked_fill(nothing, 0).sum(1)
        sums[2, :active] += wanted.sum(1)
        for stack in outputs:  # one, or none
            for number, kept in enumerate(real.sum(1).tolist()):
                seen[number].append(stack[number, :kept])
    back = torch.argsort(by_size)
    right, loss, total = sums.cpu()[:, back]
    return Sums(right, loss, total, [seen[number] for number in back.tolist()])


def _scorer(engine: Scorer, names: tuple[str, ...], buffers: tuple[str, ...], outputs: bool) -> RecordedFunction:
    """(parameters, buffers, samples (a, b)) -> hits and mean losses of single samples: (a, b) each, in float64.

    outputs: return the network's outputs (a, b, ...) as a third result.
    """
    known = (names, buffers, outputs)
    if known not in engine.scorers:
        cut = len(names)

        @torch.no_grad()
        def everybody(*flat: Tensor) -> tuple[Tensor, ...]:
            model, state = dict(zip(names, flat[:cut], strict=True)), dict(zip(buffers, flat[cut:-1], strict=True))
            x, y = engine.data.batch(flat[-1], engine.dtype)
            mapped: Callable[..., Any] = torch.vmap(partial(score, engine))
            found: Sequence[Tensor] = mapped(model, state, x, y)
            return tuple(found) if outputs else tuple(found[:2])

        engine.scorers[known] = RecordedFunction(everybody)
    return engine.scorers[known]


def score(engine: Scorer, params: Model, buffers: Model, x: NetworkInput, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hits and mean losses of one client's model on its samples x (b, *shape), y (b, ...), and its outputs.

    Hits and losses: (b,) each, in float64; outputs: (b, ...).
    """
    outputs = Net(engine.module, engine.loss, buffers, keys.key(0, "unused"))(params, x)
    losses = losses_of(engine.mapped_loss, outputs, y)
    return hits(engine.loss, outputs, y), losses.double(), outputs


def hits(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """(b,) float64: number of correct predictions for each sample, NaN if outputs are not class scores.

    Outputs are scores (b, C) for labels (b,), or (b, L, V) for tokens (b, L), whose PADDING is never correct. For
    tokens, torch's cross-entropy takes scores (b, V, L).
    """
    scores = outputs.movedim(1, -1) if loss is F.cross_entropy and outputs.ndim > 1 else outputs
    scored = scores.ndim == y.ndim + 1 and scores.shape[:-1] == y.shape and scores.shape[-1] > 1
    if not scored or y.ndim > 2 or y.is_floating_point():
        return torch.full((len(outputs),), torch.nan, dtype=torch.float64, device=outputs.device)
    right = (scores.argmax(-1) == y) & ~scores.isnan().any(-1)  # NaN is never correct, although argmax returns it
    return (right if y.ndim == 1 else right.sum(1)).double()
