"""Attacks without information about other clients."""

import math
from dataclasses import dataclass

from feddwa.attacks.base import Attack, Seen
from feddwa.engine import Stack, keys
from feddwa.engine.rows import difference, zeros
from feddwa.errors import require


@dataclass(frozen=True)
class SignFlip(Attack):
    """-d: the opposite of the honest update."""

    summary = "sends the negative of its honest update"

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        return {name: -value for name, value in seen.own.items()}


@dataclass(frozen=True)
class Scaled(Attack):
    """factor * d. With factor m / (attackers), attackers that agree replace a mean by their own model."""

    summary = "sends a multiple of its honest update"

    factor: float = 10.0
    """Factor of the update."""

    def __post_init__(self) -> None:
        require(math.isfinite(self.factor), "--param factor", self.factor, "a finite number")

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        return {name: self.factor * value for name, value in seen.own.items()}


@dataclass(frozen=True)
class RandomModel(Attack):
    """Gaussian noise in place of the model; every tensor has the root mean square of the one it replaces."""

    summary = "sends noise with the norm of its model"

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        noise = {}
        for number, (name, own) in enumerate(seen.own.items()):
            sent = (seen.start[name] + own).reshape(len(own), -1).double()
            size = sent.square().mean(1, keepdim=True).sqrt()
            drawn = keys.normal64(keys.fold(seen.keys, number).to(sent.device), sent.shape[1])
            noise[name] = (size * drawn).reshape(own.shape)
        return difference(noise, seen.start)


@dataclass(frozen=True)
class FreeRider(Attack):
    """0: returns the received model. It trains nothing and benefits from the others."""

    summary = "returns the model that it received"

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        return zeros(seen.own)
