"""FedDBE: an offset of each client's features takes up its bias; a common mean keeps the bias out of the body (Zhang et
al., "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS 2023).

    start   in the first round:  v_i <- E epochs of f_i from w, r_i as below;   zbar = sum_{k in S_1} (n_k / n) r_k
    client  (v_i, m_i) <- E epochs on  CE(W (z + m_i) + b, y) + lambda / 2 ||r_i - zbar||^2   from w and its last m_i
            r_i <- (1 - mu) r_i + mu mean(z) with every batch, from 0;   z features (B, F), W and b the head
    server  w = sum_{k in S_t} (n_k / n) v_k

Crosses the network: w down, v_i up; zbar down, and r_i up in the first round, F numbers each. The offset m_i starts at
0 and stays with its client. The evaluated model is w with m_i, by W (z + m_i) + b = W z + (b + W m_i): w with another
bias of its head, which must have one.

Where the paper, its code and others differ: the original's kappa weighs the mean over features, so lambda = kappa / F:
its 50 on a network with F = 512 is our 0.1. The code and a library default to kappa = 0, which is no regulariser. The
original starts with an extra round of all clients whose models are thrown away; ours starts with the first round, whose
models count. zbar then stays fixed. Past batches in r_i are constants, so that the pull on a batch has the factor mu.
With mu = 1, r_i is the mean of one batch, and zbar averages the clients' last batches. m_i follows the run's rate and
optimiser. With m_i = 0 and lambda = 0 this is FedAvg.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Cohort, Memory, Message, Model, ServerState, Stack, StepState, Trainer
from feddwa.engine.network import Client, Net, outputs_and_features
from feddwa.engine.numbers import Number, present, times
from feddwa.engine.rows import repeat
from feddwa.engine.steps import OptimizerStep
from feddwa.errors import InputError, require
from feddwa.mixing import average
from feddwa.params import Tunable


@dataclass(frozen=True)
class DebiasedStep(OptimizerStep):
    """One step of v_i and m_i from one pass, which also updates r_i; without zbar, a step of v_i alone."""

    moves = ("model", "offset")

    rate: Number
    lam: Number
    mu: Number

    def __call__(self, client: Client, state: StepState, batch: Batch, **common: Model) -> StepState:
        """One step on a batch."""
        gradients, mean = self.gradients(client, state, batch, self.loss, past=state["mean"], **common)
        return {**self.descend(state, gradients, self.rate), "mean": mean}

    def loss(
        self, net: Net, parts: Mapping[str, Model], batch: Batch, past: Model, common: Model | None = None
    ) -> tuple[Tensor, Model]:
        """The objective on a batch, and r_i."""
        model = parts["model"] if common is None else Model(with_offset(parts["model"], parts["offset"]))
        outputs, features = outputs_and_features(net, model, batch.x)
        loss, mean = net.loss_function(outputs, batch.y), features.mean(0)
        mean = times(1 - self.mu, past["mean"]) + times(self.mu, mean)
        if common is not None and present(self.lam):
            loss = loss + times(self.lam, (mean - common["mean"]).square().sum() / 2)
        return loss, Model({"mean": mean})


def with_offset(model: Stack, offset: Stack) -> Stack:
    """Turn an offset of the features into another bias of the head; offset: W's name -> (..., F)."""
    ((name, value),) = offset.items()
    bias = name.removesuffix("weight") + "bias"
    return {**model, bias: model[bias] + (model[name] * value.unsqueeze(-2)).sum(-1)}


@dataclass(frozen=True)
class FedDBE(FedAvg):
    """FedDBE with the original's values."""

    title = "FedDBE"
    summary = "an offset of the features for every client, their mean held at a common value"
    kind, year = "shared-body", 2023
    global_model = False
    numbers_down = numbers_kept = "features"
    optimized = ("model", "offset")
    discloses, evaluated = "its trained model, once its mean features", "the global model with its own offset"
    newcomer = Algorithm.newcomer  # it has no offset of its own yet: fine-tuning

    lam: Annotated[float, Tunable(1e-3, 1, log=True)] = 0.1
    """lambda: strength of the pull of the mean feature towards the common one; kappa / F."""
    mu: Annotated[float, Tunable(0.1, 1.0)] = 1.0
    """Share of the last batch in the regularised mean."""

    def __post_init__(self) -> None:
        require(0 <= self.lam < math.inf, "--param lam", self.lam, "a finite number, 0 or more")
        require(0 < self.mu <= 1, "--param mu", self.mu, "above 0, at most 1")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model, and zbar once known; every client has its m_i."""
        server, weight = super().setup(problem)[0], problem.head_weight("feddbe")
        if len(problem.head) == 1:
            raise InputError("algorithm feddbe: needs a network whose last linear layer has a bias that is not frozen")
        zero = problem.initial[weight].new_zeros(problem.features)
        unknown = {"common": {"mean": zero}, "start": {"done": torch.zeros(())}}
        return {**server, **unknown}, {"offset": repeat({weight: zero}, problem.clients)}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """w, and zbar once known."""
        common = {"common": repeat(server["common"], len(cohort))} if server["start"]["done"] else {}
        return {**self.deliver(server, cohort), **common}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """w alone: evaluation does not need zbar."""
        return super().download(server, cohort)

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs: of v_i in the first round, then of v_i and m_i."""
        (offset,), common = memory["offset"].values(), {part: download[part] for part in download if part != "model"}
        start = {"model": download["model"], "offset": memory["offset"], "mean": {"mean": torch.zeros_like(offset)}}
        state, memory = trainer.train(DebiasedStep(trainer.lr, self.lam, self.mu), start, memory, common)
        mean = {} if common else {"common": state["mean"]}
        return {"model": state["model"], **mean}, {**memory, "offset": state["offset"]}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean by data size; after the first round also that of the features' means."""
        new, info = super().server(server, cohort, upload)
        if "common" in upload:
            new = {**new, "common": average(cohort.sizes, upload["common"])[0], "start": {"done": torch.ones(())}}
        return {**server, **new}, info

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """w with the client's offset."""
        return with_offset(download["model"], memory["offset"]), memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """v_i with the client's offset."""
        return with_offset(upload["model"], memory["offset"])
