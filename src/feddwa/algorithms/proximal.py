"""Gradient descent with a pull towards another model, which several methods share."""

from dataclasses import dataclass

from feddwa.data.federated import Batch
from feddwa.engine import Model, StepState
from feddwa.engine.network import Client, descend
from feddwa.engine.numbers import Number
from feddwa.engine.steps import OptimizerStep


@dataclass(frozen=True)
class ProximalStep(OptimizerStep):
    """One step on f(v) + strength/2 ||v - anchor||^2, BatchNorm's scale and shift included.

    The term's gradient is written down rather than differentiated: that saves a pass over all parameters in every step.
    The optimiser takes the sum of both gradients, and clips it, as if the term were part of the loss.
    """

    rate: Number
    strength: Number

    def __call__(self, client: Client, state: StepState, batch: Batch, anchor: Model) -> StepState:
        """One step on a batch: grad f(v) + strength (v - anchor)."""
        model = state["model"]
        gradient = client.gradient(model, batch)
        pulled = descend(gradient, descend(model, anchor, 1.0), -self.strength)
        return self.descend(state, {"model": pulled}, self.rate)
