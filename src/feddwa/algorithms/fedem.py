"""FedEM: every client's data are a mixture of M distributions; the clients jointly learn a model for each (Marfoq et
al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021).

    client  q_s(m) ~ pi_im exp(-f(theta_m; s)),  sum_m q_s(m) = 1, for each sample s;   pi_im <- mean of q_s(m)
            v_im   <- E epochs of SGD from theta_m on  (1 / B) sum_s q_s(m) f(v_im; s)
    server  theta_m = sum_{k in S_t} (n_k / n) v_km
    predict p(y | x) = sum_m pi_im softmax(theta_m(x))_y

Crosses the network: M models down and up. pi_i starts at 1 / M and never leaves its client; the server averages by data
size alone. The mixture of the current theta_m with the client's last pi_i is evaluated: one network of M components
whose outputs are log p, so that its cross-entropy is the mixture's. A newcomer fits pi_i to its training data without
training the components.

Where the paper, its code and others differ: the official mean is over all clients, absent ones with the old model, so
that a step shrinks with participation; ours is over S_t. FL-bench gives samples of a shuffled batch the weights of
others, never returns pi and mixes logits; FederatedScope has one weight per batch and multiplies by pi. Here each batch
computes q from the theta_m and pi_i of the round's start, in evaluation mode; all components see the same batches.
theta_1 is the run's initial model; the others permute the entries of each of its parameters, as in IFCA. M = 1 is
FedAvg.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from feddwa.algorithms.base import Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.mixture import SHARES, Fresh, mixture_of
from feddwa.algorithms.newcomer import Newcomer, Others
from feddwa.data.federated import Batch
from feddwa.engine import Memory, Message, Model, ServerState, StepState, Trainer
from feddwa.engine.network import Client, Net, outputs_of
from feddwa.engine.numbers import Number
from feddwa.engine.steps import OptimizerStep
from feddwa.errors import require
from feddwa.params import AtMost, Tunable


@dataclass(frozen=True)
class MixtureStep(OptimizerStep):
    """One step of all components, each sample weighted by its q; also sums q over samples."""

    rate: Number

    def __call__(self, client: Client, state: StepState, batch: Batch, start: Model) -> StepState:
        """One step on a batch; start: theta, pi_i and BatchNorm statistics at the start of the round."""
        q = client.evaluate(start, batch, responsibilities)
        gradient = client.gradient(state["model"], batch, weighted_loss, weights=q)
        total = Model({SHARES: state["total"][SHARES] + q["q"].sum(1)})
        return {**self.descend(state, {"model": gradient}, self.rate), "total": total}


def losses(net: Net, params: Model, batch: Batch) -> Tensor:
    """(M, B) losses of every component on every sample."""
    _, outputs = outputs_of(net, net.module.get_submodule("mixing"), params, batch.x)  # (M, B, C)
    return torch.stack([net.losses(own, batch.y) for own in outputs])


def responsibilities(net: Net, params: Model, batch: Batch) -> Model:
    """q (M, B): posterior probability of each component for each sample; params: theta and pi_i."""
    likelihood = params[SHARES].log().unsqueeze(1) - losses(net, params, batch)
    return Model({"q": likelihood.softmax(0)})


def total_shares(net: Net, params: Model, batch: Batch) -> Model:
    """The statistic whose mean is pi_i."""
    return Model({SHARES: responsibilities(net, params, batch)["q"].sum(1)})


def weighted_loss(net: Net, params: Model, batch: Batch, weights: Model) -> Tensor:
    """Mean over the batch of the components' losses, weighted by q."""
    return (weights["q"] * losses(net, params, batch)).sum(0).mean()


@dataclass(frozen=True)
class FedEM(FedAvg):
    """FedEM with the official number of components."""

    title = "FedEM"
    summary = "M shared models, mixed by every client in its own proportions"
    kind, year = "collaboration", 2021
    global_model = False
    models_down = models_up = passes = teacher_passes = numbers_kept = 3
    server_ops = "3 * m"
    discloses, evaluated = "its trained components", "the components, mixed by its own shares"

    components: Annotated[int, Tunable(2, 5), AtMost(100)] = 3
    """M: number of models; each costs traffic and an epoch."""
    fresh: Fresh = "all"
    """The parameters in which the initial models differ; head suits pretrained weights."""

    def __post_init__(self) -> None:
        require(self.components >= 1, "--param components", self.components, "at least 1")

    def network(self, module: nn.Module) -> nn.Module:
        """M copies, all but the first with the entries of each parameter permuted."""
        return mixture_of(module, self.components, self.fresh)

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """FedAvg's server with M models."""
        problem.counts_for("fedem")
        return super().setup(problem)

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of all components, and new shares."""
        start, shares = {**download["model"], **memory["buffers"]}, memory["buffers"][SHARES]
        state = {"model": download["model"], "total": {SHARES: torch.zeros_like(shares, dtype=torch.float64)}}
        new, memory = trainer.train(MixtureStep(trainer.lr), state, memory, {"start": start})
        return {"model": new["model"]}, with_shares(memory, new["total"][SHARES])

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """The components in shares fitted to the newcomer's training data."""
        weights = others.by_size()
        model, memory = others.mixed(weights)
        even = torch.ones_like(memory["buffers"][SHARES])
        start = with_shares(memory, even)["buffers"]
        total = trainer.sums(total_shares, {**model, **start}, memory)
        how = "the components, in shares that fit its data"
        return Newcomer(model, with_shares(memory, total[SHARES]), weights, how, spent=0)


def with_shares(memory: Memory, total: Tensor) -> Memory:
    """The memory with pi_i from sums of q (m, M); a client without a batch keeps its own."""
    buffers, every = memory["buffers"], total.sum(1, keepdim=True)
    shares = (total / every.clamp(min=1e-300)).where(every > 0, buffers[SHARES].to(total))
    return {**memory, "buffers": {**buffers, SHARES: shares.to(buffers[SHARES])}}
