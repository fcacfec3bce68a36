"""Steps of one client that use the run's optimiser.

A step of an algorithm derives from `OptimizerStep` and names the parts of its state that the optimiser moves. The
trainer puts the run's optimiser into the step, and its state beside these parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from feddwa.data.federated import Batch
from feddwa.engine.network import Client, Objective, ObjectiveWithAux, Step, task_loss
from feddwa.engine.numbers import Number
from feddwa.engine.optimizers import PLAIN, Optimizer
from feddwa.engine.types import Model, StepState

PREFIX = "optimizer:"  # prefix of an optimiser's parts in a state or memory: optimizer:model:momentum
T = TypeVar("T")


@dataclass(frozen=True)
class OptimizerStep:
    """A step whose gradients are applied by an optimiser."""

    moves: ClassVar[tuple[str, ...]] = ("model",)  # the parts of the state that the optimiser moves
    optimizer: Optimizer = field(default=PLAIN, kw_only=True)

    def __call__(self, *args: Any, **constants: Any) -> StepState:
        """One step: (client, state, batch, **constants) -> the new state."""
        raise NotImplementedError

    def gradients(
        self, client: Client, state: StepState, batch: Batch, objective: ObjectiveWithAux, **constants: Model
    ) -> tuple[dict[str, Model], Model]:
        """The gradients of all parts that the optimiser moves, from one pass, and aux.

        objective: (net, part -> model, batch, **constants) -> (loss, aux).
        """
        flat = Model({f"{part}/{name}": value for part in self.moves for name, value in state[part].items()})

        def of_parts(net: Any, params: Model, batch: Batch, **constants: Model) -> tuple[Tensor, Model]:
            return objective(net, self._parts(state, params), batch, **constants)

        found, aux = client.gradient_and_aux(flat, batch, of_parts, **constants)
        return self._parts(state, found), aux

    def _parts(self, state: StepState, flat: Model) -> dict[str, Model]:
        return {part: Model({name: flat[f"{part}/{name}"] for name in state[part]}) for part in self.moves}

    def descend(self, state: StepState, gradients: Mapping[str, Model], rate: Number) -> dict[str, Model]:
        """The parts in `gradients` and the optimiser's state after a step of the optimiser."""
        new: dict[str, Model] = {}
        for part, gradient in self.optimizer.clipped(gradients).items():
            new[part], own = self.optimizer.update(state[part], gradient, state_of(state, part), rate)
            new |= named(part, own)
        return new


@dataclass(frozen=True)
class SGDStep(OptimizerStep):
    """One step of mini-batch descent on an objective; the state has one part, "model"."""

    rate: Number
    objective: Objective = task_loss

    def __call__(self, client: Client, state: StepState, batch: Batch, **constants: Model) -> StepState:
        """The state after the step."""
        gradient = client.gradient(state["model"], batch, self.objective, **constants)
        return self.descend(state, {"model": gradient}, self.rate)


def with_optimizer(step: Step, optimizer: Optimizer) -> Step:
    """The step with this optimiser; steps without one are returned unchanged."""
    return replace(step, optimizer=optimizer) if isinstance(step, OptimizerStep) else step


def named(part: str, state: Mapping[str, T]) -> dict[str, T]:
    """An optimiser's state of a part, slot -> ..., as parts of a step's state."""
    return {f"{PREFIX}{part}:{slot}": value for slot, value in state.items()}


def state_of(parts: Mapping[str, T], part: str) -> dict[str, T]:
    """An optimiser's state of a part, slot -> ..., among the parts of a step's state or a memory."""
    prefix = f"{PREFIX}{part}:"
    return {name.removeprefix(prefix): value for name, value in parts.items() if name.startswith(prefix)}
