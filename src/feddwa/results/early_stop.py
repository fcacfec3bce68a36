"""`--early-stop`: end a run before its last round, by the validation series alone.

The decision is a function of the lines of metrics.jsonl, so a resumed run stops at the same round. A line has the
models before its round, so the round in which patience runs out still runs, as the last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feddwa.results.metrics import Line
from feddwa.results.summary import validation_score


@dataclass
class EarlyStop:
    """Reads the lines of a run; `patience`: allowed number of evaluations in a row without improvement."""

    patience: float
    best: float = float("-inf")
    best_round: int = 0  # round after which the best models were measured
    failed: int = 0  # evaluations since then

    def add(self, line: Line) -> None:
        """Process a line of metrics.jsonl."""
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
        """For the record of a run that ended `after` some of its rounds."""
        why = f"no better validation in {self.patience:g} evaluation{'s' * (self.patience > 1)}"
        told = f"ended after round {after} of {rounds} (--early-stop): {why}; best after round {self.best_round}"
        models = f"the models of round {after} are delivered"
        return {"round": after, "best_round": self.best_round, "why": f"{told}; {models}"}
