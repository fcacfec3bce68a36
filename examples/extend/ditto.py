"""Ditto: a personal model beside the global one, pulled towards it (Li, Hu, Beirami and Smith, ICML 2021).

    client  w_i = w; E epochs of  w_i <- w_i - eta grad f_i(w_i)
            v_i <- v_i - eta [grad f_i(v_i) + strength (v_i - w)],  E epochs, w as downloaded
    server  w = sum_{k in S_t} (n_k / n) w_k, which is FedAvg

Crosses the network: w down, w_i up. The personal model v_i is evaluated and never leaves the client.

    feddwa run --algorithm examples/extend/ditto.py:Ditto --param strength=0.1
"""

import math
from dataclasses import dataclass

from feddwa.algorithms.base import Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.proximal import ProximalStep
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import repeat
from feddwa.errors import require


@dataclass(frozen=True)
class Ditto(FedAvg):
    """Ditto with the original's default for the strength of the pull."""

    title = "Ditto"
    summary = "a personal model beside the global one, pulled towards it"
    passes = 2

    strength: float = 1.0
    """Strength of the pull, lambda in the paper; 0 is local training."""

    def __post_init__(self) -> None:
        require(0 <= self.strength < math.inf, "--param strength", self.strength, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """FedAvg's server; every client has a personal model."""
        server, _ = super().setup(problem)
        return server, {"own": repeat(problem.initial, problem.clients)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of both models. The personal one is last: BatchNorm's statistics are those of what is evaluated."""
        shared, _ = trainer.sgd(download["model"], memory)
        step = ProximalStep(trainer.lr, self.strength)
        state, memory = trainer.train(step, {"model": memory["own"]}, memory, {"anchor": download["model"]})
        return {"model": shared}, {**memory, "own": state["model"]}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """Nothing: clients have what is evaluated."""
        return {}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The personal model."""
        return memory["own"], memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The personal model."""
        return memory["own"]
