"""A model for a client that was not in the run, from the participants' models and its own training data."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from feddwa.engine import Memory, Stack, Trainer
from feddwa.engine.rows import count, take
from feddwa.errors import counted
from feddwa.mixing import dwa_weights, mix, squared_distances


class Others(NamedTuple):
    """The clients of a finished run, with their evaluated models."""

    models: Stack  # (N, *shape) trainable parameters
    buffers: Stack  # (N, *shape) BatchNorm statistics
    sizes: Tensor  # (N,) training samples

    def by_size(self) -> Tensor:
        """(N,) weights by data size, as in FedAvg."""
        return self.sizes.double() / self.sizes.sum()

    def mixed(self, weights: Tensor) -> tuple[Stack, Memory]:
        """One model (1, *shape) and its BatchNorm statistics, mixed from the clients' with weights (N,).

        Clients of weight 0 are left out, because 0 times the infinite entries of a diverged model is nan.
        """
        chosen = weights.nonzero().flatten().cpu()
        models, buffers = take(self.models, chosen), take(self.buffers, chosen)
        shares = weights[chosen].double().unsqueeze(0)
        moving = {name: value for name, value in buffers.items() if value.is_floating_point()}
        counts = {name: value[:1] for name, value in buffers.items() if name not in moving}
        statistics = {**mix(shares, moving), **counts}
        return mix(shares, models), {"buffers": {name: statistics[name] for name in buffers}}

    def losses(self, trainer: Trainer) -> Tensor:
        """(N,) loss of every client's model on the newcomer's training samples, which no model has seen."""
        rows = dataclasses.replace(trainer, ids=trainer.ids.expand(count(self.models)))
        return rows.losses(self.models, {"buffers": self.buffers}, "train")

    def same_model(self, client: int) -> Tensor:
        """(N,) equal weights of the clients with the parameters of `client`: the members of its cluster."""
        one = {name: value[client : client + 1] for name, value in self.models.items()}
        same = (squared_distances(one, self.models)[0] == 0).double()
        return same / same.sum()


class Newcomer(NamedTuple):
    """A newcomer's model and how it was made."""

    model: Stack  # (1, *shape)
    memory: Memory  # (1, ...) with its BatchNorm statistics
    weights: Tensor  # (N,) of the clients' models in its initial model
    how: str  # how it was made, without a full stop
    spent: int  # epochs of its training data used, at most those allowed


def fine_tuned(trainer: Trainer, others: Others, epochs: int) -> Newcomer:
    """SGD from the mean model or from one client's, whichever has the lowest loss on the newcomer's training data.

    No model has seen these data, so the choice is as good as one on validation data. Zero epochs return the initial
    model.
    """
    losses, mean = others.losses(trainer), others.by_size()
    start, memory = others.mixed(mean)
    best = int(losses.nan_to_num(torch.inf).argmin())
    if not trainer.losses(start, memory, "train")[0] <= losses[best]:  # nan if a client diverged
        weights = torch.nn.functional.one_hot(torch.tensor(best), len(losses)).double()
        return tuned(trainer, others, weights, epochs, "fine-tuned from the client's model that fits its data best")
    return tuned(trainer, others, mean, epochs, "fine-tuned from the mean of all clients' models")


def nearest_mixed(trainer: Trainer, others: Others, epochs: int, ahead: int, top_k: int) -> Newcomer:
    """FedDWA's weights for a newcomer, then SGD from the mixture for the remaining epochs.

    `ahead` epochs lead from the mean of all models to the guidance model u. The K models v_j nearest to u have weights
    1 / ||u - v_j||^2. The newcomer's own model, near u by construction, is not among them. Without an epoch, or if u
    diverges, the newcomer gets the default of most methods.
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
    """The model of the cluster with the lowest loss on the newcomer's training data."""
    best = int(others.losses(trainer).nan_to_num(torch.inf).argmin())
    return tuned(trainer, others, others.same_model(best), 0, "the model of the cluster that fits its data best")


def tuned(trainer: Trainer, others: Others, weights: Tensor, epochs: int, how: str) -> Newcomer:
    """SGD from the clients' models mixed with weights (N,)."""
    model, memory = others.mixed(weights)
    if epochs:
        model, memory = trainer.sgd(model, memory, epochs=epochs, purpose="newcomer")
    return Newcomer(model, memory, weights, how, spent=epochs)
