"""Updates broadcast to all clients, and their mixture with each client's own (L2C)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.engine import Stack
from feddwa.engine.rows import add_scaled, difference, only
from feddwa.mixing import dots, inner_products, mix


@dataclass(frozen=True)
class Exchange:
    """What clients can mix: a broadcast, stored once, and their own last updates."""

    start: Stack  # (m, *shape) where each client's last training began
    own: Stack  # (m, *shape) each client's own update, also if the broadcast is without it
    ids: Tensor  # (m,)
    updates: Stack  # (k, *shape) the updates received, perhaps the client's own among them
    senders: Tensor  # (k,)

    def mixture(self, weights: Tensor) -> Stack:
        """theta_i - sum_j omega_ij D_j."""
        mine, start, own = self.ids.unsqueeze(1), self._sent(self.start), self._sent(self.own)
        others = mix(weights[:, self.senders].masked_fill(self.senders == mine, 0), self.updates)
        mixed = add_scaled(difference(start, others), -weights.gather(1, mine), own)
        return {name: mixed.get(name, value - self.own[name]) for name, value in self.start.items()}

    def slopes(self, weights: Tensor, gradient: Stack) -> Tensor:
        """dL/domega_ij = -<G_i, D_j>: (m, N), 0 for clients that sent nothing."""
        result = torch.zeros_like(weights)
        gradient, own = self._sent(gradient), self._sent(self.own)
        result[:, self.senders] = -inner_products(gradient, self.updates)
        return result.scatter(1, self.ids.unsqueeze(1), -dots(gradient, own).unsqueeze(1))

    def _sent(self, stack: Stack) -> Stack:
        """The parameters that clients send; the others (local BatchNorm) stay with their client."""
        return only(stack, self.updates)
