"""The sequential twin's optimisers and clipping: those of torch itself instead of ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from feddwa.engine.numbers import Number
from feddwa.engine.optimizers import SGD, Adam, Optimizer, State
from feddwa.engine.types import Model

SLOTS = {"momentum": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq"}  # our names -> torch's


@dataclass(frozen=True)
class TorchOptimizer(Optimizer):
    """The `torch.optim` optimiser equivalent to `like`."""

    like: Optimizer

    def init(self, params: Model) -> State:
        """The state before the first step."""
        return self.like.init(params)

    def update(self, params: Model, gradient: Model, state: State, rate: Number) -> tuple[Model, State]:
        """(parameters, state) after a step."""
        leaves = {name: nn.Parameter(value.detach().clone()) for name, value in params.items()}
        for name, leaf in leaves.items():
            leaf.grad = gradient[name].detach().clone()
        optimiser = make(self.like, leaves, float(rate))
        load(optimiser, leaves, state)
        optimiser.step()
        return Model({name: leaf.detach() for name, leaf in leaves.items()}), read(optimiser, leaves, state)

    def clipped(self, gradients: Mapping[str, Model]) -> Mapping[str, Model]:
        """Gradients, part -> name -> (*shape), after torch's `clip_grad_norm_` of all of them."""
        if not self.like.clip:
            return gradients
        leaves = {
            part: {name: nn.Parameter(torch.zeros_like(value)) for name, value in model.items()}
            for part, model in gradients.items()
        }
        for part, model in leaves.items():
            for name, leaf in model.items():
                leaf.grad = gradients[part][name].detach().clone()
        every = [leaf for model in leaves.values() for leaf in model.values()]
        nn.utils.clip_grad_norm_(every, float(self.like.clip))
        return {
            part: Model({name: leaf.grad for name, leaf in model.items() if leaf.grad is not None})
            for part, model in leaves.items()
        }


def make(like: Optimizer, leaves: Mapping[str, nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """torch's optimiser for some parameters."""
    if isinstance(like, SGD):
        momentum, decay = float(like.momentum), float(like.weight_decay)
        return torch.optim.SGD(leaves.values(), rate, momentum, weight_decay=decay, nesterov=like.nesterov)
    assert isinstance(like, Adam)
    kind = torch.optim.AdamW if like.decoupled else torch.optim.Adam
    betas = float(like.beta1), float(like.beta2)
    return kind(leaves.values(), rate, betas, like.eps, weight_decay=float(like.weight_decay))


def load(optimiser: torch.optim.Optimizer, leaves: Mapping[str, nn.Parameter], state: State) -> None:
    """Give torch's optimiser the state with which ours would continue."""
    slots = {SLOTS[slot]: model for slot, model in state.items() if slot in SLOTS}
    for name, leaf in leaves.items():
        own: dict[str, Any] = {slot: model[name].detach().clone() for slot, model in slots.items()}
        if "count" in state:
            own["step"] = torch.tensor(float(state["count"]["steps"]))
        optimiser.state[leaf] = own


def read(optimiser: torch.optim.Optimizer, leaves: Mapping[str, nn.Parameter], like: State) -> State:
    """The state of torch's optimiser in our layout: the slots of `like`."""
    found = {
        slot: Model({name: optimiser.state[leaf][SLOTS[slot]] for name, leaf in leaves.items()})
        for slot in like
        if slot in SLOTS
    }
    if "count" not in like:
        return found
    first = optimiser.state[next(iter(leaves.values()))]
    return {**found, "count": Model({"steps": first["step"].to(like["count"]["steps"])})}
