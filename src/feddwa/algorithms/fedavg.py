"""FedAvg: one global model, averaged by data size (McMahan et al., AISTATS 2017).

    w = sum_{k in S_t} (n_k / n) v_k

Crosses the network: w down, v_k up, two model sizes. BatchNorm statistics stay with the clients, as in FedDWA's code,
and the global model is evaluated on the clients with them: a server-side test would use statistics that nobody trained.
"""

from dataclasses import dataclass

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.engine.rows import Cohort, State, repeat
from feddwa.engine.trainer import Trainer
from feddwa.mixing import mix


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """FedAvg."""

    title = "FedAvg"
    summary = "one global model, the average by data size"
    order = 2
    models_down = models_up = 1
    passes = 1
    server_ops = "m"

    def setup(self, problem: Problem) -> tuple[State, State]:
        """The global model, without a client axis."""
        return {"model": problem.initial}, {}

    def download(self, server: State, cohort: Cohort) -> State:
        """The same model for everybody."""
        return {"model": repeat(server["model"], len(cohort))}

    def client(self, trainer: Trainer, download: State, memory: State) -> tuple[State, State]:
        """E epochs from the global model."""
        local, memory = trainer.sgd(download["model"], memory)
        return {"model": local}, memory

    def server(self, server: State, cohort: Cohort, upload: State) -> tuple[State, Info]:
        """P has the same row n_k / n for everybody, so one row is mixed."""
        weights = (cohort.sizes.double() / cohort.sizes.sum()).unsqueeze(0)  # (1, m)
        mean = mix(weights, upload["model"])
        return {"model": {name: value[0] for name, value in mean.items()}}, {"weights": weights.expand(len(cohort), -1)}
