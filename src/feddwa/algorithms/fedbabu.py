"""FedBABU: train the body under one random head, fine-tune a copy before use (Oh, Kim and Yun, ICLR 2022).

    client    phi_i <- E epochs of  phi_i - eta grad_phi f_i(phi_i, h_0),   h_0: the initial head, never trained
    server    phi = sum_{k in S_t} (n_k / n) phi_k
    evaluate  (phi, h_0) after E_f epochs of all parameters on the client's training data, thrown away afterwards

Crosses the network: the body phi down and up; all clients have h_0 from the start. After local training (phi_i, h_0) is
evaluated without tuning, and `tune_epochs` = 0 evaluates the global (phi, h_0): the paper's "initial accuracy".

Where the paper, its code and others differ: the original tunes at the last rate of its decaying schedule, 0.001; ours
defaults to the run's rate. One library tunes once, after the last round, the locally trained bodies, and prints the
best accuracy of untuned models; another sets the head's gradient to zero, so that weight decay would shrink the head.
Here h_0 is a constant in the clients' training and the server never stores it. The official code tunes the round with
the best test accuracy; we tune before every evaluation. The average is weighted by size; the original weighs clients
equally.
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
class FedBABU(PartlyShared):
    """FedBABU with the original's five epochs of tuning."""

    title = "FedBABU"
    summary = "a body trained under a fixed random head, each client's copy tuned before use"
    kind, year = "shared-body", 2022
    models_down = models_up = "body"
    models_kept = "1 - body"
    passes, body_passes, evaluation_passes = 0, 1, 5
    server_ops = "m * body"
    discloses, evaluated = "its trained body", "the shared body and initial head, tuned on its data"

    head: str = "last"
    """Layers that are never trained: last (the last linear layer), or names separated by commas."""
    tune_epochs: Annotated[Repeats, Tunable(1, 10)] = 5
    """E_f: epochs of tuning before evaluation."""
    tune_lr: Annotated[float | None, Tunable(1e-3, 1, log=True)] = None
    """Rate of tuning; none = the run's rate."""

    def __post_init__(self) -> None:
        require(self.tune_epochs >= 0, "--param tune_epochs", self.tune_epochs, "0 or more")
        rate = self.tune_lr
        require(rate is None or 0 <= rate < math.inf, "--param tune_lr", rate, "a finite number, 0 or more")

    def own(self, problem: Problem) -> tuple[str, ...]:
        """The initial head, which every client knows."""
        return problem.head_named(self.head)

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of the body under h_0."""
        body, memory = trainer.sgd(self.shared(download["model"], memory), memory, fixed=memory["own"])
        return {"model": body}, memory

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """A fine-tuned copy of body and initial head."""
        model, memory = super().personal(trainer, download, memory)
        if not self.tune_epochs:
            return model, memory
        return trainer.sgd(model, memory, epochs=self.tune_epochs, lr=trainer.rate(self.tune_lr), purpose="tune")
