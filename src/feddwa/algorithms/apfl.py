"""APFL: every client mixes a model of its own with the global one (Deng, Kamani and Mahdavi, 2020).

Client i predicts with the mixture u = alpha_i v_i + (1 - alpha_i) w. Each batch updates all three from their old
values:

    w_i     <- w_i - eta grad f(w_i)                              the shared model trains as FedAvg's
    v_i     <- v_i - eta alpha_i grad f(u),   u = alpha_i v_i + (1 - alpha_i) w_i
    alpha_i <- clip to [0, 1] of  alpha_i - eta_a <v_i - w_i, grad f(u)>
    server  w = sum_{k in S_t} (n_k / n) w_k

Crosses the network: w down, w_i up, two model sizes; v_i and alpha_i stay. The mixture with the current w is evaluated.

Where the paper, its code and others differ: we mix parameters, as the paper does. The official code and three libraries
mix outputs, which for a deep network is a different model. The official code steps w first, and its update of alpha is
not a gradient: once a round, with a decay of 0.02 alpha. One library takes the gradient of v_i at v_i and overwrites
v_i by the mixture; another steps the shared model twice with one gradient; a third adds alpha w in place of (1 - alpha)
w. Below about 0.1, alpha starves v_i of its gradient and falls to 0, which is FedAvg, so start near 0.5. alpha = 1 is
Local, alpha = 0 FedAvg. BatchNorm statistics come from the passes of u. Policies that edit messages are refused, as for
Ditto.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Memory, Message, Model, ServerState, Stack, StepState, Trainer
from feddwa.engine.network import Client, Net, descend
from feddwa.engine.numbers import Number, times
from feddwa.engine.rows import add_scaled, difference, repeat
from feddwa.engine.steps import OptimizerStep
from feddwa.errors import require
from feddwa.params import Tunable

Adaptive = Literal["off", "round", "step"]


@dataclass(frozen=True)
class MixtureStep(OptimizerStep):
    """One step of w_i, v_i and alpha_i.

    The optimiser moves w_i and v_i, each along its own gradient with its own clipping, so that w_i is FedAvg's for
    every v_i. alpha_i takes a plain step.
    """

    moves = ("model", "personal")

    rate: Number
    alpha_rate: Number
    adaptive: Adaptive

    def __call__(self, client: Client, state: StepState, batch: Batch) -> StepState:
        """One step on a batch. "open" is 1 where alpha_i may move."""
        shared, own, mixing = state["model"], state["personal"], state["mixing"]
        apart = descend(own, shared, 1.0)  # v_i - w_i
        mixture = Model({name: value + mixing["alpha"] * apart[name] for name, value in shared.items()})
        shared_gradient = client.gradient(shared, batch, loss_aside)
        gradient = client.gradient(mixture, batch)
        slope = torch.stack([(value * gradient[name]).sum() for name, value in apart.items()]).sum()
        alpha = (mixing["alpha"] - mixing["open"] * times(self.alpha_rate, slope)).clamp(0, 1)
        moving = mixing["open"] if self.adaptive == "step" else torch.zeros_like(mixing["open"])
        scaled = Model({name: mixing["alpha"] * value for name, value in gradient.items()})
        return {
            **self.descend(state, {"model": shared_gradient}, self.rate),
            **self.descend(state, {"personal": scaled}, self.rate),
            "mixing": Model({"alpha": alpha, "open": moving}),
        }


def loss_aside(net: Net, params: Model, batch: Batch) -> Tensor:
    """The task's loss, without updating the BatchNorm statistics."""
    return net.aside().loss(params, batch)


@dataclass(frozen=True)
class APFL(FedAvg):
    """APFL with the original's initial alpha and the paper's update rule."""

    title = "APFL"
    summary = "a mixture of the client's own model and the global one, in learned shares"
    kind, year = "personal", 2020
    passes = 2
    models_kept, numbers_kept = 1, 1
    global_model = False
    optimized = ("model", "personal")
    policies = ("local",)
    evaluated = "a mixture of its own and the global model"
    newcomer = Algorithm.newcomer  # it has no v_i yet: a newcomer is fine-tuned

    alpha: Annotated[float, Tunable(0.1, 0.9)] = 0.5
    """Initial share of the client's own model in the mixture."""
    adaptive: Adaptive = "step"
    """When alpha follows its gradient: never, at the first step of a round, or at every step."""
    alpha_lr: Annotated[float | None, Tunable(1e-3, 1, log=True)] = None
    """eta_a: rate of alpha; none = the run's rate."""

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "--param alpha", self.alpha, "from 0 to 1")
        rate = self.alpha_lr
        require(rate is None or 0 <= rate < math.inf, "--param alpha_lr", rate, "a finite number, 0 or more")
        used = rate is None or self.adaptive != "off"
        require(used, "--param alpha_lr", rate, "none where adaptive=off, which leaves alpha as it is")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model; every client has v_i, initially the global model, and alpha_i."""
        server, _ = super().setup(problem)
        alpha = next(iter(problem.initial.values())).new_full((problem.clients,), self.alpha)
        return server, {"personal": repeat(problem.initial, problem.clients), "mixing": {"alpha": alpha}}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of all three."""
        step = MixtureStep(trainer.lr, trainer.rate(self.alpha_lr), self.adaptive)
        alpha = memory["mixing"]["alpha"]
        mixing = {"alpha": alpha, "open": torch.full_like(alpha, self.adaptive != "off")}
        start = {"model": download["model"], "personal": memory["personal"], "mixing": mixing}
        state, memory = trainer.train(step, start, memory)
        own = {"personal": state["personal"], "mixing": {"alpha": state["mixing"]["alpha"]}}
        return {"model": state["model"]}, {**memory, **own}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The mixture with the global model."""
        return self.trained(download, memory), memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The mixture with the client's shared model."""
        shared = upload["model"]
        return add_scaled(shared, memory["mixing"]["alpha"], difference(memory["personal"], shared))
