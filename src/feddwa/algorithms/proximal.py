"""Gradient descent with a pull towards another model, which several methods share."""

from dataclasses import dataclass

from feddwa.data.federated import Batch
from feddwa.engine import Model, StepState
from feddwa.engine.network import Client, descend


@dataclass(frozen=True)
class ProximalStep:
    """One step on f(v) + strength/2 ||v - anchor||^2, BatchNorm's scale and shift included.

    The term's gradient is written down rather than differentiated: that saves a pass over all parameters in every step.
    """

    rate: float
    strength: float

    def __call__(self, client: Client, state: StepState, batch: Batch, anchor: Model) -> StepState:
        """One step on a batch: grad f(v) + strength (v - anchor)."""
        model = state["model"]
        gradient = client.gradient(model, batch)
        pulled = descend(gradient, descend(model, anchor, 1.0), -self.strength)
        return {"model": descend(model, pulled, self.rate)}
