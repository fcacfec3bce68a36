"""Newcomers: clients that were not in a run. Their trainers, and the protocol of --holdout-clients.

Held-out clients never train in the run. At its end each gets a model by the method's rule (`Algorithm.newcomer`), which
is tested on its test data after 0, 1 and 5 epochs of its training data in total. Epochs that the rule does not use are
plain local training. For comparison, a model is trained alone, from the initial one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import nn

from feddwa import build, fit
from feddwa.algorithms import Algorithm
from feddwa.algorithms.newcomer import Newcomer, Others
from feddwa.config import RunConfig
from feddwa.data.task import Task
from feddwa.engine import (
    Engine,
    Memory,
    Scores,
    SequentialTrainer,
    Stack,
    Trainer,
    evaluate,
    evaluate_one_by_one,
    map_scores,
)
from feddwa.engine.network import trainable
from feddwa.engine.rate_schedule import CONSTANT
from feddwa.engine.rows import only, repeat
from feddwa.recipe import settings_of
from feddwa.trained.store import TrainedModels

EPOCHS = (0, 1, 5)  # of its training data, after which a held-out client's model is tested
ALONE = "alone"


class Served(NamedTuple):
    """Scores of the held-out clients of a run."""

    names: tuple[str, ...]  # (h,)
    scores: Mapping[str, Scores]  # "0", "1", "5": epochs; ALONE: trained alone for the most epochs -> (h,)
    how: tuple[str, ...]  # (h,) description of the rule, for the most epochs


@dataclass(frozen=True)
class HeldOut:
    """The held-out clients of a run, evaluated at its end."""

    algorithm: Algorithm
    engine: Engine  # with their data and the run's initial network
    round: int  # keys their draws: the one after the run's last

    @classmethod
    def of(cls, config: RunConfig, engine: Engine, task: Task) -> Self | None:
        """The held-out clients of a run with this engine; None if there are none."""
        if task.newcomers is None:
            return None
        own = engine_of(config, engine.module, task.newcomers, engine.dtype)
        programs = task.newcomers.keep(("programs", build.program_kind(config, own)), dict)
        sequential, tensor_cores = engine.sequential, engine.tensor_cores
        own = dataclasses.replace(own, programs=programs, sequential=sequential, tensor_cores=tensor_cores)
        fit.check_single_samples(own)
        fit.check_targets_left(own)
        return cls(config.make_algorithm(), own, (config.rounds or 0) + 1)

    def serve(self, trained: TrainedModels) -> Served:
        """Make and score a model for each of them from the run's models."""
        others, data = others_of(trained, self.engine), self.engine.data
        each = [self._serve(client, others) for client in range(data.clients)]
        scores = {
            when: map_scores(lambda *blocks: torch.cat(blocks), *(own[when] for own, _ in each)) for when in each[0][0]
        }
        names = tuple(data.client_name(client) for client in range(data.clients))
        return Served(names, scores, tuple(how for _, how in each))

    def _serve(self, client: int, others: Others) -> tuple[dict[str, Scores], str]:
        """One client's scores (1,), and the rule that was used."""
        trainer = trainer_of(self.engine, client, self.round)
        found = {epochs: self._after(trainer, others, epochs) for epochs in EPOCHS}
        initial, buffers = self.engine.initial()
        start, statistics = repeat(initial, 1), {"buffers": repeat(buffers, 1)}
        alone = trainer.sgd(start, statistics, epochs=EPOCHS[-1], purpose="newcomer")
        scores = {str(epochs): tested(trainer, own.model, own.memory) for epochs, own in found.items()}
        return {**scores, ALONE: tested(trainer, *alone)}, found[EPOCHS[-1]].how

    def _after(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """A newcomer's model after `epochs` epochs in total."""
        found = self.algorithm.newcomer(trainer, others, epochs)
        left = epochs - found.spent
        if left <= 0:
            return found
        model, memory = trainer.sgd(found.model, found.memory, epochs=left, purpose="newcomer")
        return found._replace(model=model, memory=memory, how=f"{found.how}, fine-tuned", spent=epochs)


def engine_of(config: RunConfig, module: nn.Module, task: Task, dtype: torch.dtype) -> Engine:
    """The engine of newcomers' data, with a run's rate and batch size; uses all of their training data.

    module: the run's network, for its frozen parameters.
    """
    settings = dataclasses.replace(
        settings_of(config), keep_optimizer=False, schedule=CONSTANT, local_steps=None, drop_last=False
    )
    loss, device = build.loss_of(config, task.dataset), build.choose_device(config.device)
    return build.engine_on(Algorithm(), module, task, device, settings, config.seed, dtype, loss)


def trainer_of(engine: Engine, client: int, round: int) -> Trainer:
    """The trainer of one newcomer, with one row."""
    return (SequentialTrainer if engine.sequential else Trainer)(engine, torch.tensor([client]), round)


def others_of(trained: TrainedModels, engine: Engine) -> Others:
    """The clients behind a run's models."""
    parameters, buffers = trained.parts()
    device = engine.data.device
    models = {name: value.to(device) for name, value in only(parameters, trainable(engine.module)).items()}
    sizes = torch.tensor(trained.card.train_samples)
    return Others(models, {name: value.to(device) for name, value in buffers.items()}, sizes)


def tested(trainer: Trainer, model: Stack, memory: Memory) -> Scores:
    """Scores (1,) of a newcomer's model on its test data."""
    score = evaluate_one_by_one if trainer.engine.sequential else evaluate
    return score(trainer.engine, model, memory["buffers"], trainer.ids)
