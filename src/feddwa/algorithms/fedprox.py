"""FedProx: FedAvg whose clients stay near the global model (Li et al., MLSys 2020).

    client  min_v f_k(v) + mu/2 ||v - w||^2        so each step follows grad f_k(v) + mu (v - w), w as downloaded
    server  w = sum_{k in S_t} (n_k / n) v_k

Crosses the network: w down, v_k up, two model sizes.

Where the paper, its code and others differ: the original also lets stragglers stop early; all clients here do the same
work. Several public codes omit the square or detach the term, so that mu has no effect; the tests check ours against
finite differences of the objective. mu = 0 is FedAvg bit for bit. At rate 0.01 and 125 steps, mu = 1 is strong: it
shrinks a drift to (1 - 0.01)^125, a quarter, as the paper's tables show.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.proximal import ProximalStep
from feddwa.engine import Memory, Message, Trainer
from feddwa.errors import require
from feddwa.params import Tunable


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx with FedDWA's value of mu, from {0.01, 0.1, 1, 10}; the original's depends on the dataset."""

    title = "FedProx"
    summary = "FedAvg with a pull towards the global model"
    kind, year = "global", 2020
    order = 3

    mu: Annotated[float, Tunable(1e-3, 10, log=True)] = 1.0
    """Strength of the pull."""

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, "--param mu", self.mu, "a finite number, 0 or more")

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs, pulled towards the initial model."""
        step = ProximalStep(trainer.lr, self.mu)
        return trainer.train(step, download, memory, {"anchor": download["model"]})
