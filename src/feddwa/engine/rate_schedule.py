"""The learning rate of a round: a pure function of schedule, round and number of rounds, as in torch's schedulers.

    constant      1
    step          decay^floor(e / every)
    exponential   decay^e
    cosine        (1 + cos(pi e / E)) / 2          E = rounds - warmup

times the run's rate, in round t with e = t - 1 - warmup. The rounds of the warm-up have the factor t / (warmup + 1).
"""

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["constant", "step", "exponential", "cosine"]


@dataclass(frozen=True)
class RateSchedule:
    """The run's rate over the rounds."""

    kind: Kind = "constant"
    decay: float = 1.0  # factor of step and exponential
    every: int = 1  # rounds after which step decays
    warmup: int = 0  # rounds in which the rate rises
    rounds: int = 1  # T; training before the first or after the last round has the rate of that round

    @property
    def varies(self) -> bool:
        """Whether the rate differs between rounds."""
        return self.kind != "constant" or self.warmup > 0

    def factor(self, round: int) -> float:
        """The factor of the run's rate in a round, counted from 1."""
        past = min(max(round, 1), self.rounds) - 1 - self.warmup
        if past < 0:
            return (past + 1 + self.warmup) / (self.warmup + 1)
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * past / (self.rounds - self.warmup))) / 2
        exponent = {"constant": 0, "step": past // self.every, "exponential": past}[self.kind]
        return float(self.decay**exponent)


CONSTANT = RateSchedule()
