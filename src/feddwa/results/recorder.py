"""The loop that runs and records rounds, with simulated or real clients."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch

from feddwa.callbacks import NOBODY, Callbacks, Entry
from feddwa.checkpoint import Tree
from feddwa.config import RunConfig
from feddwa.engine import Stack, map_scores
from feddwa.federation import Federation
from feddwa.objects import shown
from feddwa.personal import PersonalRows
from feddwa.plugins import label
from feddwa.results import metrics, runs
from feddwa.results.early_stop import EarlyStop
from feddwa.results.provenance import made_by
from feddwa.results.summary import summary as summarised
from feddwa.results.weights import Weights
from feddwa.results.weights import read as read_weights
from feddwa.trained.card import ModelCard
from feddwa.trained.newcomers import HeldOut
from feddwa.trained.store import MODELS, TrainedModels, scored
from feddwa.trained.store import read as read_models

NAMES = ("algorithm", "dataset", "partition", "model")  # options in a summary
Observer = Callable[[dict[str, Any]], None]  # receives every line of metrics.jsonl


class Rounds(Protocol):
    """A source of rounds."""

    durable: ClassVar[bool]  # whether each checkpoint must be on disk before the next round

    @property
    def finished(self) -> int:
        """Number of finished rounds."""

    def next(self) -> Entry:
        """Run a round."""

    def last(self) -> Entry:
        """Evaluate the final models."""

    def checkpoint(self) -> tuple[Tree, Mapping[str, Any]]:
        """(tensors, facts) on which future rounds depend."""

    def trained(self) -> TrainedModels:
        """The models that `last` evaluates."""

    def spent(self) -> dict[str, Any]:
        """The privacy spent in the finished rounds, for the summary."""


@dataclass
class SimulatedRounds:
    """The rounds of a simulated federation."""

    federation: Federation
    card: ModelCard  # of its models, without accuracies
    held_out: HeldOut | None = None  # clients evaluated as newcomers at the end
    newcomers: dict[str, Any] | None = field(init=False, default=None)  # their results, after `last`
    _models: TrainedModels | None = field(init=False, default=None)  # the final models, once computed
    durable: ClassVar[bool] = False

    @property
    def finished(self) -> int:
        """Number of finished rounds."""
        return self.federation.round

    def next(self) -> Entry:
        """Run a round."""
        result = self.federation.step()
        line = metrics.round_line(result, self._test_sizes, self._validation_sizes)
        scores = (result.before, result.after)
        if line.get("evaluated") == 0:  # no list of N nulls
            before, after = (map_scores(lambda values: values[:0], each) for each in scores)
            scores = before, after
        return Entry(line, metrics.client_line(line["round"], *scores, result.cohort.ids), result)

    def last(self) -> Entry:
        """The final models; usually they were evaluated at the end of the last round."""
        self.federation.evaluate_all()
        scores, rounds, who = self.federation.scores, self.federation.round, self.federation.evaluated
        line = metrics.final_line(scores, self._test_sizes, rounds, who, self._validation_sizes)
        clients, names = metrics.client_line(rounds + 1, scores, None, None), self.federation.engine.data.client_names
        if self.held_out is not None:
            served = self.held_out.serve(self.trained())
            self.newcomers = metrics.newcomer_scores(served)
            line["newcomers"], clients["newcomers"] = metrics.newcomer_means(served), self.newcomers
        return Entry(line, clients | ({"names": list(names)} if names else {}))

    def checkpoint(self) -> tuple[Tree, Mapping[str, Any]]:
        """The federation's state."""
        return self.federation.state(), {}

    def trained(self) -> TrainedModels:
        """The personalised models after the last round, recomputed as for their evaluation."""
        if self._models is None:  # no cached_property: lockstep would wait for other runs while holding its lock
            federation = self.federation
            card = scored(self.card, federation.scores, federation.round)
            self._models = TrainedModels(card, self._stack(), federation.engine.module)
        return self._models

    def spent(self) -> dict[str, Any]:
        """The privacy that has been spent."""
        plan = self.federation.plan
        return {} if plan is None else {"privacy": plan.spent(self.federation.round)}

    def _stack(self) -> Stack:
        if self.federation.placement.stores:
            return PersonalRows.of(self.federation)
        model, buffers = self.federation.personal(self.federation.all_clients())
        return {**model, **buffers}

    def names(self, config: RunConfig) -> dict[str, Any]:
        """The first entries of a summary: names, numbers of runs and ranks behind the seconds, attackers."""
        engine = self.federation.engine
        names: dict[str, Any] = {key: shown(getattr(config, key)) for key in NAMES}
        shared = {"lockstep": engine.lockstep, "ranks": 1 if engine.ranks is None else engine.ranks.count}
        names |= {key: count for key, count in shared.items() if count > 1}
        names |= {"defence": ",".join(map(label, config.defences))} if config.defences else {}
        names |= {"clients": engine.data.clients, "seed": engine.seed}
        return names | self.federation.attackers.facts(config.attacks)

    @cached_property
    def _test_sizes(self) -> torch.Tensor:
        return self.federation.engine.data.answers("test")

    @cached_property
    def _validation_sizes(self) -> torch.Tensor | None:
        return self.federation.engine.data.validation_sizes


@dataclass(frozen=True)
class Recorded:
    """A finished run."""

    summary: dict[str, Any]
    lines: list[dict[str, Any]]  # of metrics.jsonl
    weights: Sequence[Weights]  # read from the run directory's file, if any
    trained: TrainedModels


def record(
    source: Rounds,
    rounds: int,
    names: Mapping[str, Any],
    device: torch.device,
    observe: Observer = lambda line: None,
    directory: runs.RunDirectory | None = None,
    past: Sequence[dict[str, Any]] = (),
    patience: int | None = None,
    callbacks: Callbacks = NOBODY,
) -> Recorded:
    """Run all remaining rounds; each is written, if there is a directory, and reported.

    names: the first entries of the summary; past: the lines of a resumed run; patience: see `EarlyStop`.
    """
    with callbacks.watching():
        found = _record(source, rounds, names, device, observe, directory, past, patience, callbacks)
    callbacks.end(found.summary)
    return found


def _record(
    source: Rounds,
    rounds: int,
    names: Mapping[str, Any],
    device: torch.device,
    observe: Observer,
    directory: runs.RunDirectory | None,
    past: Sequence[dict[str, Any]],
    patience: int | None,
    callbacks: Callbacks,
) -> Recorded:
    lines: list[dict[str, Any]] = list(past)
    weights: list[Weights] = []  # only where there is no directory to hold them
    stop, ends = EarlyStop(patience or math.inf), rounds
    for line in lines:
        stop.add(line)
    while len(lines) <= ends:
        if stop.due:
            ends = min(ends, source.finished)
        entry = source.next() if source.finished < ends else source.last()
        lines.append(entry.line)
        stop.add(entry.line)
        if directory is not None:
            directory.add(*entry)
        callbacks.round(entry)  # before the checkpoint: rounds that a callback has not seen are repeated after a resume
        if directory is not None:
            if entry.result is not None and directory.due(source.finished):
                directory.keep(source.finished, *source.checkpoint(), source.durable)
        elif entry.result is not None and "weights" in entry.result.info:
            matrix = entry.result.info["weights"].cpu().numpy()
            weights.append(Weights(entry.line["round"], entry.result.cohort.ids.numpy(), matrix))
        observe(entry.line)
    told = {"stopped": stop.facts(ends, rounds)} if ends < rounds else {}
    told |= source.spent()
    summary = summarised({**names, "rounds": ends, **told}, lines, device)
    trained = source.trained()
    if directory is None:
        return Recorded(summary, lines, weights, trained)
    directory.finish(lines, summary, made_by(device), trained)
    if isinstance(trained.stack, PersonalRows) and (directory.path / MODELS).exists():
        trained = read_models(directory.path)  # the federation is no longer needed
    return Recorded(summary, lines, read_weights(directory.path), trained)
