"""Ditto: a personal model beside the global one, pulled towards it (Li, Hu, Beirami and Smith, ICML 2021).

    client  w_i <- E epochs of    w_i - eta grad f_i(w_i),                          from w, as FedAvg
            v_i <- E_p epochs of  v_i - eta_p [grad f_i(v_i) + lambda (v_i - w)],   from where it was, w as downloaded
    server  w = sum_{k in S_t} (n_k / n) w_k

Crosses the network: w down, w_i up, two model sizes. The personal model v_i never leaves its client and is evaluated;
only the client's own training changes it. The shared model is FedAvg's for every lambda; lambda = 0 is Local.

Where the paper, its code and others differ: the anchor is the downloaded w. The authors' PyTorch port pulls towards the
moving w_i, by a distance that is not squared; another code averages the personal models and sends them back. One
library's default lambda is 0, which is Local, and it reports the better of the global and the personal accuracy. Both
models train on the same batches, as in the original, which counts steps where we count epochs. The original weighs
clients equally and chose lambda from 0.1, 1 and 2. BatchNorm statistics are those of v_i. Policies that edit messages
are refused: they would mistake these, or v_i's scales and shifts, for the shared model's.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from feddwa.algorithms.base import Algorithm, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.proximal import ProximalStep
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import repeat
from feddwa.errors import require
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class Ditto(FedAvg):
    """Ditto with the lambda of the original's scripts."""

    title = "Ditto"
    summary = "a personal model beside the global one, pulled towards it"
    kind, year = "personal", 2021
    passes = 2
    models_kept = 1
    global_model = False
    optimized = ("model", "personal")
    policies = ("local",)
    evaluated = "its own model"
    newcomer = Algorithm.newcomer  # v_i comes from training, not from w: a newcomer is fine-tuned

    lam: Annotated[float, Tunable(1e-3, 10, log=True)] = 1.0
    """lambda: strength of the pull."""
    personal_epochs: Repeats | None = None
    """E_p: epochs of the personal model; none = as many as the run's local epochs."""
    personal_lr: Annotated[float | None, Tunable(1e-3, 1, log=True)] = None
    """eta_p: rate of the personal model; none = the run's rate."""

    def __post_init__(self) -> None:
        require(0 <= self.lam < math.inf, "--param lam", self.lam, "a finite number, 0 or more")
        epochs, rate = self.personal_epochs, self.personal_lr
        require(epochs is None or epochs >= 0, "--param personal_epochs", epochs, "0 or more")
        require(rate is None or 0 <= rate < math.inf, "--param personal_lr", rate, "a finite number, 0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The global model; every client has a personal model, initially the global one."""
        server, _ = super().setup(problem)
        return server, {"personal": repeat(problem.initial, problem.clients)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """Train both models. BatchNorm statistics are those of the personal one, which is evaluated."""
        shared, after = trainer.sgd(download["model"], memory)
        memory = {**after, "buffers": memory["buffers"]}
        step = ProximalStep(trainer.rate(self.personal_lr), self.lam)
        start, anchor = {"model": memory["personal"]}, {"anchor": download["model"]}
        state, memory = trainer.train(step, start, memory, anchor, epochs=self.personal_epochs, name="personal")
        return {"model": shared}, {**memory, "personal": state["model"]}

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """Nothing: clients hold the evaluated models."""
        return {}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """v_i."""
        return memory["personal"], memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """v_i."""
        return memory["personal"]
