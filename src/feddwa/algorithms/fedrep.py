"""FedRep: fit each client's head on the shared body, then improve the body under it (Collins et al., ICML 2021).

    client  h_i   <- E_h epochs of  h_i - eta_h grad_h f_i(phi, h_i),       phi as downloaded
            phi_i <- E_b epochs of  phi_i - eta grad_phi f_i(phi_i, h_i),   from phi, under the new head
    server  phi = sum_{k in S_t} (n_k / n) phi_k

Crosses the network: the body phi down and up. The head h_i never leaves its client. (phi, h_i) is evaluated as in
FedPer; the paper reports the mean over clients in the last rounds. Its official code also tunes all heads after the
last round: `tune_epochs` does so before every evaluation and throws the result away.

Where the paper, its code and others differ: the paper has E_h = 10 for each E_b = 1; the official scripts have E_b of 1
or 5. One library counts head epochs as E minus body epochs, so that E = 1 never trains heads; another trains the body
for one batch. The official optimiser has momentum, which under older versions of PyTorch moves a "frozen" part; here
that part is a constant. BatchNorm statistics are updated in both phases. All heads start equal; E_h = 0 is FedBABU's
training, E_b = 0 leaves the body at its initial values.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from feddwa.algorithms.base import Problem
from feddwa.algorithms.partial import PartlyShared
from feddwa.engine import Memory, Message, Stack, Trainer
from feddwa.errors import require
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class FedRep(PartlyShared):
    """FedRep with the original's ten epochs of the head."""

    title = "FedRep"
    summary = "a shared body; each client fits its head, then trains the body under it"
    kind, year = "shared-body", 2021
    models_down = models_up = "body"
    models_kept = "1 - body"
    optimized = ("model", "head")
    passes, body_passes, probe_passes = 0, 1, 10
    server_ops = "m * body"
    discloses, evaluated = "its trained body", "the shared body with its own head"

    head: str = "last"
    """Layers that stay with the client: last (the last linear layer), or names separated by commas."""
    head_epochs: Annotated[Repeats, Tunable(1, 10)] = 10
    """E_h: epochs of the head in a round."""
    body_epochs: Repeats | None = None
    """E_b: epochs of the body; none = as many as the run's local epochs."""
    head_lr: Annotated[float | None, Tunable(1e-3, 1, log=True)] = None
    """eta_h: rate of the head; none = the run's rate."""
    tune_epochs: Repeats = 0
    """Epochs of the head before evaluation, on a copy."""

    def __post_init__(self) -> None:
        for name in ("head_epochs", "body_epochs", "tune_epochs"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"--param {name}", value, "0 or more")
        rate = self.head_lr
        require(rate is None or 0 <= rate < math.inf, "--param head_lr", rate, "a finite number, 0 or more")

    def own(self, problem: Problem) -> tuple[str, ...]:
        """The head."""
        return problem.head_named(self.head)

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E_h epochs of the head, then E_b of the body."""
        body = self.shared(download["model"], memory)
        head, memory = self._fitted(trainer, body, memory, self.head_epochs, "head")
        body, memory = trainer.sgd(body, memory, fixed=head, epochs=self.body_epochs)
        return {"model": body}, {**memory, "own": head}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The shared body with the client's head, fine-tuned for `tune_epochs`."""
        body = self.shared(download["model"], memory)
        head, memory = self._fitted(trainer, body, memory, self.tune_epochs, "tune")
        return {**body, **head}, memory

    def _fitted(self, trainer: Trainer, body: Stack, memory: Memory, epochs: int, purpose: str) -> tuple[Stack, Memory]:
        """The client's head after `epochs` on a fixed body, and the updated BatchNorm statistics."""
        if not epochs:
            return memory["own"], memory
        head, rate = memory["own"], trainer.rate(self.head_lr)
        return trainer.sgd(head, memory, fixed=body, epochs=epochs, lr=rate, purpose=purpose, name="head")
