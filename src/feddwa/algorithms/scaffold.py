"""SCAFFOLD: control variates against the drift of clients (Karimireddy et al., ICML 2020).

    client  y = w;  for each batch  y = y - eta (grad f_k(y) + c - c_k);   v_k = y after K_k steps
            option II  c_k' = c_k - c + (w - v_k) / (K_k eta), the mean of the batch gradients along the way
            option I   c_k' = grad f_k(w), a pass over the data more
    server  w = w + eta_g mean_{k in S_t} (v_k - w);   c = c + 1/N sum_{k in S_t} (c_k' - c_k)

Crosses the network: w and c down, v_k and c_k' - c_k up, four model sizes. c_k stays with its client; c_k = c = 0 at
first. With option II the server could compute the difference from v_k and K_k, so three sizes would do; we keep the
paper's four, as it does not assume that the server knows each client's steps.

Where the paper, its code and others differ: the mean is over clients, not over samples, c moves by 1/N and not by
1/|S_t|, and K_k is the client's own number of steps. One library computes c_k' from v_k - w, the other sign, and so
doubles the drift; another never stores c_k, so that it remains 0. Those that count four batches for a loader that drops
a short fifth are consistent, but train on less. With full participation c is the mean of the c_k after every round.
Round 1 is FedAvg over equal sizes. Momentum, decay, clipping and Adam receive the corrected gradient; w - v_k is then
no sum of gradients, so option II is refused with them and option I is allowed. A client whose update is lost has
nevertheless changed its c_k.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from feddwa.algorithms.base import Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Cohort, Memory, Message, Model, ServerState, Stack, StepState, Trainer
from feddwa.engine.network import Client
from feddwa.engine.numbers import Number
from feddwa.engine.optimizers import PLAIN
from feddwa.engine.rows import difference, only, repeat, scale, zeros
from feddwa.engine.steps import OptimizerStep
from feddwa.errors import require
from feddwa.mixing import average
from feddwa.params import Tunable


@dataclass(frozen=True)
class CorrectedStep(OptimizerStep):
    """The optimiser's step along grad f(v) + correction."""

    rate: Number

    def __call__(self, client: Client, state: StepState, batch: Batch, correction: Model) -> StepState:
        """One step on a batch. Parameters without a correction follow their gradient alone."""
        gradient = dict(client.gradient(state["model"], batch))
        gradient |= {name: gradient[name] + value for name, value in correction.items()}
        return self.descend(state, {"model": Model(gradient)}, self.rate)


@dataclass(frozen=True)
class SCAFFOLD(FedAvg):
    """SCAFFOLD, option II and server rate 1 as in the paper's experiments."""

    title = "SCAFFOLD"
    summary = "control variates correct the drift of clients"
    kind, year = "global", 2020
    models_down = models_up = 2
    models_kept = 1
    server_ops = "2 * m"
    updates = ("control",)
    discloses = "its trained model, its mean gradient"

    server_lr: Annotated[float, Tunable(0.1, 1.5)] = 1.0
    """eta_g: the server's step along the mean update."""
    option: Literal["I", "II"] = "II"
    """Definition of c_k: I = the gradient at w, II = the mean gradient along the local path."""

    def __post_init__(self) -> None:
        require(0 <= self.server_lr < math.inf, "--param server_lr", self.server_lr, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model and c; every client stores its c_k."""
        suits = self.option == "I" or problem.settings.optimizer == PLAIN
        require(
            suits, "--param option", self.option, "I unless local training is plain SGD: w - v_k is no sum of gradients"
        )
        control = zeros(problem.initial)
        return {"model": problem.initial, "control": control}, {"control": repeat(control, problem.clients)}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """w and c."""
        return {part: repeat(model, len(cohort)) for part, model in server.items()}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """w alone: evaluation does not need c."""
        return super().download(server, cohort)

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of corrected steps, and the new c_k."""
        start, shared, own = download["model"], download["control"], memory["control"]
        constants = {"correction": difference(shared, own)}
        state, after = trainer.train(CorrectedStep(trainer.lr), {"model": start}, memory, constants)
        local = state["model"]
        if self.option == "I":
            gradient = trainer.gradients(start, memory, "train", "control")
            control: Stack = only(gradient, own)
        elif not trainer.lr:  # w - v_k contains no gradients
            control = own
        else:
            path = scale(1 / (trainer.steps().double() * trainer.lr), difference(only(start, own), local))
            control = {name: value - shared[name] + path[name] for name, value in own.items()}
        return {"model": local, "control": difference(control, own)}, {**after, "control": control}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean over clients; c moves by the participants' share of all clients."""
        ones = torch.ones(len(cohort))
        mean, weights = average(ones, upload["model"])
        moved, _ = average(ones, upload["control"])
        model = {name: value + self.server_lr * (mean[name] - value) for name, value in server["model"].items()}
        share = len(cohort) / cohort.clients
        control = {name: value + share * moved[name] for name, value in server["control"].items()}
        return {"model": model, "control": control}, {"weights": weights}
