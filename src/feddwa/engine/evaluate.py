"""Score every client's model on its own samples, all at once: accuracy, loss, and a run's further metrics."""

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
PARTS = ("validation", "central", "triggered")  # scores on other samples than the client's test samples


class MetricError(InputError):
    """A metric that cannot be computed: its name, the client, and the reason."""


class Scores(NamedTuple):
    """Scores of each model on its client's test samples and, optionally, on others.

    For token targets, accuracy and loss are means over all tokens to predict, each counted once.
    """

    accuracy: Tensor  # (m,) float64, share of correct predictions; NaN if outputs are not class scores
    loss: Tensor  # (m,) float64, mean
    metrics: Mapping[str, Tensor] = MappingProxyType({})  # name -> (m,) float64; NaN where undefined
    validation: "Scores | None" = None  # the same on held-out training samples; NaN for a client without any
    central: "Scores | None" = None  # the same on the test samples of all clients
    triggered: "Scores | None" = None  # the same on test samples with a trigger, with its class as target

    def named(self) -> dict[str, Tensor]:
        """Name -> (m,) of all scores; those on other samples are "validation.accuracy", "central.loss" and so on."""
        found = {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}
        for part in PARTS:
            own: Scores | None = getattr(self, part)
            found |= {} if own is None else {f"{part}.{name}": value for name, value in own.named().items()}
        return found

    @classmethod
    def of(cls, named: Mapping[str, Tensor]) -> "Scores":
        """The inverse of `named`."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in named.items():
            part, _, own = name.rpartition(".")
            parts.setdefault(part, {})[own] = value
        mine = parts.pop("")
        metrics = {name: value for name, value in mine.items() if name not in ("accuracy", "loss")}
        return cls(mine["accuracy"], mine["loss"], metrics, **{part: cls.of(own) for part, own in parts.items()})


def score_names(metrics: Iterable[str], parts: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of the scores of a run with these metrics and parts of PARTS, in the order of `Scores.named`."""
    own = ("accuracy", "loss", *metrics)
    return (*own, *(f"{part}.{name}" for part in parts for name in own))


def map_scores(function: Callable[..., Tensor], *scores: Scores) -> Scores:
    """`function` applied to each kind of score that the evaluations share."""
    each = [values.named() for values in scores]
    shared = [name for name in each[0] if all(name in values for values in each)]
    return Scores.of({name: function(*(values[name] for values in each)) for name in shared})


def unknown(clients: int, names: Iterable[str]) -> Scores:
    """Scores of clients that were not evaluated: NaN."""
    return Scores.of({name: torch.full((clients,), math.nan, dtype=torch.float64) for name in names})


def spread(scores: Scores, places: Tensor, clients: int) -> Scores:
    """Scores (k,) at `places` (k,) among `clients`; NaN elsewhere."""
    nobody = unknown(clients, scores.named())
    return map_scores(lambda everybody, own: everybody.index_copy(0, places, own), nobody, scores)


def evaluate(
    engine: Engine, model: Stack, buffers: Stack, ids: Tensor, split: str = "test", metrics: Metrics = NOTHING
) -> Scores:
    """Scores of row i on the samples of client ids[i], in evaluation mode (BatchNorm uses the running statistics)."""
    own = engine.data.splits[split]
    index, sizes = own.index[ids.to(engine.data.device)], own.sizes[ids]
    found = engine.score(Rated(model, buffers, index, sizes, bool(metrics)))
    return Scores(
        found.right / found.answers, found.loss / found.answers, measured(engine, metrics, found.outputs, ids, split)
    )


def measured(
    engine: Engine, metrics: Metrics, outputs: Sequence[Sequence[Tensor]], ids: Tensor, split: str = "test"
) -> dict[str, Tensor]:
    """Metric -> (m,) float64: for row i from all its outputs (n, ...), in parts, and the targets of client ids[i].

    Metrics receive CPU tensors. NaN marks a metric that is undefined for a client.
    """
    if not metrics:
        return {}
    found: dict[str, list[float]] = {name: [] for name in metrics}
    own = engine.data.splits[split]
    for client, parts in zip(ids.tolist(), outputs, strict=True):
        if not own.sizes[client]:
            found = {name: [*values, math.nan] for name, values in found.items()}
            continue
        given = torch.cat(list(parts)).cpu()
        given = given.float() if given.dtype == torch.bfloat16 else given  # NumPy has no bfloat16
        targets = engine.data.y[own.index[client, : own.sizes[client]]].cpu()
        for name, metric in metrics.items():
            found[name].append(_measure(name, metric, given, targets, engine.data.client_name(client)))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def try_metrics(metrics: Metrics, outputs: Tensor, targets: Tensor, client: str) -> None:
    """Call every metric once on outputs (n, ...) of an untrained network; MetricError names the shapes."""
    for name, metric in metrics.items():
        try:
            _measure(name, metric, outputs.cpu(), targets.cpu(), client)
        except MetricError as error:
            shapes = f"outputs {tuple(outputs.shape)} and {targets.dtype} targets {tuple(targets.shape)}"
            raise InputError(f"{error} (given {shapes})") from error.__cause__


def _measure(name: str, metric: Metric, outputs: Tensor, targets: Tensor, client: str) -> float:
    """One metric of one client; any exception becomes a one-line error."""
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
