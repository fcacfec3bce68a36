"""FedAvgM: FedAvg with momentum on the server (Hsu, Qi and Brown, 2019).

    D = w - sum_{k in S_t} (n_k / n) v_k           the round as a pseudo-gradient, server rate 1
    v = beta v + D
    w = w - (D + beta v)   Nesterov, the default;   w = w - v   plain

Crosses the network: as FedAvg, two model sizes; v stays on the server.

Where the paper, its code and others differ: FedDWA's paper says Nesterov, beta = 0.1 from {0, 0.1, 0.5, 0.9, 0.99},
without a formula; ours is that of the frameworks (SGD with nesterov=True on D). Another public code overwrites v by
each client in turn, so that only the last one counts, or subtracts v once per client; ours first sums over clients.
Momentum acts on parameters, never on BatchNorm statistics. beta = 0 is FedAvg bit for bit.
"""

from dataclasses import dataclass
from typing import Annotated

from feddwa.algorithms.base import Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.engine import Cohort, Memory, Message, ServerState
from feddwa.engine.rows import zeros
from feddwa.errors import require
from feddwa.params import Tunable


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvgM with FedDWA's beta; values around 0.9 are usual elsewhere."""

    title = "FedAvgM"
    summary = "FedAvg with momentum on the server"
    kind, year = "global", 2019
    order = 4

    beta: Annotated[float, Tunable(0.0, 0.95)] = 0.1
    """Share of the old momentum kept."""
    nesterov: bool = True
    """Nesterov momentum, or plain momentum."""

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "--param beta", self.beta, "from 0 to below 1")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """Momentum starts at zero."""
        return {"model": problem.initial, "momentum": zeros(problem.initial)}, {}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """FedAvg's mean moved on by momentum: w - D = mean, so w - (D + beta v) = mean - beta v."""
        averaged, info = super().server(server, cohort, upload)
        mean, old = averaged["model"], server["momentum"]
        momentum = {name: self.beta * old[name] + (w - mean[name]) for name, w in server["model"].items()}
        push = momentum if self.nesterov else old
        new = {name: value - self.beta * push[name] for name, value in mean.items()}
        return {"model": new, "momentum": momentum}, info
