"""Every client's model on its own samples, all at once: accuracy, loss, and the metrics that a run asks for."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from feddwa.data.files import first_line
from feddwa.engine.engine import Engine, Metric
from feddwa.engine.score import Rated
from feddwa.engine.types import Stack
from feddwa.errors import InputError

Metrics = Mapping[str, Metric]
NOTHING: Metrics = MappingProxyType({})
VALIDATION = "validation."  # begins the names of scores on held-out samples


class MetricError(InputError):
    """A metric that cannot be computed: which, of whom, and why."""


class Scores(NamedTuple):
    """How well each model does on its client's test samples and, where some are held out, on those."""

    accuracy: Tensor  # (m,) float64, share of right answers; NaN where outputs are not class scores
    loss: Tensor  # (m,) float64, mean
    metrics: Mapping[str, Tensor] = MappingProxyType({})  # name -> (m,) float64; NaN where it is not defined
    validation: "Scores | None" = None  # the same on held-out training samples; NaN of a client that has none

    def named(self) -> dict[str, Tensor]:
        """Name -> (m,) of all of them; those on held-out samples are "validation.accuracy" and so on."""
        held_out = {} if self.validation is None else self.validation.named()
        validation = {f"{VALIDATION}{name}": value for name, value in held_out.items()}
        return {"accuracy": self.accuracy, "loss": self.loss, **self.metrics, **validation}

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> "Scores":
        """The reverse of `named`."""
        mine = {name: value for name, value in named.items() if not name.startswith(VALIDATION)}
        held_out = {name.removeprefix(VALIDATION): value for name, value in named.items() if name not in mine}
        metrics = {name: value for name, value in mine.items() if name not in ("accuracy", "loss")}
        return cls(mine["accuracy"], mine["loss"], metrics, cls.of(held_out) if held_out else None)


def score_names(metrics: Iterable[str], validation: bool) -> tuple[str, ...]:
    """The names of the scores of a run with these metrics, in the order of `Scores.named`."""
    own = ("accuracy", "loss", *metrics)
    return (*own, *(f"{VALIDATION}{name}" for name in own)) if validation else own


def map_scores(function: Callable[..., Tensor], *scores: Scores) -> Scores:
    """`function` of each kind of score of one or several evaluations, which have the same kinds."""
    each = [values.named() for values in scores]
    return Scores.of({name: function(*(values[name] for values in each)) for name in each[0]})


def evaluate(
    engine: Engine, model: Stack, buffers: Stack, ids: Tensor, split: str = "test", metrics: Metrics = NOTHING
) -> Scores:
    """Scores of row i on the samples of client ids[i], in evaluation mode (BatchNorm uses the running statistics)."""
    own = engine.data.splits[split]
    index, sizes = own.index[ids.to(engine.data.device)], own.sizes[ids]
    found = engine.score(Rated(model, buffers, index, sizes, bool(metrics)))
    total = sizes.to(torch.float64)
    return Scores(found.right / total, found.loss / total, measured(engine, metrics, found.outputs, ids, split))


def measured(
    engine: Engine, metrics: Metrics, outputs: Sequence[Sequence[Tensor]], ids: Tensor, split: str = "test"
) -> dict[str, Tensor]:
    """Metric -> (m,) float64: of row i from all its outputs (n, ...), in parts, and the targets of client ids[i].

    Metrics are given tensors on the CPU. NaN says that a metric is not defined for a client.
    """
    found: dict[str, list[float]] = {name: [] for name in metrics}
    own = engine.data.splits[split]
    for client, parts in zip(ids.tolist(), outputs, strict=True):
        if not own.sizes[client]:
            found = {name: [*values, math.nan] for name, values in found.items()}
            continue
        if metrics:
            given = torch.cat(list(parts)).cpu()
            given = given.float() if given.dtype == torch.bfloat16 else given  # which NumPy does not have
            targets = engine.data.y[own.index[client, : own.sizes[client]]].cpu()
        for name, metric in metrics.items():
            found[name].append(_measure(name, metric, given, targets, engine.data.client_name(client)))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def try_metrics(metrics: Metrics, outputs: Tensor, targets: Tensor, client: str) -> None:
    """Every metric once, on outputs (n, ...) of an untrained network; MetricError names the shapes."""
    for name, metric in metrics.items():
        try:
            _measure(name, metric, outputs.cpu(), targets.cpu(), client)
        except MetricError as error:
            shapes = f"outputs {tuple(outputs.shape)} and {targets.dtype} targets {tuple(targets.shape)}"
            raise InputError(f"{error} (given {shapes})") from error.__cause__


def _measure(name: str, metric: Metric, outputs: Tensor, targets: Tensor, client: str) -> float:
    """One metric of one client; whatever its code raises, in one line."""
    try:
        found = metric(outputs, targets)
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise MetricError(f"metric {name}: failed for client {client}: {why}") from error
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError):
        what = f"{type(found).__name__} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise MetricError(f"metric {name}: gave a {what} for client {client}, must give a number") from None
