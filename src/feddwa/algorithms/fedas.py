"""FedAS: align the shared body with the client's own head, weigh bodies by Fisher information (Yang et al., CVPR 2024).

    client  mu_c  = mean features of its samples of class c, by its own last body phi_i
            phi_i <- an epoch from phi on  sum_c mean_{s: y_s = c} ||phi(x_s) - mu_c||^2 / F,   c in the batch
            (phi_i, h_i) <- E epochs of SGD from there, all parameters together
            tau_i = sum over batches b of ||grad f_b(phi_i, h_i)||^2
    server  phi = sum_{k in S_t} (tau_k / tau) phi_k

Crosses the network: the body phi down, phi_i and the number tau_i up. The whole model stays with its client. (phi_i,
h_i) is evaluated as the client last trained it, so evaluation needs no download.

Where the paper, its code and others differ: in the official code clients share one object for the body, so that one
client's alignment changes the next one's start; a library copies it, as we do. The code also sends the head, which
nobody uses, and computes tau of absent clients. tau is not the trace of the Fisher information: it sums the squared
gradients of batches, not of samples, and so grows with the number of batches. It vanishes for a client that fits its
data, which shifts weight to those that do not; if it is 0 for all, they count equally. Class means and tau are computed
in evaluation mode, the alignment in training mode by plain SGD, which also updates the BatchNorm statistics. Another
library aligns means of batches and downloads the head. `align_epochs` = 0 and `weights` = size train as FedPer.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Cohort, Memory, Message, Model, ServerState, Stack, StepState, Trainer
from feddwa.engine.features import class_sums
from feddwa.engine.network import Client, Net, evaluation_mode, outputs_and_features
from feddwa.engine.optimizers import PLAIN
from feddwa.engine.rows import only, repeat
from feddwa.errors import require
from feddwa.mixing import average
from feddwa.params import Repeats, Tunable


def alignment(net: Net, params: Model, batch: Batch, known: Model) -> Tensor:
    """Distance of features from their class means (C, F); classes count equally within a batch."""
    z = outputs_and_features(net, params, batch.x)[1]
    alike = (batch.y.unsqueeze(0) == batch.y.unsqueeze(1)).sum(1)  # (B,): samples of the same class
    return ((z - known["means"][batch.y]).square().mean(1) / alike).sum()


def add_squared_gradient(client: Client, state: StepState, batch: Batch, model: Model) -> StepState:
    """Add ||grad f||^2 of a batch, in evaluation mode, at a fixed model."""
    with evaluation_mode(client.module):
        gradient = client.gradient(model, batch)
    squares = torch.stack([value.square().sum() for value in gradient.values()])
    return {"fisher": Model({"tau": state["fisher"]["tau"] + squares.sum()})}


@dataclass(frozen=True)
class FedAS(FedAvg):
    """FedAS with the original's alignment."""

    title = "FedAS"
    summary = "a shared body fitted to each client's head, averaged by Fisher information"
    kind, year = "shared-body", 2024
    models_down = models_up = "body"
    numbers_up = 1
    models_kept = 1
    passes, feature_passes, statistics_passes = 2, 1, 1
    server_ops = "m * body"
    global_model = False
    policies = ("local", "all-local")
    discloses, evaluated = "its trained body, the size of its gradients", "its own model as it last trained it"
    newcomer = Algorithm.newcomer  # it has no model of its own yet: fine-tuning

    align_epochs: Annotated[Repeats, Tunable(0, 3)] = 1
    """Epochs of alignment before training."""
    align_lr: Annotated[float, Tunable(1e-3, 0.1, log=True)] = 0.01
    """Rate of the alignment, under the run's schedule."""
    weights: Literal["fisher", "size"] = "fisher"
    """Weights of the bodies in the average: tau, or the clients' sizes."""

    def __post_init__(self) -> None:
        require(self.align_epochs >= 0, "--param align_epochs", self.align_epochs, "0 or more")
        require(0 <= self.align_lr < math.inf, "--param align_lr", self.align_lr, "a finite number, 0 or more")
        require(self.weights in ("fisher", "size"), "--param weights", self.weights, "fisher or size")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The body, without a client axis; every client has a whole model, initially the same."""
        problem.head_weight("fedas")
        problem.counts_for("fedas")
        head = problem.head_named("last")
        body = {name: value for name, value in problem.initial.items() if name not in head}
        return {"model": body}, {"own": repeat(problem.initial, problem.clients)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """Alignment, E epochs, and tau."""
        body, own = download["model"], memory["own"]
        head = {name: value for name, value in own.items() if name not in body}
        if self.align_epochs:
            means = class_sums(trainer, own, memory).means().to(next(iter(own.values())))
            body, memory = trainer.sgd(
                body, memory, objective=alignment, fixed=head, known={"means": means}, epochs=self.align_epochs,
                lr=trainer.rate(self.align_lr), purpose="align", optimizer=PLAIN,
            )  # fmt: skip
        model, memory = trainer.sgd({**body, **head}, memory)
        return {"model": only(model, body), **self.fisher(trainer, model, memory)}, {**memory, "own": only(model, own)}

    def fisher(self, trainer: Trainer, model: Stack, memory: Memory) -> Message:
        """tau (m,); empty if sizes are the weights."""
        if self.weights == "size":
            return {}
        like = next(iter(model.values()))
        start = {"fisher": {"tau": like.new_zeros(len(like))}}
        return trainer.train(
            add_squared_gradient, start, memory, {"model": model}, epochs=1, samples=trainer.sizes(),
            purpose="fisher", optimizer=PLAIN,
        )[0]  # fmt: skip

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean of bodies weighted by tau; every row of P is tau_k / tau."""
        by = upload["fisher"]["tau"] if self.weights == "fisher" else cohort.sizes
        mean, weights = average(by if by.any() else torch.ones_like(by), upload["model"])
        return {"model": mean}, {"weights": weights}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """Nothing: clients hold the evaluated models."""
        return {}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The client's own model."""
        return memory["own"], memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The client's own model."""
        return memory["own"]
