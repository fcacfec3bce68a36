"""FedPer: the body of the network is shared, its head stays with the client (Arivazhagan et al., 2019).

    client  (phi_i, h_i) <- E epochs of SGD from (phi, h_i)
    server  phi = sum_{k in S_t} (n_k / n) phi_k

Crosses the network: phi down and up. The head h_i, the last linear layer, never leaves the client.

    feddwa run --algorithm examples/extend/fedper.py:FedPer
"""

from dataclasses import dataclass

from feddwa.algorithms.base import Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.engine import Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import repeat
from feddwa.errors import InputError


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedPer whose head is the last linear layer."""

    title = "FedPer"
    summary = "a shared body, a head for every client"
    models_down = models_up = "body"

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The server has the body, every client a head."""
        body = {name: value for name, value in problem.initial.items() if name not in problem.head}
        if not problem.head or not body:
            raise InputError("algorithm FedPer: needs a model with a body and, as its last layer, an nn.Linear")
        head = {name: problem.initial[name] for name in problem.head}
        return {"model": body}, {"head": repeat(head, problem.clients)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of body and head."""
        model, memory = trainer.sgd({**download["model"], **memory["head"]}, memory)
        head = {name: model[name] for name in memory["head"]}
        return {"model": {name: model[name] for name in download["model"]}}, {**memory, "head": head}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The shared body with the client's head."""
        return {**download["model"], **memory["head"]}, memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The client's body with its head."""
        return {**upload["model"], **memory["head"]}
