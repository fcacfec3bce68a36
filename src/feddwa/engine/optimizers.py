"""Optimisers as pure functions, so that they can be mapped over rows: `init(params)`, `update(params, ...)`.

Their arithmetic is that of `torch.optim`, which the sequential twin uses. With g the gradient from a step (proximal
terms included), r the rate and t the client's step count:

    clip   g <- g min(1, clip / (||g|| + 1e-6))            over all parameters that the step moves
    SGD    g <- g + decay w;  b <- momentum b + g;  w <- w - r b          nesterov: w <- w - r (g + momentum b)
    Adam   g <- g + decay w;  a <- a + (1 - beta1) (g - a);  s <- beta2 s + (1 - beta2) g^2
           w <- w - r / (1 - beta1^t) a / (sqrt(s / (1 - beta2^t)) + eps)
    AdamW  likewise, but w <- (1 - r decay) w in place of g <- g + decay w

States start at zero. `--optimizer-state` says what clients keep between rounds; within a round, see `Trainer.train`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from feddwa.engine.network import descend
from feddwa.engine.numbers import Number, present, times
from feddwa.engine.rows import zeros
from feddwa.engine.types import Model

State = Mapping[str, Model]  # slot -> parameter name -> (*shape): an optimiser's state for one model


@dataclass(frozen=True)
class Optimizer:
    """Base of all optimisers."""

    clip: Number = field(default=0.0, kw_only=True)  # largest Euclidean norm of a gradient; 0 = no limit

    def init(self, params: Model) -> State:
        """The state before the first step."""
        raise NotImplementedError

    @property
    def stateless(self) -> bool:
        """Whether the optimiser has no state."""
        return not self.init(Model({}))

    def update(self, params: Model, gradient: Model, state: State, rate: Number) -> tuple[Model, State]:
        """(parameters, state) after a step."""
        raise NotImplementedError

    def clipped(self, gradients: Mapping[str, Model]) -> Mapping[str, Model]:
        """Gradients, part -> name -> (*shape), scaled down together if their norm exceeds `clip`."""
        if not present(self.clip):
            return gradients
        norms = [torch.linalg.vector_norm(value) for model in gradients.values() for value in model.values()]
        factor = (self.clip / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)).clamp(max=1.0)
        return {
            part: Model({name: _scaled(factor, g) for name, g in model.items()}) for part, model in gradients.items()
        }


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent; without options, the paper's."""

    momentum: Number = 0.0
    nesterov: bool = False
    weight_decay: Number = 0.0

    def init(self, params: Model) -> State:
        """The state before the first step."""
        return {"momentum": zeros(params)} if present(self.momentum) else {}

    def update(self, params: Model, gradient: Model, state: State, rate: Number) -> tuple[Model, State]:
        """(parameters, state) after a step."""
        gradient = _decayed(params, gradient, self.weight_decay)
        if not present(self.momentum):
            return descend(params, gradient, rate), {}
        buffer = descend(gradient, state["momentum"], -self.momentum)
        direction = descend(gradient, buffer, -self.momentum) if self.nesterov else buffer
        return descend(params, direction, rate), {"momentum": buffer}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; AdamW if `decoupled`. The bias correction counts each client's own steps, in float64."""

    beta1: Number = 0.9
    beta2: Number = 0.999
    eps: float = 1e-8
    weight_decay: Number = 0.0
    decoupled: bool = False

    def init(self, params: Model) -> State:
        """The state before the first step."""
        device = next((value.device for value in params.values()), None)
        count = Model({"steps": torch.zeros((), dtype=torch.float64, device=device)})
        return {"mean": zeros(params), "square": zeros(params), "count": count}

    def update(self, params: Model, gradient: Model, state: State, rate: Number) -> tuple[Model, State]:
        """(parameters, state) after a step."""
        steps = state["count"]["steps"] + 1
        if self.decoupled and present(self.weight_decay):
            params = Model({name: value - _scaled(rate * self.weight_decay, value) for name, value in params.items()})
        elif not self.decoupled:
            gradient = _decayed(params, gradient, self.weight_decay)
        mean = {name: value + _scaled(1 - self.beta1, gradient[name] - value) for name, value in state["mean"].items()}
        square = {
            name: _scaled(self.beta2, value) + _scaled(1 - self.beta2, gradient[name].square())
            for name, value in state["square"].items()
        }
        scale = (1 - self.beta2**steps).rsqrt()  # of sqrt(square), in float64
        root = {name: _scaled(scale, value.sqrt()) for name, value in square.items()}
        direction = Model({name: value / (root[name] + self.eps) for name, value in mean.items()})
        new = descend(params, direction, rate / (1 - self.beta1**steps))
        return new, {"mean": Model(mean), "square": Model(square), "count": Model({"steps": steps})}


PLAIN = SGD()  # the default, and the paper's


def _decayed(params: Model, gradient: Model, decay: Number) -> Model:
    """The gradient plus that of decay / 2 ||w||^2."""
    return descend(gradient, params, -decay) if present(decay) else gradient


def _scaled(number: Number, value: Tensor) -> Tensor:
    """number * value in the dtype of `value`."""
    return times(number, value).to(value.dtype)
