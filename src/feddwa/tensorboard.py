"""A run as TensorBoard shows it: scalars, histograms over clients, the weight matrix as an image (`--tensorboard`).

The event files stand in the run directory, so `tensorboard --logdir runs` shows all runs side by side.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from feddwa.errors import InputError
from feddwa.federation import Round

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PIXELS = 8  # width and height of a weight in the image
SERIES = {  # of a line of metrics.jsonl -> what they are called
    "before": "before training",
    "after": "after training",
    "validation": "validation, before training",
    "validation_after": "validation, after training",
    "central": "all test data, before training",
}
WIDEST = 1024  # pixels of an image of many clients, whose weights are smaller then; one each at least


def check() -> None:
    """Say what to install where TensorBoard is not."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("--tensorboard: TensorBoard is not installed; pip install 'feddwa[tensorboard]'")


class TensorBoard:
    """Writes one run, a round at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def add(self, line: Mapping[str, Any], clients: Mapping[str, Any], result: Round | None) -> None:
        """What is known of a round; a resumed run takes the place of the rounds that it repeats."""
        from torch.utils.tensorboard import SummaryWriter

        round = line["round"]
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), purge_step=round)
        for name, value in _scalars(line):
            self._writer.add_scalar(name, value, round)
        for when in ("before", "after"):
            known = [value for value in clients.get(when, []) if value is not None]
            if known:
                self._writer.add_histogram(f"clients/{when} training", np.array(known), round)
        if result is not None and "weights" in result.info:
            self._writer.add_image("weights", _picture(result.info["weights"]), round)
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()


def _scalars(line: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Name -> value of everything in a line of metrics.jsonl that is a number."""
    found = []
    for when, told in SERIES.items():
        found.append((f"loss/{told}", line.get(f"loss_{when}")))
        found += [(f"accuracy {told}/{name}", value) for name, value in line.get(when, {}).items()]
    found += [(f"cost/{name}", line.get(name)) for name in ("bytes_up", "bytes_down", "flops", "participants")]
    found += [(f"seconds/{phase}", value) for phase, value in line.get("seconds", {}).items()]
    return [(name, value) for name, value in found if value is not None]


def _picture(weights: torch.Tensor) -> np.ndarray:
    """(1, H, W) in 0..1; the square root shows a weight of 0.05 beside one of 0.8."""
    grey = weights.detach().to("cpu", torch.float32).clamp(0, 1).sqrt().numpy()
    pixels = max(1, min(PIXELS, WIDEST // len(grey)))
    return np.kron(grey, np.ones((pixels, pixels), dtype=np.float32))[None]
