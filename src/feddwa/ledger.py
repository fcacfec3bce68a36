"""What a round costs: bytes counted from the messages, FLOPs from the step, seconds by phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from feddwa.engine.rows import State, take_state, tensors


def message_bytes(message: State) -> int:
    """Bytes of one client's message: everything in it, whatever it is."""
    first = take_state(message, torch.zeros(1, dtype=torch.int64))
    return sum(value.numel() * value.element_size() for _, value in tensors(first))


@dataclass
class Costs:
    """One round."""

    bytes_down: int = 0  # per participating client
    bytes_up: int = 0
    flops: Tensor = field(default_factory=lambda: torch.zeros(0))  # (m,) of local training, per participating client
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> wall time

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        """Add the time of the enclosed work to a phase; a GPU is waited for."""
        start = time.perf_counter()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
