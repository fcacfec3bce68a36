"""Local training: every client by itself, the yardstick of personalisation ("does joining pay?").

Nothing crosses the network. Under partial participation only the cohort trains, so that the budget equals the others'.
"""

from dataclasses import dataclass

import torch

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.engine.rows import Cohort, Rows, State, repeat
from feddwa.engine.trainer import Trainer


@dataclass(frozen=True)
class Local(Algorithm):
    """Local training."""

    title = "Local"
    summary = "every client trains alone"
    order = 1
    models_down = models_up = 0
    passes = 1
    server_ops = 0

    def setup(self, problem: Problem) -> tuple[State, State]:
        """The model lives with its client."""
        return {}, {"model": repeat(problem.initial, problem.clients)}

    def download(self, server: State, cohort: Cohort) -> State:
        """Nothing."""
        return {}

    def client(self, trainer: Trainer, download: State, memory: State) -> tuple[State, State]:
        """E epochs on the client's own model."""
        model, memory = trainer.sgd(memory["model"], memory)
        return {}, {**memory, "model": model}

    def server(self, server: State, cohort: Cohort, upload: State) -> tuple[State, Info]:
        """P is the identity."""
        return server, {"weights": torch.eye(len(cohort), dtype=torch.float64)}

    def personal(self, trainer: Trainer, download: State, memory: State) -> tuple[Rows, State]:
        """The own model."""
        return memory["model"], memory

    def trained(self, upload: State, memory: State) -> Rows:
        """The own model."""
        return memory["model"]
