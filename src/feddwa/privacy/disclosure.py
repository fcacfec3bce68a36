"""What the server is told of clients besides their updates, and what is withheld: data sizes, label counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from feddwa.algorithms import Problem
from feddwa.errors import InputError
from feddwa.options.privacy import Privacy


@dataclass(frozen=True)
class Disclosed:
    """What clients tell the server in a run."""

    privacy: Privacy
    everything: bool  # not --disclose none

    @property
    def sizes(self) -> bool:
        """Whether they tell their numbers of samples; else all clients have the same weight."""
        return self.everything and not self.privacy.of_updates

    def problem(self, problem: Problem) -> Problem:
        """What the method is set up from. A client uses its own label counts, unless its samples are private."""
        if not self.sizes:
            problem = replace(problem, sizes=torch.ones_like(problem.sizes))
        return replace(problem, label_counts=None) if self._samples else problem

    @contextmanager
    def withholding(self) -> Iterator[None]:
        """Say in errors of the enclosed set-up what the method has not been told."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{error} (--dp unit=sample withholds label counts)") if self._samples else error from None

    @property
    def _samples(self) -> bool:
        """Whether single samples are private."""
        return self.privacy.active and self.privacy.unit == "sample"
