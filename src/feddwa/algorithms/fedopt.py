"""FedOpt: an adaptive optimiser on the server (Reddi et al., ICLR 2021): FedAdagrad, FedAdam and FedYogi.

    D = sum_{k in S_t} (n_k / n) v_k - w            the round as a direction
    m = beta1 m + (1 - beta1) D
    v = see each of them, elementwise, from D^2
    w = w + eta_g m / (sqrt(v) + tau)

Crosses the network: as FedAvg, two model sizes; m and v stay on the server. BatchNorm statistics never pass through v.

Where the paper, its code and others differ: tau stands outside the root, and m and v have no bias correction; Keras,
optax and one framework's FedAdam correct it, the latter starting at exponent 2. m starts at 0, v at tau^2 as in the
paper's box; the authors' published runs and most libraries start it at 0. For tiny v a step is m / tau, so tau and
eta_g go together: the authors tuned both per task, tau from 1e-4 to 0.1 and eta_g from 0.003 to 1. beta1 = 0 with eta_g
= tau, both large, is FedAvg.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from feddwa.algorithms.base import Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.engine import Cohort, Memory, Message, ServerState
from feddwa.engine.rows import zeros
from feddwa.errors import require
from feddwa.params import Tunable


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """The part shared by FedAdagrad, FedAdam and FedYogi."""

    server_lr: Annotated[float, Tunable(1e-3, 1, log=True)] = 0.01
    """eta_g: the server's rate."""
    beta1: float = 0.9
    """Share of the old direction kept."""
    tau: Annotated[float, Tunable(1e-4, 0.1, log=True)] = 0.001
    """Added to the root of v: the larger, the less adaptive."""

    def __post_init__(self) -> None:
        require(0 <= self.server_lr < math.inf, "--param server_lr", self.server_lr, "a finite number, 0 or more")
        require(0 <= self.beta1 < 1, "--param beta1", self.beta1, "from 0 to below 1")
        require(0 < self.tau < math.inf, "--param tau", self.tau, "a finite number above 0")

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """v of one parameter from its last value and D^2."""
        raise NotImplementedError

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model, m and v."""
        second = {name: value + self.tau**2 for name, value in zeros(problem.initial).items()}
        return {"model": problem.initial, "first": zeros(problem.initial), "second": second}, {}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """A step along FedAvg's mean update."""
        averaged, info = super().server(server, cohort, upload)
        model, first, second = ({}, {}, {})  # type: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]
        for name, value in server["model"].items():
            direction = averaged["model"][name] - value
            first[name] = self.beta1 * server["first"][name] + (1 - self.beta1) * direction
            second[name] = self.second_moment(server["second"][name], direction.square())
            model[name] = value + self.server_lr * first[name] / (second[name].sqrt() + self.tau)
        return {"model": model, "first": first, "second": second}, info


@dataclass(frozen=True)
class Decaying(FedOpt):
    """FedAdam and FedYogi, whose v decays."""

    beta2: float = 0.99
    """Share of the old v kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, "--param beta2", self.beta2, "from 0 to below 1")
