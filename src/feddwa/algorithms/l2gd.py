"""L2GD: local models drawn together by a penalty on their spread (Hanzely and Richtarik, 2020).

The models minimise (1/N) sum_i f_i(x_i) + lambda/(2N) sum_i ||x_i - x_mean||^2. In every step of the original, a coin
decides between a gradient step of all clients and a step of all models towards their mean. In rounds:

    client  v_i = E epochs of SGD from its own x_i
    server  x_i = (1 - theta) v_i + theta mean_{k in S_t} v_k        P = (1 - theta) I + theta 11'/m

Crosses the network: v_i up, x_i down, two model sizes. The mixture x_i is evaluated; absent clients keep theirs.

Where the paper, its code and others differ: with probability p of a mixing step there are tau = (1 - p)/p local steps
between two of them, so that theta = eta lambda tau, and a round is the steps of E epochs rather than a random number.
At the paper's best p theta is 1/2, our default. There is no official code. The mean counts clients equally, as the
objective does. Two codes of other papers write mixtures into copies that nobody reads, so that nothing is mixed;
another counts the first client twice. theta = 0 is Local; theta = 1 with full participation is FedAvg over equal sizes.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.engine import Cohort, Memory, Message, ServerState, Trainer
from feddwa.engine.rows import put, repeat, take
from feddwa.errors import require
from feddwa.mixing import mix
from feddwa.params import Tunable


@dataclass(frozen=True)
class L2GD(Algorithm):
    """L2GD with theta from its theory."""

    title = "L2GD"
    summary = "local models, each a step towards the mean of all after every round"
    kind, year = "personal", 2020
    models_down = models_up = passes = 1
    server_ops = "m**2"
    discloses, evaluated = "its trained model", "its mixture with the mean"

    theta: Annotated[float, Tunable(0.0, 1.0)] = 0.5
    """Share of the mean in every model."""

    def __post_init__(self) -> None:
        require(0 <= self.theta <= 1, "--param theta", self.theta, "from 0 to 1")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """Every client's model x_i."""
        return {"model": repeat(problem.initial, problem.clients)}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The client's own x_i."""
        return {"model": take(server["model"], cohort.ids)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from x_i."""
        local, memory = trainer.sgd(download["model"], memory)
        return {"model": local}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Move each model a share theta towards the participants' mean."""
        m = len(cohort)
        weights = (1 - self.theta) * torch.eye(m, dtype=torch.float64) + self.theta / m
        mixed = put(server["model"], cohort.ids, mix(weights, upload["model"], personal=True))
        return {"model": mixed}, {"weights": weights}
