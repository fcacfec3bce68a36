"""Several networks and their mixture as one network, which FedEM trains and evaluates."""

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from feddwa.engine.network import head_parameters, trainable
from feddwa.errors import require

SHARES = "mixing.shares"  # pi_i among a client's buffers
Fresh = Literal["all", "head"]


class Mixing(nn.Module):
    """Log-probabilities (B, C) of a mixture from the outputs (M, B, C) of its components."""

    def __init__(self, components: int) -> None:
        super().__init__()
        self.register_buffer("shares", torch.full((components,), 1 / components, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        """log sum_m pi_m softmax(outputs_m)."""
        logs = self.get_buffer("shares").log().reshape(-1, *[1] * (outputs.ndim - 1))
        return torch.logsumexp(logs + outputs.log_softmax(2), 0)


class Mixture(nn.Module):
    """Components and their mixture, as one network."""

    def __init__(self, components: list[nn.Module]) -> None:
        super().__init__()
        self.components, self.mixing = nn.ModuleList(components), Mixing(len(components))

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Log-probabilities (B, C)."""
        found = [component(*inputs, **named) for component in self.components]
        mixed: Tensor = self.mixing(torch.stack([getattr(outputs, "logits", outputs) for outputs in found]))
        return mixed


def mixture_of(module: nn.Module, components: int, fresh: Fresh) -> Mixture:
    """`components` copies of a network; all but the first permute the entries of their parameters, or of the head's.

    For layers initialised with independent draws from one distribution, a permutation is a fresh draw. Uses torch's
    generator.
    """
    constants = {
        id(value): value for value in module.parameters() if not value.requires_grad
    }  # shared by all components
    copies = [copy.deepcopy(module, dict(constants)) for _ in range(components)]
    chosen = head_parameters(module) if fresh == "head" else tuple(trainable(module))
    require(bool(chosen), "--param fresh", fresh, "all: this network has no linear layer that is trained")
    for other in copies[1:]:
        for value in (other.get_parameter(name) for name in chosen):
            value.data = value.data.flatten()[torch.randperm(value.numel())].reshape(value.shape)
    return Mixture(copies)
