"""FedPAC: features aligned across clients, and heads combined to estimate each client's best (Xu, Tong and Huang,
"Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023).

z: features; h = e_y z^T (C, F) of a sample; H_i = mean h and n_i V_i = mean ||h - H_i||^2 of client i under phi.

    client  theta_i <- E_h epochs of  theta_i - eta_h grad_theta f_i(phi, theta_i)
            phi_i   <- E epochs of SGD from phi on  f_i(phi_i, theta_i) + lambda mean (z_s - t_{y_s})^2
    server  phi  = sum_{k in S_t} (n_k / n) phi_k;   t_c = mean of z over all samples of class c, under the phi_k
            a_i  = argmin over the simplex of sum_j a_j^2 V_j + ||sum_j a_j H_j - H_i||^2
            theta_i = sum_j a_ij theta_j

Crosses the network: phi, theta_i and t down, phi_i, theta_i, H_i, V_i, the class means under phi_i and class counts up.
The server stores every client's theta_i; absent clients keep theirs. (phi, theta_i) is evaluated.

Where the paper, its code and others differ: eta_h is 0.1 whatever the body's rate, and lambda is off in the first
round, as in the code. The code drops eigenvalues of the quadratic form below 0.01, where variances decide; ours is
solved exactly. Weights below 0.001 become 0 and the others are rescaled; PFLlib does not rescale, averages t without
counts, and combines heads by another client's weights, because it draws the participants twice. FL-bench takes the
head's epoch out of E. If no participant has class c, t_c stays; until it exists, a client uses its own mean. H_i, V_i
and t are computed in evaluation mode: no dropout, BatchNorm's running statistics. lambda = 0 and a_ii = 1 give FedRep.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.simplex import combinations
from feddwa.data.federated import Batch
from feddwa.engine import Cohort, Memory, Message, Model, ServerState, Stack, Trainer
from feddwa.engine.features import class_sums, wide
from feddwa.engine.network import Net, outputs_and_features
from feddwa.engine.numbers import Number, times
from feddwa.engine.rows import only, put, repeat, take
from feddwa.errors import InputError, require
from feddwa.mixing import average, mix
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class Aligned:
    """The task's loss plus the distance of features from their class means."""

    lam: Number

    def __call__(self, net: Net, params: Model, batch: Batch, target: Model) -> Tensor:
        """The objective on a batch; target: (C, F)."""
        outputs, features = outputs_and_features(net, params, batch.x)
        distance = (features - target["means"][batch.y]).square().mean()
        return net.loss_function(outputs, batch.y) + times(self.lam, distance)


@dataclass(frozen=True)
class FedPAC(Algorithm):
    """FedPAC with the official values."""

    title = "FedPAC"
    summary = "a shared body whose features are aligned; heads combined by bias and variance"
    kind, year = "shared-body", 2023
    models_down = models_up = 1
    numbers_down = "classes * features + classes"
    numbers_up = "2 * classes * features + classes + 1"
    passes, body_passes, probe_passes, statistics_passes = 0, 1, 1, 2
    server_ops = "m * body + m**2 * (1 - body + classes * features / parameters)"
    optimized = ("model", "head")
    discloses = "its trained model, its class counts, means of its features"
    evaluated = "the shared body with its combined head"

    lam: Annotated[float, Tunable(0.1, 10, log=True)] = 1.0
    """lambda: strength of the pull of features towards their class means."""
    head_epochs: Annotated[Repeats, Tunable(1, 5)] = 1
    """E_h: epochs of the head in a round."""
    head_lr: Annotated[float, Tunable(1e-2, 1, log=True)] = 0.1
    """eta_h: rate of the head."""

    def __post_init__(self) -> None:
        require(0 <= self.lam < math.inf, "--param lam", self.lam, "a finite number, 0 or more")
        require(self.head_epochs >= 1, "--param head_epochs", self.head_epochs, "at least 1")
        require(0 <= self.head_lr < math.inf, "--param head_lr", self.head_lr, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The body, a head for every client, and the class means once known."""
        weight, _ = problem.initial[problem.head_weight("fedpac")], problem.counts_for("fedpac")
        body = {name: value for name, value in problem.initial.items() if name not in problem.head}
        if not body:
            raise InputError("algorithm fedpac: needs a network with layers below the last that are not frozen")
        zeros = torch.zeros_like(weight, dtype=wide(weight))
        classes = {"means": zeros, "known": zeros[:, 0]}
        heads = repeat(only(problem.initial, problem.head), problem.clients)
        return {"body": body, "head": heads, "classes": classes}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """phi, the client's head, and the class means once known."""
        known = {"classes": repeat(server["classes"], len(cohort))} if server["classes"]["known"].any() else {}
        return {**self.deliver(server, cohort), **known}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """phi and the client's head."""
        return {"body": repeat(server["body"], len(cohort)), "head": take(server["head"], cohort.ids)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """Statistics of the received body; epochs of the head, then of the body; class means under the new body."""
        body, (model, _) = download["body"], self.personal(trainer, download, memory)
        start, before = only(model, [name for name in model if name not in body]), class_sums(trainer, model, memory)
        rate, epochs = trainer.rate(self.head_lr), self.head_epochs
        head, memory = trainer.sgd(start, memory, fixed=body, epochs=epochs, lr=rate, purpose="head", name="head")
        aligned: dict[str, Any] = {}
        if "classes" in download and self.lam:
            known, means = download["classes"]["known"] > 0, download["classes"]["means"]  # (m, C), (m, C, F)
            target = {"means": means.where(known.unsqueeze(2), before.means().to(means))}
            aligned = {"objective": Aligned(self.lam), "target": target}
        body, memory = trainer.sgd(body, memory, fixed=head, **aligned)
        after, kind = class_sums(trainer, {**body, **head}, memory), wide(next(iter(body.values())))
        sent = {"moments": before.moments(), "classes": {"means": after.means(), "counts": after.counts}}
        statistics = {part: {name: value.to(kind) for name, value in stack.items()} for part, stack in sent.items()}
        return {"body": body, "head": head, **statistics}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean body by data size, the class means, and every participant's combination of heads."""
        sent, classes = upload["classes"], server["classes"]
        counts = sent["counts"].sum(0)  # (C,)
        means = (sent["means"] * sent["counts"].unsqueeze(2)).sum(0) / counts.clamp(min=1).unsqueeze(1)
        fresh, known = counts > 0, classes["known"].maximum((counts > 0).to(counts))
        classes = {"means": means.where(fresh.unsqueeze(1), classes["means"]), "known": known}
        weights = combinations(upload["moments"]["mean"], upload["moments"]["variance"])
        heads = put(server["head"], cohort.ids, mix(weights, upload["head"]))
        body, _ = average(cohort.sizes, upload["body"])
        return {"body": body, "head": heads, "classes": classes}, {"weights": weights}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """phi with the client's combined head."""
        return {**download["head"], **download["body"]}, memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """Body and head as the client has trained them."""
        return {**upload["head"], **upload["body"]}
