"""pFedGraph: the server infers who should work with whom (Ye et al., ICML 2023).

    server  c_ij = cos(v_i - w^0, v_j - w^0), 1 where above 0.9;   p_j = n_j / n
            x_i  = argmin over the simplex of alpha ||x - p||^2 - <c_i, x>, the projection of p + c_i / (2 alpha) on it
            w_i  = sum_{j in S_t} x_ij v_j
    client  v_i = argmin_v f_i(v) - lambda cos(v, w_i),   E epochs of SGD from w_i; in round 1 without the cosine

Crosses the network: w_i down, v_i up, two model sizes.

Where the paper, its code and others differ: the official scripts add lambda cos to the loss, which pushes a model away
from its mixture; we subtract it, as the paper does. The default makes little difference: the term's gradient is 0 at
w_i and below lambda / ||v|| elsewhere. The official code uses a general solver for the quadratic programme, whose
solution is the projection. w^0 is the common initial model, not that of the round. Measured from it, updates of mixed
clients become ever more similar, until the threshold 0.9 makes hard groups of them with weights by size, right or
wrong; since=round avoids that, and groups less well. The official code evaluates the best round by validation data;
here the current w_i is evaluated. p counts the participants alone; absent clients keep their w_i.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.simplex import project_to_simplex
from feddwa.data.federated import Batch
from feddwa.engine import Cohort, Memory, Message, Model, ServerState, Trainer
from feddwa.engine.network import Net
from feddwa.engine.numbers import Number, times
from feddwa.engine.rows import difference, put, repeat, take
from feddwa.errors import require
from feddwa.mixing import inner_products, mix, pairwise_cosines
from feddwa.params import Tunable

ALIKE = 0.9  # clients with a larger cosine count as equal


@dataclass(frozen=True)
class Leaning:
    """The objective f(v) - strength cos(v, anchor), over all parameters."""

    strength: Number

    def __call__(self, net: Net, params: Model, batch: Batch, anchor: Model) -> Tensor:
        """The objective on a batch."""
        pairs = [(value, anchor[name]) for name, value in params.items()]
        product, own, other = (
            torch.stack([(a * b).sum() for a, b in chosen]).sum()
            for chosen in (pairs, [(a, a) for a, _ in pairs], [(b, b) for _, b in pairs])
        )
        return net.loss(params, batch) - times(self.strength, product / (own * other).sqrt())


@dataclass(frozen=True)
class PFedGraph(Algorithm):
    """pFedGraph with the official values."""

    title = "pFedGraph"
    summary = "a collaboration graph from a quadratic programme on cosines"
    kind, year = "collaboration", 2023
    models_down = models_up = passes = 1
    server_ops = "2 * m**2"
    stackable = ("alpha", "since")
    discloses, evaluated = "its trained model", "its mixture of models"

    alpha: Annotated[float, Tunable(0.01, 10, log=True)] = 0.8
    """How close weights stay to data sizes; large = FedAvg."""
    lam: Annotated[float, Tunable(1e-3, 1, log=True)] = 0.01
    """lambda: strength of the pull of a model towards its mixture."""
    since: Annotated[Literal["initial", "round"], Tunable(choices=("initial", "round"))] = "initial"
    """Origin of the updates: the initial model, or that of the round."""

    def __post_init__(self) -> None:
        require(0 < self.alpha < math.inf, "--param alpha", self.alpha, "a finite number above 0")
        require(0 <= self.lam < math.inf, "--param lam", self.lam, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """One personalised model per client, and the common initial model."""
        return {"model": repeat(problem.initial, problem.clients), "initial": problem.initial}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The client's own mixture w_i."""
        return {"model": take(server["model"], cohort.ids)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from the mixture, pulled towards it."""
        start = download["model"]
        if trainer.round == 1 or not self.lam:
            local, memory = trainer.sgd(start, memory)
        else:
            local, memory = trainer.sgd(start, memory, objective=Leaning(self.lam), anchor=start)
        return {"model": local}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Infer the graph, and mix by it."""
        local, m = upload["model"], len(cohort)
        origin = repeat(server["initial"], m) if self.since == "initial" else take(server["model"], cohort.ids)
        update = difference(local, origin)
        weights = self.graph(pairwise_cosines(inner_products(update, update)), cohort.sizes)
        mixed = mix(weights, local, personal=True)
        return {**server, "model": put(server["model"], cohort.ids, mixed)}, {"weights": weights}

    def graph(self, cosines: Tensor, sizes: Tensor) -> Tensor:
        """P (m, m) from the cosines of updates (m, m) and data sizes (m,)."""
        shares = sizes.double() / sizes.sum()
        counted = cosines.where(cosines <= ALIKE, 1.0).fill_diagonal_(1.0)
        return project_to_simplex(shares + counted / (2 * self.alpha))
