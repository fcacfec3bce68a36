"""The cost of a round: bytes from the messages, FLOPs from the work, seconds by phase."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from feddwa.engine import Message
from feddwa.engine.rows import described, tensors


def message_bytes(message: Message) -> int:
    """Bytes of one client's message. Lazy rows are not loaded."""
    known = {part: described(stack) for part, stack in message.items()}
    return sum(value.shape[1:].numel() * value.element_size() for _, value in tensors(known))


@dataclass
class Costs:
    """Costs of one round."""

    bytes_down: int = 0  # per participating client
    bytes_up: int = 0
    flops: Tensor = field(default_factory=lambda: torch.zeros(0))  # (m,) local training, per participating client
    server_flops: int = 0  # of the server's step: products of models, for distances and mixtures
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> wall time

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Count the enclosed products of models as the server's."""
        token = _SERVING.set(self)
        try:
            yield
        finally:
            _SERVING.reset(token)

    @contextmanager
    def phase(self, name: str, device: torch.device | None) -> Iterator[None]:
        """Add the time of the enclosed work to a phase.

        device: synchronise a GPU, so that its work counts for this phase; None in lockstep, where its work is for all
        federations and only their total time is meaningful.
        """
        start = time.perf_counter()
        yield
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


_SERVING: ContextVar[Costs | None] = ContextVar("serving", default=None)  # federations in lockstep have a thread each


def book(m: int, n: int, models: Mapping[str, Tensor]) -> None:
    """Count m x n products of vectors as long as a model of the stack `models`, two FLOPs per multiply-add.

    Counts only inside `Costs.serving`; the clients' work besides training is not counted.
    """
    costs = _SERVING.get()
    if costs is not None:
        costs.server_flops += 2 * m * n * sum(value.shape[1:].numel() for value in models.values())
