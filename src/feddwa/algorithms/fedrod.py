"""FedRoD: one generic head that is fair to all classes, one personalised head on top (Chen and Chao, ICLR 2022).

    z = h(x) features, G the generic head, P_i the client's own;   prediction  G(z) + P_i(z)
    L_G = CE(G(z) + log pi_i, y)                     balanced softmax, pi_i = class frequencies; moves h and G
    L_P = CE(stop[G(z)] + P_i(stop[z]), y)           moves P_i alone
    server  (h, G) = sum_{k in S_t} (n_k / n) (h_k, G_k)

Crosses the network: h and G down and up, two model sizes. P_i and the class counts never leave the client.

Where the paper, its code and others differ: both losses come from one pass, so z is that before the step, as in the
common implementation; another lets P predict alone and its gradient reach h, which is a different method. Class counts
cover the whole training set; a code that counts through a loader without the last batch can miss a class, whose loss is
then infinite. A class the client does not have is masked by log 0 = -inf: loss finite, gradient exactly zero. A client
with one class therefore leaves h and G unchanged. P_i starts as a copy of the initial G; it is the last linear layer,
without the hyper-network variant. Two linear heads on the same z add up to one, so the evaluated model is an ordinary
one with head G + P_i.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.algorithms.base import Algorithm, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Memory, Message, Model, ServerState, Stack, StepState, Trainer
from feddwa.engine.network import Client, Net, outputs_and_features, without_aux
from feddwa.engine.numbers import Number
from feddwa.engine.rows import repeat
from feddwa.engine.steps import OptimizerStep


@dataclass(frozen=True)
class TwoHeadStep(OptimizerStep):
    """One step of h, G and P_i from one pass: the optimiser's, which clips all gradients together."""

    moves = ("model", "head")

    rate: Number

    def __call__(self, client: Client, state: StepState, batch: Batch, prior: Model) -> StepState:
        """One step on a batch."""
        gradients, _ = self.gradients(client, state, batch, without_aux(two_losses), prior=prior)
        return self.descend(state, gradients, self.rate)


def two_losses(net: Net, parts: Mapping[str, Model], batch: Batch, prior: Model) -> Tensor:
    """L_G + L_P: neither depends on the parameters that the other moves."""
    own = {name.rpartition(".")[2]: value for name, value in parts["head"].items()}
    generic, features = outputs_and_features(net, parts["model"], batch.x)
    personal = generic.detach() + F.linear(features.detach(), own["weight"], own.get("bias"))
    return net.loss_function(generic + prior["log"], batch.y) + net.loss_function(personal, batch.y)


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """FedRoD with linear heads."""

    title = "FedRoD"
    summary = "a shared body and class-balanced head, a personalised head on top"
    kind, year = "shared-body", 2022
    order = 10
    global_model = False
    head_passes = 1
    optimized = ("model", "head")
    newcomer = Algorithm.newcomer  # it has no head of its own yet: both are fine-tuned as one
    models_kept, numbers_kept = "1 - body", "classes"
    evaluated = "the global model plus its own head"

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """FedAvg's server; each client has a head and its classes' log frequencies."""
        counts = problem.counts_for("fedrod").double()
        problem.head_weight("fedrod")
        server, _ = super().setup(problem)
        head = repeat({name: problem.initial[name] for name in problem.head}, problem.clients)
        log = torch.log(counts / counts.sum(1, keepdim=True)).to(next(iter(problem.initial.values())))
        return server, {"head": head, "prior": {"log": log}}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of both heads."""
        step, start = TwoHeadStep(trainer.lr), {"model": download["model"], "head": memory["head"]}
        state, memory = trainer.train(step, start, memory, {"prior": memory["prior"]})
        return {"model": state["model"]}, {**memory, "head": state["head"]}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The model with the sum of both heads."""
        return _with_head(download["model"], memory["head"]), memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The model with the sum of both heads."""
        return _with_head(upload["model"], memory["head"])


def _with_head(model: Stack, head: Stack) -> Stack:
    return {name: value + head[name] if name in head else value for name, value in model.items()}
