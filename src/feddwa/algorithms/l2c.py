"""L2C: learning to collaborate, mixing weights trained on validation data (Li et al., CVPR 2022).

Client i holds logits a_i over all clients, and a validation set. A round

    trains      D_i = theta_i - SGD(theta_i), on 80 % of its training data, and shares D_i
    mixes       theta_i = theta_i - sum_j omega_ij D_j,   omega_i = softmax(a_i) over the senders, itself included
    learns      with G = grad L_val(theta_i):   dL/da_ij = omega_ij (g_j - sum_k omega_ik g_k),   g_j = -<G, D_j>
                by Adam, and mixes again with the new omega; this theta_i is evaluated

Mixing opens a round: round t mixes and learns from the D_j of round t - 1, then trains. The weights reported in round t
are therefore those over the updates of round t - 1 (in the first round, each client's own alone), and the model
evaluated after round t is mixed from the updates of round t, as round t + 1 will mix it.

Crosses the network: the server relays every update of the previous round, one comes up: 1 + m model sizes (none down in
the first round), plus the m ids of the updates and the N reported weights.

Where the paper, its code and others differ: no official code is available, and FedDWA's paper gives no details. Clients
share updates rather than models; a starts at 0. Adam's rate of 0.1 is that of the authors' later work, whose decay of
0.01 we leave out: the gradients of logits are so small that it keeps omega near uniform (on digits in four groups, 0.33
of a client's weight stays in its group with it, 0.77 without). One step a round follows the gradient of the whole
validation set in training mode, without updating BatchNorm statistics; 20 % of training data validate, which FedDWA's
table of FLOPs implies. Neighbours are not pruned, since the paper counts all N. Under partial participation a client
weights the previous round's participants and itself; other logits and their Adam moments stay.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.exchange import Exchange
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import count, difference, repeat, row
from feddwa.errors import require
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class L2C(Algorithm):
    """L2C with shared updates."""

    title = "L2C"
    summary = "mixing weights learned on validation data"
    kind, year = "collaboration", 2022
    order = 13
    models_down = "m"
    models_up = 1
    numbers_down = "m"
    numbers_up = "N"
    passes = 1
    evaluation_passes = 0.2
    server_ops = 0
    validation = 0.2
    updates = ("updates",)
    models_kept, numbers_kept = 2, "4 * N"
    discloses, evaluated = "its update, which updates help it", "its mixture of models"

    mixing_lr: Annotated[float, Tunable(1e-3, 10, log=True)] = 0.1
    """Adam's rate for the logits."""
    decay: float = 0.0
    """Weight decay of the logits; 0.01 in the authors' later work."""
    mixing_steps: Repeats = 1
    """Passes over the validation data per round, one step each."""

    def __post_init__(self) -> None:
        require(0 <= self.mixing_lr < math.inf, "--param mixing_lr", self.mixing_lr, "a finite number, 0 or more")
        require(0 <= self.decay < math.inf, "--param decay", self.decay, "a finite number, 0 or more")
        require(self.mixing_steps >= 0, "--param mixing_steps", self.mixing_steps, "0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """No updates yet; the client has its model, its starting point, and its logits with Adam's moments."""
        n, models = problem.clients, repeat(problem.initial, problem.clients)
        adam = {name: torch.zeros(n, n, dtype=torch.float64) for name in ("logits", "first", "second", "steps")}
        server = {"updates": repeat(problem.initial, 0), "from": {"ids": torch.zeros(0, dtype=torch.int64)}}
        return server, {"model": models, "start": models, "mixing": adam}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The same updates for all clients: (m, k, *shape), sharing memory."""
        return {part: repeat(stack, len(cohort)) for part, stack in server.items()}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """Mix, then train."""
        start, mixing, weights = self.collaborate(trainer, download, memory)
        model, memory = trainer.sgd(start, memory)
        upload = {"update": difference(start, model), "weights": {"omega": weights}}
        return upload, {**memory, "model": model, "start": start, "mixing": mixing}

    def collaborate(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Stack, Tensor]:
        """theta_i mixed with learned weights, the logits' new state, and omega (m, N)."""
        mixing, own = memory["mixing"], difference(memory["start"], memory["model"])
        updates, senders = row(download["updates"], 0), download["from"]["ids"][0]  # (k, *shape), (k,)
        present = torch.zeros_like(mixing["logits"], dtype=torch.bool)
        present[:, senders] = True
        present[torch.arange(len(present)), trainer.ids] = True
        if not count(updates):
            return memory["model"], mixing, present.double()
        exchange = Exchange(memory["start"], own, trainer.ids, updates, senders)
        for _ in range(self.mixing_steps):
            weights = omega(mixing["logits"], present)
            gradient = trainer.gradients(exchange.mixture(weights), memory, split="validation", purpose="mixing")
            slopes = exchange.slopes(weights, gradient)
            mixing = self.adam(mixing, logit_gradient(weights, slopes), present)
        weights = omega(mixing["logits"], present)
        return exchange.mixture(weights), mixing, weights

    def adam(self, mixing: Stack, gradient: Tensor, present: Tensor) -> Stack:
        """One step on the logits (m, N) of the clients present (m, N); other logits and moments stay."""
        gradient = gradient + self.decay * mixing["logits"]
        steps = mixing["steps"] + 1
        first = 0.9 * mixing["first"] + 0.1 * gradient
        second = 0.999 * mixing["second"] + 0.001 * gradient.square()
        step = first / (1 - 0.9**steps) / ((second / (1 - 0.999**steps)).sqrt() + 1e-8)
        new = {"logits": mixing["logits"] - self.mixing_lr * step, "first": first, "second": second, "steps": steps}
        return {name: torch.where(present, value, mixing[name]) for name, value in new.items()}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Relay the updates. P has the weights within the cohort."""
        new = {"updates": upload["update"], "from": {"ids": cohort.ids}}
        return new, {"weights": upload["weights"]["omega"][:, cohort.ids]}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """theta_i; the logits learned for it are dropped, and the round learns them again."""
        return self.collaborate(trainer, download, memory)[0], memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The client's own model."""
        return memory["model"]


def omega(logits: Tensor, present: Tensor) -> Tensor:
    """Softmax of the logits (m, N) over the clients present (m, N)."""
    return logits.masked_fill(~present, -torch.inf).softmax(1)


def logit_gradient(weights: Tensor, slopes: Tensor) -> Tensor:
    """dL/da (m, N) from omega and dL/domega."""
    return weights * (slopes - (weights * slopes).sum(1, keepdim=True))
