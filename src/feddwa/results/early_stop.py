"""`--early-stop`: when a run ends before its last round, by the validation series alone.

The decision is a function of the lines of metrics.jsonl, so a run that is resumed stops where it would have stopped. A
line has the models from before its round, so the round in which patience runs out is still run, and is the last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feddwa.results.metrics import Line
from feddwa.results.summary import validation_score


@dataclass
class EarlyStop:
    """Watches the lines of a run; `patience`: evaluations in a row that may fail to improve on the best one."""

    patience: float
    best: float = float("-inf")
    best_round: int = 0  # after which the best models were there
    failed: int = 0  # evaluations since then

    def add(self, line: Line) -> None:
        """Take in a line of metrics.jsonl."""
        if line.get("evaluated") == 0:
            return
        score = validation_score(line)
        if score is not None and score > self.best:
            self.best, self.best_round, self.failed = score, line["round"] - 1, 0
        else:
            self.failed += 1

    @property
    def due(self) -> bool:
        """Whether patience has run out."""
        return self.failed >= self.patience

    def facts(self, after: int, rounds: int) -> Mapping[str, Any]:
        """For the record of a run that has ended `after` so many of its rounds."""
        why = f"no better validation in {self.patience:g} evaluation{'s' * (self.patience > 1)}"
        told = f"ended after round {after} of {rounds} (--early-stop): {why}; best after round {self.best_round}"
        models = f"the models of round {after} are delivered"
        return {"round": after, "best_round": self.best_round, "why": f"{told}; {models}"}
