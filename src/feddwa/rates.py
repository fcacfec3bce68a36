"""`--lr auto`: a short search for a rate of local SGD on the training data of the first client.

A fifth of its training samples is held out. A few rates are tried from the same initial network, each for the same
number of steps on the same batches. The rate with the lowest loss on the held-out fifth is used by every algorithm. The
search uses no test data. The same seed gives the same rate.
"""

import copy
import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from feddwa.build import completed, decisions, make_engine
from feddwa.config import RunConfig
from feddwa.data.task import Task
from feddwa.engine import Engine, Model, keys, torch_optimizers
from feddwa.engine.network import call, task_loss, trainable
from feddwa.engine.sequential import PlainClient
from feddwa.errors import InputError
from feddwa.fit import check_single_samples
from feddwa.options.training import TrainingOptions
from feddwa.storage import write_whole

Config = TypeVar("Config", bound=RunConfig)
log = logging.getLogger(__name__)

RATES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
STEPS, EPOCHS = 100, 10  # limits per rate, whichever is reached first
FEWEST = 10  # minimum number of training samples for a search
MOST_HELD = 1000  # maximum number of held-out samples
FILE = "rates.json"  # in the run directory


@dataclass(frozen=True)
class Search:
    """The result of a search."""

    rate: float
    losses: Mapping[float, float]  # rate -> mean loss on the held-out samples; infinite where training diverged
    client: str  # the client whose data were used
    steps: int  # of each rate

    def in_words(self) -> str:
        """One line for people."""
        tried = ", ".join(f"{rate:g}: {loss:.3g}" for rate, loss in self.losses.items())
        where = f"held-out training loss of client {self.client} after {self.steps} steps"
        return f"--lr auto: {self.rate:g} ({where}: {tried})"


def decided(given: Config, task: Task) -> tuple[Config, list[str]]:
    """A configuration with all values from the data filled in, and a line of text for each open or searched value."""
    known = completed(given, task.dataset)
    lines = decisions(given, known, task)
    if known.lr == "auto":
        lines.append(search(known, task).in_words())
    return chosen(known, task), lines


def logged(given: Config, task: Task) -> Config:
    """The configuration of `decided`; logs changes to the data and the values derived from them."""
    known, lines = decided(given, task)
    for level, texts in ((logging.WARNING, task.notes), (logging.INFO, lines)):
        for text in texts:
            log.log(level, "%s", text)
    return known


def chosen(config: Config, task: Task) -> Config:
    """A completed configuration with "auto" replaced by the rate that a search finds."""
    return dataclasses.replace(config, lr=search(config, task).rate) if config.lr == "auto" else config


def search(config: RunConfig, task: Task) -> Search:
    """The search of a completed configuration; cached per task and network."""
    found: Search = task.keep(_name(config, task), lambda: _search(config, task))
    return found


def write(path: Path, config: RunConfig, task: Task) -> None:
    """Write the tried losses into a run directory if the configuration's rate comes from a search."""
    found: Search | None = task.kept(_name(config, task))
    if found is not None and found.rate == config.lr:
        losses = {f"{rate:g}": loss if math.isfinite(loss) else None for rate, loss in found.losses.items()}
        content = {"rate": found.rate, "losses": losses, "client": found.client, "steps": found.steps}
        write_whole(path / FILE, json.dumps(content) + "\n")


def _name(config: RunConfig, task: Task) -> object:
    """The cache key of a search."""
    network = (
        config.model,
        config.model_arg,
        config.adapter_arg,
        config.loss,
        config.dtype,
        config.batch_size,
        config.seed,
    )
    recipe = [getattr(config, field.name) for field in dataclasses.fields(TrainingOptions)]
    return "rate", network, *recipe, config.validation, task.partition.train[0].tobytes()


def _search(config: RunConfig, task: Task) -> Search:
    client, rows, labels = task.partition.client_name(0), task.partition.train[0], task.dataset.y
    if len(rows) < FEWEST or len(np.unique(labels[rows], axis=0)) < 2:
        found = f"{len(rows)} training samples" if len(rows) < FEWEST else "training samples of one class alone"
        raise InputError(
            f"--lr auto: client {client}, the first, has {found}; at least {FEWEST} of two classes are needed to try "
            "rates on: give --lr a number"
        )
    engine = make_engine(dataclasses.replace(config, algorithm="local", param=(), lr=0.0), task)
    check_single_samples(engine)
    split = engine.data.splits["train"]
    key = keys.key(config.seed, "rate")
    order = np.random.default_rng(keys.seed_of(key)).permutation(int(split.sizes[0]))
    own = split.index[0][torch.from_numpy(order).to(split.index.device)]
    held, train = own[: len(own) // 5][:MOST_HELD], own[len(own) // 5 :]
    batches = _batches(train, engine.settings.batch_size)
    losses = {rate: _loss_after(engine, rate, batches, held, key) for rate in RATES}
    best = min(losses, key=losses.__getitem__)
    if not math.isfinite(losses[best]):
        raise InputError(
            f"--lr auto: no rate from {RATES[0]} to {RATES[-1]} gives a finite loss on client {client}; look at the "
            "data with feddwa doctor, or give --lr a number"
        )
    return Search(best, losses, client, len(batches))


def _batches(rows: Tensor, width: int) -> list[Tensor]:
    """The batches of a search: whole batches in the same order every epoch; a smaller dataset is one batch."""
    epoch = [batch for batch in rows.split(width) if len(batch) == min(width, len(rows))]
    return (epoch * EPOCHS)[:STEPS]


def _loss_after(engine: Engine, rate: float, batches: list[Tensor], held: Tensor, key: Tensor) -> float:
    """The mean loss on the rows `held` after a step on each batch, by the plain loop; inf where it diverged."""
    module = copy.deepcopy(engine.module).train()
    parameters = trainable(module)
    optimiser = torch_optimizers.make(engine.settings.optimizer, parameters, rate)
    for step, rows in enumerate(batches):
        optimiser.zero_grad()
        client = PlainClient(module, engine.loss, keys.fold(key, step))
        client.backward(Model(parameters), engine.data.batch(rows, engine.dtype), task_loss)
        if clip := engine.settings.optimizer.clip:
            nn.utils.clip_grad_norm_(parameters.values(), float(clip))
        optimiser.step()
    module.eval()
    with torch.no_grad():
        x, y = engine.data.batch(held, engine.dtype)
        loss = float(engine.loss(call(module, {}, x), y))
    return loss if math.isfinite(loss) else math.inf
