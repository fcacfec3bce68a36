"""Gradient descent with a pull towards another model, which several methods share."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from feddwa.data.federated import Batch
from feddwa.engine.network import Client, descend
from feddwa.engine.rows import Row


@dataclass(frozen=True)
class ProximalStep:
    """One step on f(v) + strength/2 ||v - anchor||^2, BatchNorm's scale and shift included.

    The term's gradient is written down rather than differentiated: that saves a pass over all parameters in every step.
    """

    rate: float
    strength: float

    def __call__(self, client: Client, state: Mapping[str, Row], batch: Batch, anchor: Row) -> Mapping[str, Row]:
        """One step on a batch: grad f(v) + strength (v - anchor)."""
        model = state["model"]
        gradient = client.gradient(model, batch)
        pulled = {n: torch.add(gradient[n], v - anchor[n], alpha=self.strength) for n, v in model.items()}
        return {"model": descend(model, pulled, self.rate)}
