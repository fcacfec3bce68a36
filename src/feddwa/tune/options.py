"""Options of `feddwa tune` for the search. Imports here must be fast."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from feddwa.errors import InputError, require
from feddwa.params import AtMost, Option, parse, typed

TRIALS = 30


@dataclass(frozen=True)
class TuningOptions:
    """How methods are searched, the same for all."""

    trials: int | None = None
    """Trials per method, the first with its defaults [30]."""
    budget: Annotated[str | None, Option(metavar="gradients=X")] = None
    """In place of --trials: gradients of single samples over all trials of a method."""
    sampler: Literal["tpe", "random", "grid", "halving"] = "tpe"
    """How trials are drawn; halving: at random; best third and defaults train on after 1/9, 1/3 of the rounds."""
    space: Annotated[tuple[str, ...], Option(metavar="KEY=RANGE", repeated=True)] = ()
    """KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b,c: values to try, also of epochs, batch_size, ... Repeatable."""
    seeds_final: Annotated[tuple[Annotated[int, AtMost(2**63 - 1)], ...], Option(metavar="N")] = (0, 1, 2)
    """Seeds of the final runs of winner and defaults; not that of the search."""
    batch: int | None = None
    """Trials trained together [what fits; with tpe at most a third of the trials, so that it learns from the others].
    """
    jobs: int = 1
    """Processes, each with one method at a time."""

    def check_search(self) -> None:
        """Raise InputError unless budget and seeds are valid."""
        for key in ("trials", "batch", "jobs"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"--{key}", value, "at least 1")
        if self.budget is not None and self.trials is not None:
            raise InputError("--budget: replaces --trials; leave one out")
        counted = self.gradients is None or self.sampler != "grid"
        require(counted, "--sampler", self.sampler, "another with --budget: a grid has a fixed number of points")
        seeds = self.seeds_final
        valid = 0 < len(seeds) == len(set(seeds)) and min(seeds) >= 0
        require(valid, "--seeds-final", " ".join(map(str, seeds)), "one seed or more, each once, from 0 on")

    @property
    def trials_due(self) -> int | None:
        """The budget in trials; None if it is in gradients."""
        return (self.trials or TRIALS) if self.budget is None else None

    @property
    def gradients(self) -> float | None:
        """The budget in gradients; None if it is a number of trials."""
        if self.budget is None:
            return None
        unit, _, amount = self.budget.partition("=")
        require(unit == "gradients", "--budget", self.budget, "of the form gradients=NUMBER")
        value: float = typed("--budget", parse(amount, float), float)
        require(0 < value < math.inf, "--budget", self.budget, "gradients=NUMBER, a finite number above 0")
        return value
