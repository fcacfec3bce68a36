"""FedALA: each client learns, number by number, how much of the global model to take (Zhang et al., AAAI 2023).

theta_i is client i's last trained model; W_i in [0, 1] has the shape of the blended layers. At the start of a round the
other layers are w's, and in the blended ones

    theta(W) = theta_i + (w - theta_i) W      number by number
    W        = clip[ W - eta_W grad f_i(theta(W)) (w - theta_i) ]   for batches of a share s of the training data
    theta_i  = E epochs of SGD from the blend;   server  w = sum_{k in S_t} (n_k / n) theta_k

Crosses the network: w down, theta_i up, two model sizes; the blended layers of theta_i, and W_i, stay with the client.
Each client is evaluated with a fresh blend, which is not stored.

Where the paper, its code and others differ: W starts at 1, so a client's first round takes w as it is and learns no W.
Its second round learns W for 11 epochs and later rounds for one. The code stops the second round when the last losses
vary by less than 0.1, usually after 11 epochs; we fix the number because all clients' batches train together. The share
s is the front of the epoch's order, less a sample that would be a batch by itself; the code takes a stretch of the
stored data. The head is blended, which the code calls 2 (it counts tensors: 1 is the head's bias, 0 all layers). The
code also blends for absent clients and stores the result; ours keep theta_i and W_i. One library shares W among all
clients. W always takes the plain step above, whatever the models' optimiser.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch

from feddwa.algorithms.base import Algorithm, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Memory, Message, Model, ServerState, Stack, StepState, Trainer
from feddwa.engine.network import Client, Completed, task_loss
from feddwa.engine.numbers import Number, times
from feddwa.engine.optimizers import PLAIN
from feddwa.engine.rows import only, repeat
from feddwa.errors import require
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class BlendStep:
    """One step of W."""

    rate: Number

    def __call__(
        self, client: Client, state: StepState, batch: Batch, own: Model, shared: Model, rest: Model
    ) -> StepState:
        """One step on a batch: own and shared have the blended layers, rest the others."""
        weights = state["weights"]
        gradient = client.gradient(blend(own, shared, weights), batch, Completed(task_loss), fixed=rest)
        moved = {name: w - times(self.rate, gradient[name] * (shared[name] - own[name])) for name, w in weights.items()}
        return {"weights": Model({name: value.clamp(0, 1) for name, value in moved.items()})}


def blend(own: Stack, shared: Stack, weights: Stack) -> Model:
    """own + (shared - own) weights, exactly own at 0 and exactly shared at 1."""
    return Model({name: torch.lerp(value, shared[name], weights[name]) for name, value in own.items()})


@dataclass(frozen=True)
class FedALA(FedAvg):
    """FedALA with the official values."""

    title = "FedALA"
    summary = "learns, for each parameter, how much of the global model to take"
    kind, year = "personal", 2023
    global_model = False
    probe_passes = evaluation_probe_passes = 0.8
    models_kept, numbers_kept = "2 * (1 - body)", 1
    evaluated = "its blend of the global and its own model"
    newcomer = Algorithm.newcomer  # it has no model of its own to blend: fine-tuning

    blend_lr: Annotated[float, Tunable(0.01, 10, log=True)] = 1.0
    """eta_W: rate of the weights."""
    share: Annotated[float, Tunable(0.2, 1.0)] = 0.8
    """s: share of the training data on which the weights are learned."""
    start_epochs: Repeats = 11
    """Epochs of learning in a client's second round; later rounds take one."""
    head: str = "last"
    """The blended layers: last, all, or names separated by commas."""

    def __post_init__(self) -> None:
        require(0 <= self.blend_lr < math.inf, "--param blend_lr", self.blend_lr, "a finite number, 0 or more")
        require(0 < self.share <= 1, "--param share", self.share, "above 0, at most 1")
        require(self.start_epochs >= 1, "--param start_epochs", self.start_epochs, "at least 1")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """FedAvg's server; each client has its blended layers, their weights and its number of rounds."""
        server, _ = super().setup(problem)
        names = tuple(problem.initial) if self.head == "all" else problem.head_named(self.head)
        own = repeat(only(problem.initial, names), problem.clients)
        weights = {name: torch.ones_like(value[:1]).expand(value.shape) for name, value in own.items()}
        return server, {"own": own, "weights": weights, "rounds": {"count": torch.zeros(problem.clients)}}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from the blend."""
        start, weights = self.start(trainer, download["model"], memory)
        local, memory = trainer.sgd(start, memory)
        kept = {"own": only(local, weights), "weights": weights, "rounds": {"count": memory["rounds"]["count"] + 1}}
        return {"model": local}, {**memory, **kept}

    def start(self, trainer: Trainer, shared: Stack, memory: Memory) -> tuple[Stack, Stack]:
        """The blend of w (m, *shape) and a client's own layers, and the learned weights."""
        own, weights, count = memory["own"], memory["weights"], memory["rounds"]["count"]
        samples = (self.share * trainer.sizes()).long().clamp(min=1)
        samples -= (
            (samples > 1) & (samples % trainer.batch_size == 1)
        ).long()  # BatchNorm needs batches of two or more
        rest = {name: value for name, value in shared.items() if name not in own}
        constants = {"own": own, "shared": only(shared, own), "rest": rest}
        for epochs, who in ((self.start_epochs, count == 1), (1, count > 1)):
            if who.any():
                some = samples * who.cpu()
                learn = partial(trainer.train, BlendStep(self.blend_lr), optimizer=PLAIN, purpose="ala")
                weights = learn({"weights": weights}, memory, constants, epochs=epochs, samples=some)[0]["weights"]
        return {**shared, **blend(own, shared, weights)}, weights

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The blend."""
        return self.start(trainer, download["model"], memory)[0], memory
