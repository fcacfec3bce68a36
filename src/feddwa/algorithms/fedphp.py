"""FedPHP: the moving average of a client's models teaches each new one (Li et al., ECML PKDD 2021).

Client i keeps p_i, the "inherited private model", and counts its rounds z_i. In a round, from theta = w,

    client  E epochs on  (1 - lambda) f_i(theta) + lambda R(theta, p_i),   p_i as it is
            p_i <- mu p_i + (1 - mu) theta,   mu = mu_0 min(z_i / horizon, 1);   z_i <- z_i + 1
    server  w = sum_{k in S_t} (n_k / n) theta_k
    R       mmd: MMD^2 of a batch's features under theta and p_i, whose kernel is sum_{j<5} exp(-D / (2^j b)),
                 D squared distances, 4 b their mean over different pairs;   kd: cross-entropy of theta's outputs
                 with softmax(p_i's / 4)

Crosses the network: w down, theta up, two model sizes. Evaluated is p_i, which never leaves its client.

Where the paper, its code and others differ: lambda weighs both terms, so lambda = 1, one library's default, ignores the
labels. That library also never evaluates p_i, and until 2024 its teacher was the global model. Another has mu near mu_0
from the start. The original's horizon is participation times rounds: set `horizon` to it. In a client's first round mu
is 0 and p_i becomes theta. p_i's passes are in training mode, as in one library; the official ones are not. BatchNorm
statistics are averaged with the same mu; policies that edit messages are refused, as for Ditto. lambda = 0 trains
FedAvg's global model.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.mmd import squared_distances, squared_mmd
from feddwa.data.federated import Batch
from feddwa.engine import Cohort, Memory, Message, Model, ServerState, Stack, Trainer
from feddwa.engine.network import Net, outputs_and_features, task_loss
from feddwa.engine.numbers import Number, times
from feddwa.engine.rows import add_scaled, difference, only, repeat
from feddwa.errors import require
from feddwa.params import Repeats, Tunable

Transfer = Literal["mmd", "kd"]


@dataclass(frozen=True)
class Taught:
    """The task's loss plus the distance from the private model's features or outputs."""

    lam: Number
    transfer: Transfer

    def __call__(self, net: Net, params: Model, batch: Batch, private: Model) -> Tensor:
        """(1 - lambda) f + lambda R on a batch."""
        outputs, features = outputs_and_features(net, params, batch.x)
        taught, known = (value.detach() for value in outputs_and_features(net.aside(), private, batch.x))
        if self.transfer == "mmd":
            distance = adaptive_mmd(features.flatten(1), known.flatten(1))
        else:
            distance = -((taught / 4).softmax(1) * outputs.log_softmax(1)).sum(1).mean()
        return times(1 - self.lam, net.loss_function(outputs, batch.y)) + times(self.lam, distance)


def adaptive_mmd(x: Tensor, y: Tensor) -> Tensor:
    """MMD^2 between features x and y, (B, F) each, by five Gaussian kernels scaled to their mean distance."""
    distances = squared_distances(x, y)
    n = len(distances)
    width = (distances.detach().sum() / (n * n - n) + 1e-8) / 4
    return squared_mmd(distances, [width * 2**j for j in range(5)])


@dataclass(frozen=True)
class FedPHP(FedAvg):
    """FedPHP with the original's values for MMD."""

    title = "FedPHP"
    summary = "the moving average of a client's models teaches the downloaded one"
    kind, year = "personal", 2021
    teacher_passes = 1
    models_kept, numbers_kept = 1, 1
    global_model = False
    policies = ("local",)
    evaluated = "the moving average of its models"
    newcomer = Algorithm.newcomer  # p_i comes from rounds that a newcomer has not had: it is fine-tuned

    lam: Annotated[float, Tunable(0.0, 0.5)] = 0.05
    """lambda: share of R in the objective."""
    mu: Annotated[float, Tunable(0.0, 1.0)] = 0.9
    """mu_0: largest share of the past in p_i."""
    horizon: Repeats = 100
    """Rounds of a client after which mu is mu_0: participation times rounds."""
    transfer: Annotated[Transfer, Tunable(choices=("mmd", "kd"))] = "mmd"
    """What R compares: features (mmd) or outputs (kd)."""

    def __post_init__(self) -> None:
        require(0 <= self.lam <= 1, "--param lam", self.lam, "from 0 to 1")
        require(0 <= self.mu <= 1, "--param mu", self.mu, "from 0 to 1")
        require(self.horizon >= 1, "--param horizon", self.horizon, "at least 1")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model; every client has p_i, initially the global model, and z_i."""
        problem.head_weight("fedphp")
        server, _ = super().setup(problem)
        count = {"rounds": torch.zeros(problem.clients, dtype=torch.float64)}
        return server, {"private": repeat(problem.initial, problem.clients), "count": count}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs taught by p_i, which then averages in the result and its BatchNorm statistics."""
        taught = {"objective": Taught(self.lam, self.transfer), "private": memory["private"]}
        local, new = trainer.sgd(download["model"], memory, **(taught if self.lam else {"objective": task_loss}))
        rounds = memory["count"]["rounds"]
        fresh = 1 - self.mu * (rounds / self.horizon).clamp(max=1)  # (m,): 1 - mu
        private = add_scaled(memory["private"], fresh, difference(local, memory["private"]))
        moving = only(new["buffers"], [name for name, value in new["buffers"].items() if value.is_floating_point()])
        before = memory["buffers"]
        buffers = {**new["buffers"], **add_scaled(only(before, moving), fresh, difference(moving, before))}
        own = {"private": private, "count": {"rounds": rounds + 1}, "buffers": buffers}
        return {"model": local}, {**new, **own}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """Nothing: clients hold the evaluated models."""
        return {}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """p_i."""
        return memory["private"], memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """p_i."""
        return memory["private"]
