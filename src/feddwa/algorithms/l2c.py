"""L2C: learning to collaborate, mixing weights trained on validation data (Li et al., CVPR 2022).

Client i holds logits a_i over all clients, and a validation set. A round

    trains      D_i = theta_i - SGD(theta_i), on 80 % of its training data, and shares D_i
    mixes       theta_i = theta_i - sum_j omega_ij D_j,   omega_i = softmax(a_i) over who has shared, itself included
    learns      with G = grad L_val(theta_i):   dL/da_ij = omega_ij (g_j - sum_k omega_ik g_k),   g_j = -<G, D_j>
                by Adam, and mixes again with the new omega. Evaluated is this theta_i.

Mixing opens a round: round t mixes and learns from the D_j that were shared in round t - 1, then trains from there. So
the weights that round t reports are those over the updates of round t - 1, in the first round each client's own alone;
and what is evaluated after round t is mixed as round t + 1 will mix it, from the updates of round t.

Crosses the network: the server passes on every update of the previous round, one comes up: 1 + m model sizes (none down
in the first round), besides the m ids that come with the updates and the N weights that are reported.

Where the paper, its code and others differ: there is no official code to be had, and FedDWA's paper gives no details.
Updates are shared rather than models; a starts at 0; Adam's rate of 0.1 is that of the authors' later work, whose decay
of 0.01 we leave out: the gradients of logits are so small that it keeps omega near uniform (on digits in four groups,
0.33 of a client's weight stays in its group with it, 0.77 without). One step a round follows the gradient of the whole
validation set, in training mode, its statistics dropped; 20 % of training data validate, which is what FedDWA's table
of FLOPs implies. Neighbours are not pruned, since the paper counts all N. Under partial participation a client weights
the previous round's participants and itself; logits of others and their Adam moments stay.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.vectors import add_scaled, difference, dots, inner_products, scale
from feddwa.data.federated import Batch
from feddwa.engine.network import Client, descend
from feddwa.engine.rows import Cohort, Row, Rows, State, count, repeat
from feddwa.engine.trainer import Trainer
from feddwa.errors import require
from feddwa.mixing import mix
from feddwa.params import Repeats


@dataclass(frozen=True)
class L2C(Algorithm):
    """L2C by update sharing."""

    title = "L2C"
    summary = "mixing weights learned on validation data"
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

    mixing_lr: float = 0.1
    """Adam's rate for the logits."""
    decay: float = 0.0
    """Weight decay of the logits; 0.01 in the authors' later work."""
    mixing_steps: Repeats = 1
    """Passes over the validation data a round, a step each."""

    def __post_init__(self) -> None:
        require(0 <= self.mixing_lr < math.inf, "--param mixing_lr", self.mixing_lr, "a finite number, 0 or more")
        require(0 <= self.decay < math.inf, "--param decay", self.decay, "a finite number, 0 or more")
        require(self.mixing_steps >= 0, "--param mixing_steps", self.mixing_steps, "0 or more")

    def setup(self, problem: Problem) -> tuple[State, State]:
        """No updates yet; the client has its model, where that started, and its logits with Adam's moments."""
        none = {name: value.new_empty(0, *value.shape) for name, value in problem.initial.items()}
        rows, n = repeat(problem.initial, problem.clients), problem.clients
        adam = {name: torch.zeros(n, n, dtype=torch.float64) for name in ("logits", "first", "second", "steps")}
        server = {"updates": none, "from": {"ids": torch.zeros(0, dtype=torch.int64)}}
        return server, {"model": rows, "start": rows, "mixing": adam}

    def download(self, server: State, cohort: Cohort) -> State:
        """The same updates for everybody: (m, k, *shape), sharing memory."""
        return {part: repeat(rows, len(cohort)) for part, rows in server.items()}

    def client(self, trainer: Trainer, download: State, memory: State) -> tuple[State, State]:
        """Mix, then train."""
        start, mixing, weights = self.collaborate(trainer, download, memory)
        model, memory = trainer.sgd(start, memory)
        update = difference(start, model)
        return {"update": update, "weights": {"omega": weights}}, {
            **memory, "model": model, "start": start, "mixing": mixing,
        }  # fmt: skip

    def collaborate(self, trainer: Trainer, download: State, memory: State) -> tuple[Rows, Rows, Tensor]:
        """theta_i mixed with learned weights, the logits' new state, and omega (m, N)."""
        mixing, own = memory["mixing"], difference(memory["start"], memory["model"])
        updates, senders = ({name: value[0] for name, value in download[part].items()} for part in ("updates", "from"))
        present = torch.zeros_like(mixing["logits"], dtype=torch.bool)
        present[:, senders["ids"]] = True
        present[torch.arange(len(present)), trainer.ids] = True
        if not count(updates):
            return memory["model"], mixing, present.double()
        exchange = Exchange(memory["start"], own, trainer.ids, updates, senders["ids"])
        for _ in range(self.mixing_steps):
            weights = omega(mixing["logits"], present)
            slopes = exchange.slopes(weights, validation_gradient(trainer, exchange.mixture(weights), memory))
            mixing = self.adam(mixing, logit_gradient(weights, slopes), present)
        weights = omega(mixing["logits"], present)
        return exchange.mixture(weights), mixing, weights

    def adam(self, mixing: Rows, gradient: Tensor, present: Tensor) -> Rows:
        """One step on the logits (m, N) of the clients present (m, N); other logits and moments stay."""
        gradient = gradient + self.decay * mixing["logits"]
        steps = mixing["steps"] + 1
        first = 0.9 * mixing["first"] + 0.1 * gradient
        second = 0.999 * mixing["second"] + 0.001 * gradient.square()
        step = first / (1 - 0.9**steps) / ((second / (1 - 0.999**steps)).sqrt() + 1e-8)
        new = {"logits": mixing["logits"] - self.mixing_lr * step, "first": first, "second": second, "steps": steps}
        return {name: torch.where(present, value, mixing[name]) for name, value in new.items()}

    def server(self, server: State, cohort: Cohort, upload: State) -> tuple[State, Info]:
        """A relay. P shows the weights among the cohort."""
        new = {"updates": upload["update"], "from": {"ids": cohort.ids}}
        return new, {"weights": upload["weights"]["omega"][:, cohort.ids]}

    def personal(self, trainer: Trainer, download: State, memory: State) -> tuple[Rows, State]:
        """theta_i; what its logits learned on the way is dropped, the round learns it again."""
        return self.collaborate(trainer, download, memory)[0], memory

    def trained(self, upload: State, memory: State) -> Rows:
        """The client's own model."""
        return memory["model"]


def omega(logits: Tensor, present: Tensor) -> Tensor:
    """Softmax of the logits (m, N) over the clients present (m, N)."""
    return logits.masked_fill(~present, -torch.inf).softmax(1)


def logit_gradient(weights: Tensor, slopes: Tensor) -> Tensor:
    """dL/da (m, N) from omega and dL/domega."""
    return weights * (slopes - (weights * slopes).sum(1, keepdim=True))


def validation_gradient(trainer: Trainer, model: Rows, memory: State) -> Rows:
    """G: the gradient of every client's mean validation loss."""
    zero = {name: torch.zeros_like(value) for name, value in model.items()}
    work, fixed = {"total": zero}, {"model": model}
    state, _ = trainer.train(add_gradient, work, memory, fixed, epochs=1, split="validation", purpose="mixing")
    samples = trainer.sizes("validation").clamp(min=1)
    return scale(1 / samples.double(), state["total"])


def add_gradient(client: Client, state: Mapping[str, Row], batch: Batch, model: Row) -> Mapping[str, Row]:
    """Sum over samples of the gradients at a fixed model."""
    return {"total": descend(state["total"], client.gradient(model, batch), -float(len(batch.y)))}


@dataclass(frozen=True)
class Exchange:
    """What clients can mix: a broadcast, of which one copy stands for all, and their own last updates."""

    start: Rows  # (m, *shape) where each client's last training began
    own: Rows  # (m, *shape) each client's own update, also if the broadcast is without it
    ids: Tensor  # (m,)
    updates: Rows  # (k, *shape) the updates received, perhaps the client's own among them
    senders: Tensor  # (k,)

    def mixture(self, weights: Tensor) -> Rows:
        """theta_i - sum_j omega_ij D_j."""
        mine, start, own = self.ids.unsqueeze(1), self._sent(self.start), self._sent(self.own)
        others = mix(weights[:, self.senders].masked_fill(self.senders == mine, 0), self.updates)
        mixed = add_scaled(difference(start, others), -weights.gather(1, mine), own)
        return {name: mixed.get(name, value - self.own[name]) for name, value in self.start.items()}

    def slopes(self, weights: Tensor, gradient: Rows) -> Tensor:
        """dL/domega_ij = -<G_i, D_j>: (m, N), 0 for clients that sent nothing."""
        result = torch.zeros_like(weights)
        gradient, own = self._sent(gradient), self._sent(self.own)
        result[:, self.senders] = -inner_products(gradient, self.updates)
        return result.scatter(1, self.ids.unsqueeze(1), -dots(gradient, own).unsqueeze(1))

    def _sent(self, rows: Rows) -> Rows:
        """Without what nobody sends (BatchNorm that stays local), which stays each client's own."""
        return {name: rows[name] for name in self.updates}
