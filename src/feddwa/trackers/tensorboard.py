"""A run as TensorBoard shows it: scalars, histograms over clients, P as an image (`--track tensorboard`).

The event files stand in the run directory, so `tensorboard --logdir runs` shows all runs side by side.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from feddwa.callbacks import Callback, Entry, Run

PIXELS = 8  # width and height of a weight in the image
SERIES = {  # of a line of metrics.jsonl -> what they are called
    "before": "before training",
    "after": "after training",
    "validation": "validation, before training",
    "validation_after": "validation, after training",
    "central": "all test data, before training",
}
WIDEST = 1024  # pixels of an image of many clients, whose weights are smaller then; one each at least


class Tracker(Callback):
    """Writes one run, a round at a time; a resumed run takes the place of the rounds that it repeats."""

    _writer: "SummaryWriter | None" = None

    def on_begin(self, run: Run) -> None:
        """Open a file of events, beside earlier ones."""
        self._writer = SummaryWriter(str(run.path), purge_step=len(run.past) + 1)

    def on_round(self, run: Run, round: Entry) -> None:
        """What is known of a round."""
        assert self._writer is not None
        number = round.line["round"]
        for name, value in _scalars(round.line):
            self._writer.add_scalar(name, value, number)
        for when in ("before", "after"):
            known = [value for value in round.clients.get(when, []) if value is not None]
            if known:
                self._writer.add_histogram(f"clients/{when} training", np.array(known), number)
        if round.result is not None and "weights" in round.result.info:
            self._writer.add_image("weights", _picture(round.result.info["weights"]), number)
        self._writer.flush()

    def on_end(self, run: Run, summary: Mapping[str, Any] | None) -> None:
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
