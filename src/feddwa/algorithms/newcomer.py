"""A model for a client that was not in the run, made of the models of those that were and of its own training data."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from feddwa.engine import Memory, Stack, Trainer
from feddwa.engine.rows import count, take
from feddwa.errors import counted
from feddwa.mixing import dwa_weights, mix, squared_distances


class Others(NamedTuple):
    """The clients of a finished run, with their models as they were evaluated."""

    models: Stack  # (N, *shape) trainable parameters
    buffers: Stack  # (N, *shape) BatchNorm statistics
    sizes: Tensor  # (N,) training samples

    def by_size(self) -> Tensor:
        """(N,) weights of the mean by data size, which is FedAvg's."""
        return self.sizes.double() / self.sizes.sum()

    def mixed(self, weights: Tensor) -> tuple[Stack, Memory]:
        """One model (1, *shape) and its BatchNorm statistics from the clients' by weights (N,).

        A client of weight 0 has no part in it, also if its model has diverged: 0 times infinity is no number.
        """
        chosen = weights.nonzero().flatten().cpu()
        models, buffers = take(self.models, chosen), take(self.buffers, chosen)
        shares = weights[chosen].double().unsqueeze(0)
        moving = {name: value for name, value in buffers.items() if value.is_floating_point()}
        counts = {name: value[:1] for name, value in buffers.items() if name not in moving}
        statistics = {**mix(shares, moving), **counts}
        return mix(shares, models), {"buffers": {name: statistics[name] for name in buffers}}

    def losses(self, trainer: Trainer) -> Tensor:
        """(N,) loss of every client's model on the newcomer's training samples, which none of them has seen."""
        rows = dataclasses.replace(trainer, ids=trainer.ids.expand(count(self.models)))
        return rows.losses(self.models, {"buffers": self.buffers}, "train")

    def same_model(self, client: int) -> Tensor:
        """(N,) equal weights of the clients whose parameters are those of `client`: the members of its cluster."""
        one = {name: value[client : client + 1] for name, value in self.models.items()}
        same = (squared_distances(one, self.models)[0] == 0).double()
        return same / same.sum()


class Newcomer(NamedTuple):
    """What a newcomer gets."""

    model: Stack  # (1, *shape)
    memory: Memory  # (1, ...) with its BatchNorm statistics
    weights: Tensor  # (N,) of the clients' models in the one that it started from
    how: str  # in words, without a full stop
    spent: int  # epochs of its training data that this took, of those that it was given


def fine_tuned(trainer: Trainer, others: Others, epochs: int) -> Newcomer:
    """SGD from the mean model or from one client's, whichever has the lowest loss on the newcomer's training data.

    No model has seen these data yet, so that the choice is as good as one on validation data. Without an epoch the
    start stays as it is.
    """
    losses, mean = others.losses(trainer), others.by_size()
    start, memory = others.mixed(mean)
    best = int(losses.nan_to_num(torch.inf).argmin())
    if not trainer.losses(start, memory, "train")[0] <= losses[best]:  # of a client that diverged the mean has no loss
        weights = torch.nn.functional.one_hot(torch.tensor(best), len(losses)).double()
        return tuned(trainer, others, weights, epochs, "fine-tuned from the client's model that fits its data best")
    return tuned(trainer, others, mean, epochs, "fine-tuned from the mean of all clients' models")


def nearest_mixed(trainer: Trainer, others: Others, epochs: int, ahead: int, top_k: int) -> Newcomer:
    """FedDWA's weights for a newcomer, then SGD from the mixture for the epochs that are left.

    `ahead` epochs lead from the mean of all models to the guidance model u. The K models v_j nearest to u have the
    weights 1 / ||u - v_j||^2. Its own model, near to u by descent, is not among them. Without an epoch there is no
    guidance model: then the newcomer gets what those of most methods get. One that diverges is near to nobody.
    """
    if not epochs:
        return fine_tuned(trainer, others, epochs)
    mean, memory = others.mixed(others.by_size())
    guidance, _ = trainer.sgd(mean, memory, epochs=ahead, purpose="guidance")
    if not all(value.isfinite().all() for value in guidance.values()):
        how = "the mean of all clients' models, as its guidance model has diverged"
        return tuned(trainer, others, others.by_size(), epochs - ahead, how)._replace(spent=epochs)
    weights = dwa_weights(guidance, others.models, top_k)[0]
    tuning = " and fine-tuned" if epochs > ahead else ""
    how = f"the clients' models nearest to its guidance model ({ahead} of {counted(epochs, 'epoch')}), mixed{tuning}"
    return tuned(trainer, others, weights, epochs - ahead, how)._replace(spent=epochs)


def best_cluster(trainer: Trainer, others: Others) -> Newcomer:
    """The model of the cluster with the lowest loss on the newcomer's training data, as its members have it."""
    best = int(others.losses(trainer).nan_to_num(torch.inf).argmin())
    return tuned(trainer, others, others.same_model(best), 0, "the model of the cluster that fits its data best")


def tuned(trainer: Trainer, others: Others, weights: Tensor, epochs: int, how: str) -> Newcomer:
    """SGD from the clients' models mixed by weights (N,)."""
    model, memory = others.mixed(weights)
    if epochs:
        model, memory = trainer.sgd(model, memory, epochs=epochs, purpose="newcomer")
    return Newcomer(model, memory, weights, how, spent=epochs)
