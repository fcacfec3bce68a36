"""Steps that leave models unchanged and accumulate sums over a client's samples, batch by batch."""

from dataclasses import dataclass

import torch

from feddwa.data.federated import Batch
from feddwa.engine.engine import Engine
from feddwa.engine.network import Client, FunctionalClient, Statistic, descend
from feddwa.engine.rows import count, repeat, row, row_of_parts
from feddwa.engine.types import Memory, Model, Parts, Stack, StepState


def add_gradient(client: Client, state: StepState, batch: Batch, model: Model) -> StepState:
    """Add the gradients of a batch's samples to the total."""
    return {"total": descend(state["total"], client.gradient(model, batch), -float(len(batch.y)))}


@dataclass(frozen=True)
class AddStatistic:
    """Add a statistic of a batch to the total."""

    statistic: Statistic

    def __call__(self, client: Client, state: StepState, batch: Batch, model: Model, **constants: Model) -> StepState:
        """One batch."""
        found = client.evaluate(model, batch, self.statistic, **constants)
        return {"total": Model({name: total + found[name] for name, total in state["total"].items()})}


def no_total(engine: Engine, statistic: Statistic, memory: Memory, fixed: Parts) -> Stack:
    """name -> (m, *shape) float64: zeros in the shapes of a statistic, from calling it on one sample of one model."""
    sample = engine.data.splits["train"].index[0, :1]
    first = row_of_parts(fixed, 0)
    client = FunctionalClient(engine.module, engine.loss, row(memory["buffers"], 0), sample[0])
    found = client.evaluate(first.pop("model"), engine.data.batch(sample, engine.dtype), statistic, **first)
    zeros = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in found.items()}
    return repeat(zeros, count(fixed["model"]))
