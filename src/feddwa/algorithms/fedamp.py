"""FedAMP: attentive message passing between clients (Huang et al., AAAI 2021).

    server  u_i = sum_j xi_ij w_j,   xi_ij = alpha A'(||w_i - w_j||^2),   xi_ii = 1 - sum_{j != i} xi_ij
            A(x) = 1 - exp(-x / sigma), so A'(x) = exp(-x / sigma) / sigma
    client  w_i = argmin_v f_i(v) + lambda / (2 alpha) ||v - u_i||^2,   E epochs of SGD from its own w_i

Crosses the network: u_i down, w_i up, two model sizes. w_i is evaluated, which the client stores.

Where the paper, its code and others differ: there is no official code. The library used by FedDWA's authors had the
formula wrong in both relevant years: in 2022 the self part was the old u_i instead of w_i; since 2023 the proximal term
is computed from detached tensors, so that FedAMP was Local training (lam = 0 here). Ours is the formula, squared and
differentiated. The paper does not describe partial participation; as in that library, w_i is mixed with the uploads of
the last round's cohort alone (`neighbours`). FedDWA's values sigma = alpha = 1, lambda = 0.1 are far from the
original's (about 1e6, 1e4, 1). They make the self weight negative while models are close (its lower bound is 1 - n
alpha / sigma for n neighbours; the mix is convex only for alpha <= sigma / n). Once models are several sigma apart, u_i
= w_i and FedAMP is Local training. With neighbours=everyone, n grows from round to round and the self weight diverges.
The report shows the self weights of every round.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Numbers, Problem
from feddwa.algorithms.proximal import ProximalStep
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import put, repeat, take
from feddwa.errors import require
from feddwa.mixing import mix, squared_distances
from feddwa.params import Tunable


@dataclass(frozen=True)
class FedAMP(Algorithm):
    """FedAMP with FedDWA's values."""

    title = "FedAMP"
    summary = "attention between similar clients' models"
    kind, year = "collaboration", 2021
    order = 11
    models_down = models_up = 1
    passes = 1
    server_ops = "N * m + N**2"
    models_kept = 1
    discloses, evaluated = "its trained model", "its own model"

    alpha: Annotated[float, Tunable(0.01, 1e4, log=True)] = 1.0
    """Step size of the server on the attention."""
    sigma: Annotated[float, Tunable(0.1, 1e6, log=True)] = 1.0
    """Squared distance over which attention decays."""
    lam: Annotated[float, Tunable(1e-3, 10, log=True)] = 0.1
    """lambda: pull towards u_i, divided by alpha."""
    neighbours: Literal["cohort", "everyone"] = "cohort"
    """Whose last uploads are mixed: those of the last round, or of all clients."""

    def __post_init__(self) -> None:
        require(0 < self.alpha < math.inf, "--param alpha", self.alpha, "a finite number above 0")
        require(0 < self.sigma < math.inf, "--param sigma", self.sigma, "a finite number above 0")
        require(0 <= self.lam < math.inf, "--param lam", self.lam, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """Every client's last upload w_i and message u_i; the client stores its w_i."""
        models = repeat(problem.initial, problem.clients)
        seen = {"clients": torch.zeros(problem.clients, dtype=torch.bool)}
        return {"model": models, "message": models, "seen": seen}, {"model": models}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """u_i."""
        return {"message": take(server["message"], cohort.ids)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from the client's own model, with a pull towards u_i."""
        step = ProximalStep(trainer.lr, self.lam / self.alpha)
        upload, memory = trainer.train(step, {"model": memory["model"]}, memory, {"anchor": download["message"]})
        return upload, {**memory, "model": upload["model"]}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """New messages for all clients, since the neighbours of any may have moved."""
        models = put(server["model"], cohort.ids, upload["model"])
        seen = server["seen"]["clients"].index_fill(0, cohort.ids, True)
        neighbours = cohort.ids if self.neighbours == "cohort" else seen.nonzero().flatten()
        weights = self.attention(models, neighbours)
        new = {"model": models, "message": mix(weights, models, personal=True), "seen": {"clients": seen}}
        own = weights[cohort.ids][:, cohort.ids]
        numbers = {"self_weight": own.diagonal().mean(), "neighbours": torch.tensor(len(neighbours) - 1)}
        return new, {"weights": own, **numbers}

    def warnings(self, measured: Sequence[Numbers], rounds: int) -> Iterator[str]:
        """Whether messages overshoot because a client's neighbours weigh more than 1 in total."""
        lowest = min((each["self_weight"] for each in measured), default=0.0)
        if lowest < 0:
            count = sum(each["self_weight"] < 0 for each in measured)
            enough = max(each["neighbours"] for each in measured) * self.alpha
            yield (
                f"a client's own weight is negative in {count} of {len(measured)} rounds, {lowest:.3g} in the mean at "
                f"worst: models are pushed away from one another instead of mixed; from --param sigma={enough:g} on it "
                "cannot be"
            )

    def attention(self, models: Stack, neighbours: Tensor) -> Tensor:
        """xi (N, N): row i weighs the models in u_i, those of `neighbours` (k,) and the client's own."""
        distances = squared_distances(models, take(models, neighbours)).cpu()  # (N, k)
        near = self.alpha / self.sigma * torch.exp(-distances / self.sigma)
        xi = near.new_zeros(len(near), len(near)).index_copy_(1, neighbours, near).fill_diagonal_(0)
        return xi + torch.diag(1 - xi.sum(1))

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The client's own model."""
        return memory["model"], memory
