"""Models of which clients share one part by FedAvg and keep the other (FedPer, LG-FedAvg, FedRep, FedBABU, FedBN)."""

from dataclasses import dataclass

from feddwa.algorithms.base import Algorithm, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.engine import Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import only, repeat


@dataclass(frozen=True)
class PartlyShared(FedAvg):
    """FedAvg of a part of the model. The other part, `own`, stays with its client, also while the client is absent."""

    global_model = False
    newcomer = Algorithm.newcomer  # it has no part of its own yet: both are fine-tuned as one

    def own(self, problem: Problem) -> tuple[str, ...]:
        """The names of the parameters that stay with the client."""
        raise NotImplementedError

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The server has the shared part; every client's own part starts from the same values."""
        own = self.own(problem)
        shared = {name: value for name, value in problem.initial.items() if name not in own}
        return {"model": shared}, {"own": repeat(only(problem.initial, own), problem.clients)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of both parts together."""
        model, memory = trainer.sgd({**download["model"], **memory["own"]}, memory)
        return {"model": self.shared(model, memory)}, {**memory, "own": only(model, memory["own"])}

    def shared(self, model: Stack, memory: Memory) -> Stack:
        """A model without the client's own part, some of which BatchNorm policies may have inserted."""
        return {name: value for name, value in model.items() if name not in memory["own"]}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The current shared part with the client's own part."""
        return {**download["model"], **memory["own"]}, memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """Both parts as the client has trained them."""
        return {**upload["model"], **memory["own"]}
