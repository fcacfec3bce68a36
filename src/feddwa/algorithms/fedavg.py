"""FedAvg: one global model, averaged by data size (McMahan et al., AISTATS 2017).

    w = sum_{k in S_t} (n_k / n) v_k

Crosses the network: w down, v_k up, two model sizes. BatchNorm statistics stay with the clients, as in FedDWA's code,
and each client evaluates the global model with its own: a server-side test would use untrained statistics.
"""

from dataclasses import dataclass
from typing import ClassVar

from feddwa.algorithms.base import Algorithm, Amount, Info, Problem
from feddwa.algorithms.newcomer import Newcomer, Others
from feddwa.engine import Cohort, Memory, Message, ServerState, Trainer
from feddwa.engine.rows import repeat
from feddwa.mixing import average


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """FedAvg."""

    title = "FedAvg"
    summary = "one global model, the average by data size"
    kind, year = "global", 2017
    order = 2
    global_model = True
    models_down: ClassVar[Amount] = 1
    models_up: ClassVar[Amount] = 1
    passes = 1
    server_ops = "m"
    discloses, evaluated = "its trained model", "the global model"

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model, without a client axis."""
        return {"model": problem.initial}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The same model for every client."""
        return {"model": repeat(server["model"], len(cohort))}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from the global model."""
        local, memory = trainer.sgd(download["model"], memory)
        return {"model": local}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean by data size; every row of P is n_k / n."""
        mean, weights = average(cohort.sizes, upload["model"])
        return {"model": mean}, {"weights": weights}

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """The global model, adapted as the method adapts it before use; the mean of the others' models replaces it."""
        weights = others.by_size()
        model, memory = others.mixed(weights)
        adapted = ", adapted to its data as every client adapts it" if self.evaluation_passes else ""
        model, memory = self.personal(trainer, {"model": model}, memory)
        return Newcomer(model, memory, weights, f"the global model{adapted}", spent=0)
