"""A model for a newcomer: a client that was not in the run and has some data."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddwa import build, fit
from feddwa.algorithms.newcomer import Newcomer
from feddwa.config import RunConfig
from feddwa.data.dataset import Dataset, hold_out, hold_out_last
from feddwa.data.partition import Partition
from feddwa.data.task import Task
from feddwa.engine import Engine, Memory, Scores, Stack, Trainer
from feddwa.engine.rows import repeat
from feddwa.errors import require
from feddwa.results import runs
from feddwa.storage import write_whole
from feddwa.trained import export, store
from feddwa.trained.card import finite, percent
from feddwa.trained.newcomers import engine_of, others_of, tested, trainer_of
from feddwa.trained.samples import Samples
from feddwa.trained.store import TrainedModels

FACTS = "adapt.json"


@dataclass(frozen=True)
class Adapted:
    """A newcomer's model and its gain, on the part of its data that no training has used."""

    trained: TrainedModels  # one client
    how: str
    weights: dict[str, float]  # client -> its share in the newcomer's initial model, largest first
    epochs: int
    scores: dict[str, Scores]  # (1,) each: "alone", "mean" and "adapted"

    def facts(self) -> dict[str, Any]:
        """The facts as JSON values."""
        results = {
            name: {"accuracy": percent(own.accuracy.tolist())[0], "loss": finite(own.loss.tolist())[0]}
            for name, own in self.scores.items()
        }
        card = self.trained.card
        sizes = {"train_samples": card.train_samples[0], "held_out": card.test_samples[0]}
        return {"how": self.how, "epochs": self.epochs, **sizes, "results": results, "weights": self.weights}

    def write(self, folder: Path) -> Path:
        """Write the model, as in a run directory and exported, and the facts; returns the exported file."""
        runs.claim(folder)
        store.write(folder, self.trained)
        name = self.trained.card.clients[0]
        exported = folder / f"{export.plain_name(name) or 'newcomer'}.safetensors"
        export.export(self.trained, name, exported)
        write_whole(folder / FACTS, json.dumps(self.facts(), indent=1) + "\n")
        return exported


def adapt(
    config: RunConfig, trained: TrainedModels, samples: Samples, name: str, epochs: int = 10, held_out: float = 0.2
) -> Adapted:
    """A model for the newcomer `name` from the models of a run with this configuration.

    epochs: of the newcomer's training data, for the adapted model and the one trained alone. held_out: share of the
    samples, stratified by class, used for the final accuracies alone.
    """
    require(epochs >= 1, "--epochs", epochs, "at least 1")
    require(0 < held_out < 1, "--held-out", held_out, "above 0 and below 1")
    require(samples.y is not None, "--data", name, "samples with labels, for training and testing")
    algorithm, task = config.make_algorithm(), _task(trained, samples, name, held_out, config.in_time)
    engine, trainer = _training(config, trained, task)
    initial = _initial(config, task, engine)
    alone = trainer.sgd(initial[0], initial[1], epochs=epochs, purpose="newcomer")
    others = others_of(trained, engine)
    mean = others.mixed(others.by_size())
    new: Newcomer = algorithm.newcomer(trainer, others, epochs)
    made = {"alone": alone, "mean": mean, "adapted": (new.model, new.memory)}
    scores = {which: tested(trainer, *own) for which, own in made.items()}
    card = store.scored(store.card_of(config, task.dataset, engine), scores["adapted"], 0)
    card = dataclasses.replace(
        card,
        clients=(name,),
        form=trained.card.form,
        inputs=trained.card.inputs,
        evaluated=f"{new.how}, on {held_out:.0%} of its samples",
    )
    stack = {**engine.complete(new.model), **new.memory["buffers"]}
    return Adapted(TrainedModels(card, stack, engine.module), new.how, _named(trained, new.weights), epochs, scores)


def _task(trained: TrainedModels, samples: Samples, name: str, held_out: float, in_time: bool) -> Task:
    """The newcomer's data as those of the only client, with a share of them, or the last ones, for testing."""
    card, y = trained.card, samples.y
    assert y is not None
    require(len(y) >= 5, "--data", f"{len(y)} samples", "at least 5: four to train on, one to test")
    alone = np.zeros(len(y), dtype=np.int64)
    strata = y if card.classes and y.ndim == 1 else alone
    order, cut = hold_out_last(alone, share=held_out) if in_time else hold_out(alone, strata, held_out)
    named: dict[str, Any] = {"mean": card.mean, "std": card.std, "class_names": card.class_names}
    dataset = Dataset(name, samples.x[order], y[order], cut, card.classes, **named)
    return Task(dataset, Partition([np.arange(cut)], [np.arange(cut, len(y))], client_names=(name,)))


def _training(config: RunConfig, trained: TrainedModels, task: Task) -> tuple[Engine, Trainer]:
    """The engine of the newcomer's data and its trainer."""
    engine = engine_of(config, trained.as_trained(0), task, getattr(torch, trained.card.dtype))
    engine = build.tried(config, engine)
    fit.check_single_samples(engine)
    return engine, trainer_of(engine, 0, (config.rounds or 0) + 1)


def _initial(config: RunConfig, task: Task, engine: Engine) -> tuple[Stack, Memory]:
    """The initial model (1, *shape) of every client of the run."""
    start = dataclasses.replace(engine, module=build.make_network(config, task.dataset))
    model, buffers = start.initial()
    return repeat(model, 1), {"buffers": repeat(buffers, 1)}


def _named(trained: TrainedModels, weights: Tensor) -> dict[str, float]:
    """Client -> weight, those above zero, the largest first."""
    pairs = sorted(zip(weights.tolist(), trained.card.clients, strict=True), key=lambda pair: -pair[0])
    return {name: weight for weight, name in pairs if weight > 0 and math.isfinite(weight)}
