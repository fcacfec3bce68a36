"""FedDWA: personalised federated learning with dynamic weight adjustment (Liu et al., IJCAI 2023).

Each round client i trains its personalised model w_i for E epochs, giving the local model v_i, and then for g more
epochs, giving the guidance model u_i (Eq. 16). The server weighs client j for client i by

    p_ij ~ 1 / ||u_i - v_j||^2        over the K nearest j, normalised           (Eq. 15, top-K)
    w_i  = sum_j p_ij v_j             local models are mixed, never guidance     (Eq. 8)

Crosses the network: down w_i, up v_i and u_i, three model sizes. The other variants of guidance need only two, because
the server can compute them. Data sizes do not enter the weights.

Two options are ours. `granularity` computes separate weights for every layer or tensor. `sketch` = b > 0 sends b
numbers in place of each group of g_i = u_i - v_i, and the lengths of its tensors, from which the server estimates the
distances (feddwa.sketch).

Where the paper, its code and others differ: the paper's formula looks one full gradient step ahead, its algorithm box
one epoch, its code E epochs; we take whole epochs, one by default, which is the same for E = 1. The code's option for
several guidance epochs restarts each from v_i, so it has no effect; ours continue one another. The guidance epochs draw
from their own key, and their BatchNorm statistics are thrown away. K = 1 is therefore Local if v_i is the model nearest
to u_i. Ties (equal models at rate 0, for example) keep the client with the smallest number.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.newcomer import Newcomer, Others, nearest_mixed
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import difference, only, put, repeat, take
from feddwa.errors import require
from feddwa.mixing import Granularity, dwa_weights, inverse_weights, mix_groups, parameter_groups
from feddwa.params import Repeats, Tunable
from feddwa.sketch import sketch, sketched_distances


@dataclass(frozen=True)
class FedDWA(Algorithm):
    """FedDWA with the paper's values as defaults."""

    title = "FedDWA"
    summary = "inverse-square distances from guidance to local models, top-K"
    kind, year, order = "collaboration", 2023, 14
    models_down, models_up = 1, 2
    passes = 2
    server_ops = "2 * m**2"
    stackable = ("top_k", "granularity")
    discloses, evaluated = "its trained and its guidance model", "its mixture of models"

    top_k: Annotated[int, Tunable(1, 20)] = 5
    """K: partners kept per client, itself included."""
    guidance: Literal["ahead", "last", "current", "extrapolate"] = "ahead"
    """u_i: the model g epochs ahead, last round's v_i, this round's w_i, or 2 v_i - w_i."""
    guidance_epochs: Repeats = 1
    """g: epochs of training from v_i to the guidance model "ahead"."""
    tested: Literal["local", "guidance"] = "local"
    """The models evaluated after training."""
    granularity: Annotated[Granularity, Tunable(choices=("model", "layer", "tensor"))] = "model"
    """Parameters that share one set of weights."""
    sketch: int = 0
    """b: numbers sent in place of each group's guidance; 0 = the whole model."""

    def __post_init__(self) -> None:
        require(self.top_k >= 1, "--param top_k", self.top_k, "at least 1")
        require(self.guidance_epochs >= 1, "--param guidance_epochs", self.guidance_epochs, "at least 1")
        ahead = self.guidance == "ahead" or self.guidance_epochs == 1
        require(
            ahead, "--param guidance_epochs", self.guidance_epochs, "1 unless guidance=ahead: no other guidance trains"
        )
        known = self.tested == "local" or self.guidance == "ahead"
        require(self.sketch >= 0, "--param sketch", self.sketch, "0 or more")
        whole = self.sketch == 0 or (self.guidance == "ahead" and self.tested == "local")
        require(whole, "--param sketch", self.sketch, "0 unless guidance=ahead and tested=local")
        require(known, "--param tested", self.tested, f"local: guidance={self.guidance} is not made by clients")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """One personalised model per client; for "last" also its last local model, initially the initial model."""
        models = repeat(problem.initial, problem.clients)
        extra: ServerState = {"last": models} if self.guidance == "last" else {}
        extra = {"record": {"seed": torch.tensor(problem.seed)}} if self.sketch else extra
        return {"model": models, **extra}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The client's own personalised model w_i."""
        return {"model": take(server["model"], cohort.ids)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs give the local model, g more the guidance model."""
        local, memory = trainer.sgd(download["model"], memory)
        if self.guidance != "ahead":
            return {"model": local}, memory
        ahead, _ = trainer.sgd(local, memory, epochs=self.guidance_epochs, purpose="guidance", continued=True)
        if not self.sketch:
            return {"model": local, "guidance": ahead}, memory
        step, draw = difference(ahead, local), (trainer.seed, trainer.round)
        groups = parameter_groups(step, self.granularity)
        sketches = {group: sketch(only(step, names), self.sketch, *draw) for group, names in groups.items()}
        lengths = {name: torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1) for name, value in step.items()}
        return {"model": local, "sketch": sketches, "lengths": lengths}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Weigh by distance to the guidance models and mix the local models; absent clients keep their rows."""
        local = upload["model"]
        groups = parameter_groups(local, self.granularity)
        shares = {group: self._weights(server, cohort, upload, group, names) for group, names in groups.items()}
        mixed, weights = mix_groups(shares, groups, local)
        new = {**server, "model": put(server["model"], cohort.ids, mixed)}
        if self.guidance == "last":
            new["last"] = put(server["last"], cohort.ids, local)
        report = {f"weights/{group}": own for group, own in shares.items()} if len(shares) > 1 else {}
        return new, {"weights": weights, **report}

    def _weights(self, server: ServerState, cohort: Cohort, upload: Message, group: str, names: list[str]) -> Tensor:
        """P (m, m) of a group of parameters."""
        local = only(upload["model"], names)
        if not self.sketch:
            return dwa_weights(self._guidance(server, cohort, upload, names), local, self.top_k)
        lengths = torch.stack([upload["lengths"][name].double().square() for name in names]).sum(0)
        seed = int(server["record"]["seed"])
        distances = sketched_distances(local, upload["sketch"][group], lengths, seed, cohort.round)
        return inverse_weights(distances, self.top_k)

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The local model v_i, or the guidance model u_i (the paper's appendix compares it with w_i)."""
        return upload["model" if self.tested == "local" else "guidance"]

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """Mix the models nearest to a guidance model that starts from the mean, and fine-tune the mixture."""
        return nearest_mixed(trainer, others, epochs, max(1, epochs // 2), self.top_k)

    def _guidance(self, server: ServerState, cohort: Cohort, upload: Message, names: list[str]) -> Stack:
        """The named parameters of the guidance models (m, *shape)."""
        if self.guidance == "ahead":
            return only(upload["guidance"], names)
        known = take(only(server["last" if self.guidance == "last" else "model"], names), cohort.ids)
        if self.guidance != "extrapolate":
            return known
        return {name: 2 * upload["model"][name] - value for name, value in known.items()}
