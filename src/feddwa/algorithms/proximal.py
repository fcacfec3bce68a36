"""Gradient descent with a pull towards another model, shared by several methods."""

from dataclasses import dataclass

from feddwa.data.federated import Batch
from feddwa.engine import Model, StepState
from feddwa.engine.network import Client, descend
from feddwa.engine.numbers import Number
from feddwa.engine.steps import OptimizerStep


@dataclass(frozen=True)
class ProximalStep(OptimizerStep):
    """One step on f(v) + strength/2 ||v - anchor||^2, including BatchNorm's scale and shift.

    The term's gradient is written out rather than differentiated, which saves a pass over all parameters per step. The
    optimiser receives, and clips, the sum of both gradients, as if the term were part of the loss.
    """

    rate: Number
    strength: Number

    def __call__(self, client: Client, state: StepState, batch: Batch, anchor: Model) -> StepState:
        """One step on a batch: grad f(v) + strength (v - anchor)."""
        model = state["model"]
        gradient = client.gradient(model, batch)
        pulled = descend(gradient, descend(model, anchor, 1.0), -self.strength)
        return self.descend(state, {"model": pulled}, self.rate)
