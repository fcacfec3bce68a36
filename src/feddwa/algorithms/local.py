"""Local training: every client by itself, the baseline of personalisation ("does joining pay?").

Nothing crosses the network. Under partial participation only the cohort trains, so the budget equals that of the other
methods.
"""

from dataclasses import dataclass

import torch

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import repeat


@dataclass(frozen=True)
class Local(Algorithm):
    """Local training."""

    title = "Local"
    summary = "every client trains alone"
    kind = "baseline"
    order = 1
    models_down = models_up = 0
    passes = 1
    server_ops = 0
    models_kept = 1
    discloses, evaluated = "nothing", "its own model"

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The model lives with its client."""
        return {}, {"model": repeat(problem.initial, problem.clients)}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """Nothing."""
        return {}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs on the client's own model."""
        model, memory = trainer.sgd(memory["model"], memory)
        return {}, {**memory, "model": model}

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """P is the identity."""
        return server, {"weights": torch.eye(len(cohort), dtype=torch.float64)}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The client's own model."""
        return memory["model"], memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The client's own model."""
        return memory["model"]
