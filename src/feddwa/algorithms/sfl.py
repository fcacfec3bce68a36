"""SFL: structured federated learning over a graph of clients (Chen et al., IJCAI 2022).

    client  v_i = SGD(w)                        all clients start from the global model
    server  W = every client's latest model;  U = A^L W        L hops over the row-normalised relation graph A
            w = mean of the rows of U;   u_i = row i of U is client i's personalised model
    A_ij ~ 1 if i and j share one of their five most frequent labels (itself included)

Crosses the network: w down, v_i up, two model sizes; three with the regulariser, which also needs u_i. The server knows
the label sets behind A: a disclosure that other methods do not need.

Where the paper, its code and others differ: the paper pulls v_i towards both w and u_i. The released code builds these
terms (weight 0.3, norms without the square) from detached tensors, so they have no gradient and the published numbers
are without them. `reg` is therefore 0 by default; reg = 0.3 is the paper's idea, squared and differentiated. Without
the terms u_i is needed for evaluation only, hence the paper's count of two model sizes. As in the code, an absent
client enters W with its last u_i, the mean is unweighted, and server_alpha mixes U with W. The learned graph of the
code's variant SFL* (refitted from scratch each round, to weigh distant clients more) is left out. A = 11'/N is FedAvg
without sizes; A = I gives u_i = v_i, though all clients still start from the mean.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.proximal import ProximalStep
from feddwa.engine import Cohort, Memory, Message, ServerState, Trainer
from feddwa.engine.rows import put, repeat, take
from feddwa.errors import InputError, require
from feddwa.mixing import average, mix
from feddwa.params import Tunable


@dataclass(frozen=True)
class SFL(FedAvg):
    """SFL on the label graph, with the official values."""

    title = "SFL"
    summary = "models spread over a graph of clients that share labels"
    kind, year = "collaboration", 2022
    order = 6
    global_model = False
    server_ops = "N**2 + N"
    discloses_labels = True
    newcomer = Algorithm.newcomer  # it is not in the graph: fine-tuning
    discloses, evaluated = "its trained model, label counts", "its mixture of models"

    hops: Annotated[int, Tunable(1, 5)] = 3
    """L: number of hops over the graph."""
    server_alpha: Annotated[float, Tunable(0.0, 1.0)] = 1.0
    """Share of the propagated model in u_i; the rest is the client's own."""
    top_labels: int = 5
    """Number of a client's most frequent labels that define the graph."""
    reg: Annotated[float, Tunable(0.0, 1.0)] = 0.0
    """Pull towards u_i and w; the code intends 0.3 but gives it no gradient."""

    def __post_init__(self) -> None:
        require(self.hops >= 0, "--param hops", self.hops, "0 or more")
        require(0 <= self.server_alpha <= 1, "--param server_alpha", self.server_alpha, "from 0 to 1")
        require(self.top_labels >= 1, "--param top_labels", self.top_labels, "at least 1")
        require(0 <= self.reg < math.inf, "--param reg", self.reg, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model, every client's u_i, and the matrix from W to U."""
        if problem.label_counts is None:
            raise InputError("algorithm sfl: its graph needs class labels; this task has none")
        graph = label_graph(problem.label_counts, self.top_labels)
        identity = torch.eye(problem.clients, dtype=torch.float64)
        spread = self.server_alpha * torch.linalg.matrix_power(graph, self.hops)
        personal = repeat(problem.initial, problem.clients)
        spread = spread + (1 - self.server_alpha) * identity
        return {"model": problem.initial, "personal": personal, "graph": {"spread": spread}}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The global model, and u_i where the objective uses it."""
        message = dict(super().download(server, cohort))
        return message | {"personal": take(server["personal"], cohort.ids)} if self.reg else message

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from the global model."""
        if not self.reg:
            return super().client(trainer, download, memory)
        shared, own = download["model"], download["personal"]
        between = {name: (value + own[name]) / 2 for name, value in shared.items()}  # reg (v - w) + reg (v - u_i) = ...
        step = ProximalStep(trainer.lr, 2 * self.reg)  # ... 2 reg (v - between)
        return trainer.train(step, {"model": shared}, memory, {"anchor": between})

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Put the new models into W, propagate over the graph, and average."""
        spread = server["graph"]["spread"]
        personal = mix(spread, put(server["personal"], cohort.ids, upload["model"]))
        mean, _ = average(torch.ones(len(spread)), personal)
        new = {"model": mean, "personal": personal, "graph": server["graph"]}
        return new, {"weights": spread[cohort.ids][:, cohort.ids]}

    def grow(self, server: ServerState, fresh: ServerState) -> ServerState:
        """Replace the graph by that of all clients."""
        return {**super().grow(server, fresh), "graph": fresh["graph"]}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """The personalised model u_i, which is evaluated but not needed for training."""
        return {"model": take(server["personal"], cohort.ids)}


def label_graph(counts: Tensor, top: int) -> Tensor:
    """A (N, N), rows summing to 1: equal weight on all clients that share one of a client's `top` largest labels.

    Ties between equally frequent labels take the smaller class number.
    """
    order = counts.argsort(dim=1, descending=True, stable=True)[:, :top]
    largest = torch.zeros_like(counts, dtype=torch.bool).scatter_(1, order, True) & (counts > 0)
    linked = (largest.double() @ largest.double().T > 0) | torch.eye(len(counts), dtype=torch.bool)
    return linked.double() / linked.sum(1, keepdim=True)
