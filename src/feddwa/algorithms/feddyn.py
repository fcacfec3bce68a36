"""FedDyn: a regulariser that makes the clients' optima meet at the global one (Acar et al., ICLR 2021).

    client  v_k = argmin_v f_k(v) - <g_k, v> + alpha/2 ||v - w||^2   by E epochs of SGD from w
            g_k = g_k - alpha (v_k - w)
    server  h = h - alpha/N sum_{k in S_t} (v_k - w);   w = mean_{k in S_t} v_k - h / alpha

Crosses the network: w down, v_k up, two model sizes. g_k stays with its client, h on the server; both are 0 at first.
At an exact minimum g_k is the gradient of f_k there; with full participation h is the mean of the g_k.

Where the paper, its code and others differ: the official code stores -g_k / alpha instead of g_k, divides alpha by the
client's share of samples, clips gradients, and tests mean v_k rather than w. Here alpha is the same for all, as in the
paper, and w is tested, which differs from the mean by h / alpha. Two libraries have another method: one pulls by
alpha/2 ||v - w|| without the square, a force that never fades; the other omits the quadratic term. alpha -> 0 is not
FedAvg, because h / alpha does not vanish with it. h is an unbounded sum and can diverge where clients do few steps, so
every round reports its norm. Up to a constant, -<g, v> + alpha/2 ||v - w||^2 is alpha/2 ||v - (w + g / alpha)||^2: a
pull towards a shifted anchor.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from feddwa.algorithms.base import Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.proximal import ProximalStep
from feddwa.engine import Cohort, Memory, Message, ServerState, Trainer
from feddwa.engine.rows import norms, repeat, zeros
from feddwa.errors import require
from feddwa.mixing import average
from feddwa.params import Tunable


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedDyn with the official alpha."""

    title = "FedDyn"
    summary = "a dynamic regulariser aligns local and global optima"
    kind, year = "global", 2021
    models_kept = 1
    updates = ("gradient",)

    alpha: Annotated[float, Tunable(1e-3, 0.1, log=True)] = 0.01
    """Strength of the pull towards w; usually 0.001 to 0.1."""

    def __post_init__(self) -> None:
        require(0 < self.alpha < math.inf, "--param alpha", self.alpha, "a finite number above 0")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model and h; every client stores its g_k."""
        nothing = zeros(problem.initial)
        return {"model": problem.initial, "drift": nothing}, {"gradient": repeat(nothing, problem.clients)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs with a pull towards w + g_k / alpha, and the new g_k."""
        start, gradient = download["model"], memory["gradient"]
        shifted = {name: start[name] + value / self.alpha for name, value in gradient.items()}
        constants = {"anchor": {**start, **shifted}}
        state, after = trainer.train(ProximalStep(trainer.lr, self.alpha), {"model": start}, memory, constants)
        local = state["model"]
        new = {name: value - self.alpha * (local[name] - start[name]) for name, value in gradient.items()}
        return {"model": local}, {**after, "gradient": new}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean over clients, shifted by h."""
        mean, weights = average(torch.ones(len(cohort)), upload["model"])
        step = self.alpha * len(cohort) / cohort.clients
        drift = {name: value - step * (mean[name] - server["model"][name]) for name, value in server["drift"].items()}
        model = {name: value - drift[name] / self.alpha for name, value in mean.items()}
        return {"model": model, "drift": drift}, {"weights": weights, "drift_norm": norms(repeat(drift, 1))[0]}
