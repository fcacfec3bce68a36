"""Every client's model on its own samples, all at once."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from feddwa.engine import keys
from feddwa.engine.engine import Engine
from feddwa.engine.fast.record import RecordedFunction
from feddwa.engine.network import Net
from feddwa.engine.rows import take
from feddwa.engine.types import Model, Stack

SAMPLES_AT_ONCE = {"cpu": 4096, "cuda": 16384}  # over all clients: bounds the memory of activations


class Scores(NamedTuple):
    """How well each model does on its client's samples."""

    accuracy: Tensor  # (m,) float64, share of right answers; NaN where outputs are not class scores
    loss: Tensor  # (m,) float64, mean


def evaluate(engine: Engine, model: Stack, buffers: Stack, ids: Tensor, split: str = "test") -> Scores:
    """Scores of row i on the samples of client ids[i], in evaluation mode (BatchNorm uses the running statistics)."""
    own, device = engine.data.splits[split], engine.data.device
    by_size = torch.argsort(own.sizes[ids], descending=True, stable=True)
    sizes, place = own.sizes[ids][by_size], by_size.to(device)
    index = own.index[ids.to(device)][place]  # (m, longest)
    model, buffers = take(model, by_size), take(buffers, by_size)
    right, loss = (torch.zeros(len(ids), dtype=torch.float64, device=device) for _ in range(2))
    engine.module.eval()
    score_all = _scorer(engine, tuple(model), tuple(buffers))
    width = max(1, SAMPLES_AT_ONCE[device.type] // len(ids))
    for start in range(0, int(sizes[0]), width):
        active = int((sizes > start).sum())
        samples = index[:active, start : start + width]
        real = torch.arange(start, start + samples.shape[1]) < sizes[:active].unsqueeze(1)  # not padding
        with engine.products():
            found, losses = score_all(
                *(value[:active] for stack in (model, buffers) for value in stack.values()), samples
            )
        right[:active] += found.masked_fill(~real.to(device), 0).sum(1)
        loss[:active] += losses.masked_fill(~real.to(device), 0).sum(1)
    back, total = torch.argsort(by_size), sizes.to(torch.float64)
    return Scores((right.cpu() / total)[back], (loss.cpu() / total)[back])


def _scorer(engine: Engine, names: tuple[str, ...], buffers: tuple[str, ...]) -> RecordedFunction:
    """(parameters, buffers, samples (a, b)) -> hits and losses of single samples: (a, b) each, in float64."""
    known = (names, buffers)
    if known not in engine.scorers:
        cut = len(names)

        @torch.no_grad()
        def everybody(*flat: Tensor) -> tuple[Tensor, Tensor]:
            model, state = dict(zip(names, flat[:cut], strict=True)), dict(zip(buffers, flat[cut:-1], strict=True))
            x, y = engine.data.batch(flat[-1], engine.dtype)
            return torch.vmap(partial(score, engine))(model, state, x, y)

        engine.scorers[known] = RecordedFunction(everybody)
    return engine.scorers[known]


def score(engine: Engine, params: Model, buffers: Model, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Hits and losses of one client's model on its samples x (b, *shape), y (b, ...): (b,) each, in float64."""
    outputs = Net(engine.module, engine.loss, buffers, keys.key(0, "unused"))(params, x)
    loss = engine.mapped_loss
    losses = torch.vmap(lambda output, target: loss(output.unsqueeze(0), target.unsqueeze(0)))(outputs, y)
    return hits(outputs, y), losses.double()


def hits(outputs: Tensor, y: Tensor) -> Tensor:
    """(b,) float64: 1 where the answer is right, NaN where outputs are not class scores."""
    if outputs.ndim != 2 or y.is_floating_point():
        return torch.full((len(outputs),), torch.nan, dtype=torch.float64, device=outputs.device)
    right = (outputs.argmax(1) == y) & ~outputs.isnan().any(1)  # NaN is no answer, though argmax finds one
    return right.double()
