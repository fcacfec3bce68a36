"""Attacks that need to know nothing of other clients."""

import math
from dataclasses import dataclass

from feddwa.attacks.base import Attack, Seen
from feddwa.engine import Stack, keys
from feddwa.engine.rows import difference, zeros
from feddwa.errors import require


@dataclass(frozen=True)
class SignFlip(Attack):
    """-d: as far as training led, the other way."""

    summary = "goes as far as it was led, the other way"

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        return {name: -value for name, value in seen.own.items()}


@dataclass(frozen=True)
class Scaled(Attack):
    """factor * d. With m / (attackers) for a factor, attackers that agree replace a mean by their own model."""

    summary = "goes several times as far"

    factor: float = 10.0
    """How many times as far."""

    def __post_init__(self) -> None:
        require(math.isfinite(self.factor), "--param factor", self.factor, "a finite number")

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        return {name: self.factor * value for name, value in seen.own.items()}


@dataclass(frozen=True)
class RandomModel(Attack):
    """Normal noise in place of the model; every tensor has the root mean square of the one that it replaces."""

    summary = "sends noise as large as its model"

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
    """0: what it was sent comes back. It trains nothing and gets what the others make."""

    summary = "returns what it was sent"

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        return zeros(seen.own)
