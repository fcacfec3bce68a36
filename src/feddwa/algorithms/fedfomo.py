"""FedFomo: each client weighs other clients' models by how much they help it (Zhang et al., ICLR 2021).

Client i holds its last trained model, the base it was trained from, and a validation set. Each round it receives the
models theta_n of M others, adds its own, and

    raw_n   = (L_val(base) - L_val(theta_n)) / ||theta_n - base||
    w_n     = max(raw_n, 0) / sum max(raw, 0)
    theta_i = base + sum_n w_n (theta_n - base),   then E epochs from it, on the other 80 % of its training data

The server sends what was uploaded in the previous round: the M of largest affinity P_i, a random one for each with
probability epsilon_t = max(0, epsilon - decay (t - 1)) in round t = 1, 2, ..., and then P_in += raw_n for those sent.
Evaluated is theta_i.

Crosses the network: M models down, one up, 1 + M model sizes (none down in the first round), and M + 1 scores up.

Where the paper, its code and others differ: the original explores with epsilon 0.3, falling by 0.05 a round. Later
libraries drop this and break ties by number, so that all clients first fetch the lowest ids; ours explores and draws
ties. If no model helps, the original returns to base and so loses the last training; like later libraries we keep the
client's model (fallback). Only the m uploads of the previous round can be fetched, min(M, m - 1) of them: nobody
fetches its own, and all messages of a round have the same length, so that a client outside the previous cohort gets one
fewer than available where m <= M. The original adds cluster averages to the candidates, which we omit as in FedDWA's
description, and normalises raw before adding it to P. A candidate equal to base scores 0. Candidates are scored with
the client's own BatchNorm statistics.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer, keys
from feddwa.engine.rows import Picked, add_scaled, difference, norms, repeat, zeros
from feddwa.errors import require
from feddwa.params import Tunable


@dataclass(frozen=True)
class FedFomo(Algorithm):
    """FedFomo with FedDWA's M and the original's exploration."""

    title = "FedFomo"
    summary = "each client weighs others' models by their validation loss"
    kind, year = "collaboration", 2021
    order = 12
    models_down, models_up = "min(5, m - 1)", 1
    numbers_up = "min(6, m)"
    passes, forward_passes = 0.8, 1.4
    server_ops, validation = 0, 0.2
    models_kept = 2
    discloses, evaluated = "its trained model, which models help it", "its mixture of models"

    models: Annotated[int, Tunable(1, 15)] = 5
    """M: models fetched per round."""
    epsilon: Annotated[float, Tunable(0.0, 1.0)] = 0.3
    """Initial probability of a random model in place of the best."""
    decay: float = 0.05
    """Decrease of epsilon per round."""
    fallback: Literal["own", "base"] = "own"
    """Where to continue if no model helps."""

    def __post_init__(self) -> None:
        require(self.models >= 1, "--param models", self.models, "at least 1")
        require(0 <= self.epsilon <= 1, "--param epsilon", self.epsilon, "from 0 to 1")
        require(0 <= self.decay < math.inf, "--param decay", self.decay, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """No uploads and no preferences yet; the client has its model and the base it came from."""
        nobody, affinity = torch.zeros(0, dtype=torch.int64), torch.zeros(problem.clients, problem.clients).double()
        record = {"uploaded": nobody, "affinity": affinity, "seed": torch.tensor(problem.seed)}
        models = repeat(problem.initial, problem.clients)
        return {"models": repeat(problem.initial, 0), "record": record}, {"model": models, "base": models}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """M models for each client, one part each, without copying."""
        slots = self.choose(server, cohort).unbind(1)
        return {f"model{n}": Picked(server["models"], slot) for n, slot in enumerate(slots)}

    def choose(self, server: ServerState, cohort: Cohort) -> Tensor:
        """(m, M) positions among the uploads: epsilon-greedy on the affinity, without repeats or the client itself."""
        uploaded, affinity = server["record"]["uploaded"], server["record"]["affinity"]
        slots = min(self.models, max(len(uploaded) - 1, 0))
        epsilon = max(0.0, self.epsilon - self.decay * (cohort.round - 1))
        chosen = torch.zeros(len(cohort), slots, dtype=torch.int64)
        for row, client in enumerate(cohort.ids.tolist()):
            key = keys.key(int(server["record"]["seed"]), "fomo", cohort.round, client)
            ties, order, chance = (keys.uniform(keys.fold(key, n), uploaded.shape) for n in range(3))
            others = ties.argsort()[uploaded[ties.argsort()] != client]
            best = others[affinity[client, uploaded[others]].argsort(descending=True, stable=True)].tolist()
            random = [other for other in order.argsort().tolist() if uploaded[other] != client]
            for slot in range(slots):
                pick = (random if chance[slot] < epsilon else best)[0]
                chosen[row, slot] = pick
                best.remove(pick)
                random.remove(pick)
        return chosen

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """Mix, then train; the mixture is the next base."""
        mixture, raw = self.mixture(trainer, download, memory)
        model, memory = trainer.sgd(mixture, memory)
        return {"model": model, "scores": {"raw": raw}}, {**memory, "model": model, "base": mixture}

    def mixture(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Tensor]:
        """theta_i, and the raw scores (m, M + 1) of the fetched models and, last, the client's own."""
        base, candidates = memory["base"], [*download.values(), memory["model"]]
        base_loss = trainer.losses(base, memory)
        gains = [base_loss - trainer.losses(candidate, memory) for candidate in candidates]
        far = [norms(difference(candidate, base)) for candidate in candidates]
        raw = torch.stack([gain / d for gain, d in zip(gains, far, strict=True)], dim=1)
        raw = raw.nan_to_num(0, 0, 0)  # equal to base, or no validation data: score 0
        mixture: Stack = zeros(base)
        for share, candidate in zip(self.weights(raw).unbind(1), [*candidates, base], strict=True):
            mixture = add_scaled(mixture, share, candidate)
        return mixture, raw

    def weights(self, raw: Tensor) -> Tensor:
        """(m, M + 2): the shares of the fetched models, the client's own and the base."""
        positive = raw.clamp(min=0)
        total = positive.sum(1, keepdim=True)
        stay = torch.zeros(raw.shape[1] + 1, dtype=raw.dtype)
        stay[-2 if self.fallback == "own" else -1] = 1
        return torch.where(total > 0, torch.cat([positive / total, torch.zeros_like(total)], 1), stay)

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Add the scores to P and replace the uploads. Reports this round's shares and P, both (m, m)."""
        record, raw = server["record"], upload["scores"]["raw"]
        who, rows = record["uploaded"][self.choose(server, cohort)], cohort.ids.unsqueeze(1)  # (m, M), (m, 1)
        affinity = record["affinity"].index_put((rows, who), raw[:, :-1], accumulate=True)
        shares = torch.zeros(len(cohort), len(affinity), dtype=raw.dtype)
        shares.scatter_(1, torch.cat([who, rows], 1), self.weights(raw)[:, :-1])
        record = {**record, "uploaded": cohort.ids, "affinity": affinity}
        report = {"weights": shares[:, cohort.ids], "affinity": affinity[cohort.ids][:, cohort.ids]}
        return {"models": upload["model"], "record": record}, report

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """theta_i."""
        return self.mixture(trainer, download, memory)[0], memory
