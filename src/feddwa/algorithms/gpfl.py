"""GPFL: features take a generic and a personal route through conditions on class embeddings (Zhang et al., ICCV 2023).

    z = h(x) features;   route(z, q) = relu((1 + gamma(q)) z + beta(q)),   gamma, beta: LayerNorm(relu(linear(q)))
    q_g = mean_c A[c],   q_i = sum_c pi_i^c A[c]      A: class embeddings as downloaded (A0), pi_i: class shares
    client  CE(P_i(route(z, q_i)), y) + CE(cos(route(z, q_g), A[.]), y) + lambda ||route(z, q_g) - A0[y]||_F
            moves h, gamma, beta, A and the head P_i; A, gamma and beta decay by mu
    server  (h, gamma, beta, A) = sum_{k in S_t} (n_k / n) (h_k, gamma_k, beta_k, A_k)

Crosses the network: the body h, gamma, beta (2 F^2 + 6 F numbers) and A (C F), down and up. P_i and pi_i stay with the
client. P_i(route(h(x), q_i)) is evaluated with the current shared part; q_i is a vector of the evaluated model.

Where the paper, its code and others differ: the official code computes q_i and q_g from the client's own embeddings
after its last training, just before they are overwritten, and both are 0 in its first round. Two other codes use the
received embeddings, as we do, and divide q_i once more by C; ours remains a convex combination. The norm is over the
whole batch, neither squared nor averaged, and so grows with the root of B. lambda and mu are those of the released
command for small networks (for ResNet-18: 0.0001 and 0); a library's defaults are 1 and 0.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddwa.algorithms.base import Problem
from feddwa.algorithms.partial import PartlyShared
from feddwa.algorithms.prior import class_shares
from feddwa.data.federated import Batch
from feddwa.engine import Memory, Message, Model, ServerState, Stack, Trainer
from feddwa.engine.network import ADDED, Net, added, call_added, outputs_and_features, with_added
from feddwa.engine.numbers import Number, times
from feddwa.engine.rows import only
from feddwa.errors import require
from feddwa.params import Tunable

CONDITION = f"{ADDED}.condition"  # end of the name of q_i


class Valve(nn.Module):
    """Class embeddings A, and the routes of features conditioned on them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        features, classes = linear.in_features, linear.out_features
        self.embeddings = nn.Parameter(torch.randn(classes, features))
        self.condition = nn.Parameter(torch.zeros(features))  # q_i, a constant that is never trained
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features)) for _ in range(2)
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """The route of z (B, F) under a condition (1, F)."""
        return F.relu((1 + self.gamma(condition)) * z + self.beta(condition))

    def outputs(self, z: Tensor, linear: nn.Linear) -> Tensor:
        """Outputs of the personal head on the personal route: (B, F) -> (B, C)."""
        scores: Tensor = linear(self(z, self.condition.unsqueeze(0)))
        return scores


@dataclass(frozen=True)
class TwoRoutes:
    """The losses of both routes; received: A0 (C, F)."""

    lam: Number
    mu: Number

    def __call__(self, net: Net, params: Model, batch: Batch, received: Model) -> Tensor:
        """Sum of both routes' losses on a batch."""
        outputs, z = outputs_and_features(net, params, batch.x)
        valve, known = added(params), received["A0"]
        generic = call_added(net, params, z, known.mean(0, keepdim=True))  # (B, F)
        cosines = F.linear(F.normalize(generic), F.normalize(valve["embeddings"]))  # (B, C)
        away = torch.linalg.vector_norm(generic - known[batch.y])
        fit = net.loss_function(outputs, batch.y) + net.loss_function(cosines, batch.y)
        squares = torch.stack([value.square().sum() for name, value in valve.items() if name != "condition"])
        return fit + times(self.lam, away) + times(self.mu, squares.sum() / 2)


@dataclass(frozen=True)
class GPFL(PartlyShared):
    """GPFL with the released command's values for small networks."""

    title = "GPFL"
    summary = "class embeddings guide a shared body on one route; personal heads use another"
    kind, year = "shared-body", 2023
    models_down = models_up = "body + added"
    added_numbers = "(classes + 2 * features + 6) * features"
    other_ops = "8 * steps * features**2 + 3 * samples * classes * features"
    models_kept, numbers_kept = "1 - body", "features + classes"
    server_ops = "m * (body + added)"
    discloses, evaluated = "its trained body and class embeddings", "the shared body with its own route and head"

    lam: Annotated[float, Tunable(1e-4, 1, log=True)] = 0.01
    """lambda: strength of the pull of features to the embeddings of their classes."""
    mu: Annotated[float, Tunable(0.0, 1.0)] = 0.1
    """mu: weight decay of the embeddings and of gamma and beta."""

    def __post_init__(self) -> None:
        for name in ("lam", "mu"):
            require(0 <= getattr(self, name) < math.inf, f"--param {name}", getattr(self, name), "0 or more, finite")

    def network(self, module: nn.Module) -> nn.Module:
        """The network with embeddings, gamma and beta before the head."""
        return with_added(module, "gpfl", Valve)

    def own(self, problem: Problem) -> tuple[str, ...]:
        """The head and q_i."""
        problem.head_weight("gpfl")
        return *problem.head, *(name for name in problem.initial if name.endswith(CONDITION))

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The server has the shared part; each client has its head, q_i and class shares."""
        server, memory = super().setup(problem)
        return server, {**memory, "shares": {"pi": class_shares(problem, "gpfl", added(problem.initial)["embeddings"])}}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of everything but q_i."""
        start, _ = self.personal(trainer, download, memory)
        fixed = {name: value for name, value in start.items() if name.endswith(CONDITION)}
        moving = {name: value for name, value in start.items() if name not in fixed}
        routes, received = TwoRoutes(self.lam, self.mu), {"A0": added(start)["embeddings"]}
        model, memory = trainer.sgd(moving, memory, objective=routes, fixed=fixed, received=received)
        return {"model": self.shared(model, memory)}, {**memory, "own": only({**model, **fixed}, memory["own"])}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The shared part with the client's head, and q_i from the current embeddings."""
        model, memory = super().personal(trainer, download, memory)
        condition = (memory["shares"]["pi"].unsqueeze(2) * added(model)["embeddings"]).sum(1)  # (m, F)
        return {name: condition if name.endswith(CONDITION) else model[name] for name in model}, memory
