"""pFedMe: personalised models tied to the global one by a penalty (T Dinh, Tran and Nguyen, NeurIPS 2020).

Client i minimises F_i(w) = min_theta f_i(theta) + lambda/2 ||theta - w||^2. At the start of a round theta = w_i = w,
and for every batch

    K times  theta = theta - eta_p [grad f(theta; batch) + lambda (theta - w_i)]
    then     w_i   = w_i - eta lambda (w_i - theta)
    server   w     = (1 - beta) w + beta sum_{k in S_t} (n_k / n) w_k

Crosses the network: w down, w_i up, two model sizes. theta_i stays with its client and is what is evaluated.

Where the paper, its code and others differ: the official code and its descendants keep theta as a live reference to the
model's parameters and then write w_i into them, so that the "personalised" accuracy is that of w_i or even of w; here
theta is a separate model. As in that code, theta is not reset between batches; its undocumented decay of 0.001 theta is
left out. A local round is E epochs (the original: 20 batches), only S_t trains (the original: all clients), and the
average is weighted by size, as in the code. FedDWA: lambda = 1 from {0.1, 1, 10, 100}, K = 5, beta = 1, and no eta_p,
for which we take the run's rate; the original has lambda 15, eta 0.005, eta_p 0.09. Theta and w_i share the client's
BatchNorm statistics.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, StepState, Trainer
from feddwa.engine.network import Client, descend
from feddwa.engine.numbers import Number
from feddwa.engine.rows import repeat
from feddwa.engine.steps import OptimizerStep
from feddwa.errors import require
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class MoreauStep(OptimizerStep):
    """K steps of theta, one of w_i.

    The optimiser moves theta along grad f(theta) + lambda (theta - w_i); the step of w_i stays plain.
    """

    moves = ("personal",)

    lam: Number
    inner_steps: int
    personal_rate: Number
    rate: Number

    def __call__(self, client: Client, state: StepState, batch: Batch) -> StepState:
        """One step on a batch."""
        local, new = state["model"], dict(state)
        for _ in range(self.inner_steps):
            theta = new["personal"]
            pull = descend(theta, local, 1.0)  # theta - w_i
            gradient = descend(client.gradient(theta, batch), pull, -self.lam)
            new |= self.descend(new, {"personal": gradient}, self.personal_rate)
        return {**new, "model": descend(local, descend(local, new["personal"], 1.0), self.rate * self.lam)}


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """pFedMe with FedDWA's values."""

    title = "pFedMe"
    summary = "personalised models tied to the global one (Moreau envelopes)"
    kind, year = "personal", 2020
    order = 8
    global_model = False
    passes = 5
    optimized = ("personal",)
    newcomer = Algorithm.newcomer  # theta_i comes from training, not from w: a newcomer is fine-tuned
    models_kept = 1
    evaluated = "its own model"

    lam: Annotated[float, Tunable(0.1, 100, log=True)] = 1.0
    """lambda: strength of the penalty."""
    inner_steps: Repeats = 5
    """K: steps of theta on a batch."""
    beta: Annotated[float, Tunable(0.1, 1.0)] = 1.0
    """Share of the new average in w."""
    personal_lr: Annotated[float | None, Tunable(1e-3, 1, log=True)] = None
    """eta_p: rate of theta; none = the run's rate."""

    def __post_init__(self) -> None:
        require(0 <= self.lam < math.inf, "--param lam", self.lam, "a finite number, 0 or more")
        require(self.inner_steps >= 1, "--param inner_steps", self.inner_steps, "at least 1")
        require(0 <= self.beta <= 1, "--param beta", self.beta, "from 0 to 1")
        rate = self.personal_lr
        require(rate is None or 0 <= rate < math.inf, "--param personal_lr", rate, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model; every client stores its theta."""
        server, _ = super().setup(problem)
        return server, {"personal": repeat(problem.initial, problem.clients)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of steps, both models starting from w."""
        step = MoreauStep(self.lam, self.inner_steps, trainer.rate(self.personal_lr), trainer.lr)
        start = {"model": download["model"], "personal": download["model"]}
        state, memory = trainer.train(step, start, memory)
        return {"model": state["model"]}, {**memory, "personal": state["personal"]}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """A share beta of FedAvg's mean."""
        averaged, info = super().server(server, cohort, upload)
        mean = averaged["model"]
        return {"model": {name: value.lerp(mean[name], self.beta) for name, value in server["model"].items()}}, info

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """theta_i."""
        return memory["personal"], memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """theta_i."""
        return memory["personal"]
