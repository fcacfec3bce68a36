"""A running run's state from the lines of metrics.jsonl: accuracy, progress, time."""

import time
from dataclasses import dataclass, field
from typing import Any

from feddwa.results.summary import seconds_of
from feddwa.results.units import human_bytes, human_seconds

Line = dict[str, Any]  # of metrics.jsonl

SCORES = 5  # scores of lockstep runs in one line


@dataclass
class Tally:
    """The state so far of one run, or of several in lockstep."""

    name: str
    rounds: int
    started: float = field(default_factory=lambda: time.monotonic())
    scores: dict[int, str] = field(default_factory=dict)  # seed -> text of its current score
    best: tuple[float, int] | None = None  # (percent, finished rounds)
    round: int = 0  # finished rounds
    begun: dict[int, int] = field(default_factory=dict)  # seed -> finished rounds at the start or resume
    bytes: int = 0  # up and down, of all clients
    trained: int = 0  # client trainings
    lost: int = 0  # refused or missing updates
    over: int = 0  # ended runs
    seconds: float = 0.0  # sum over all lines of all runs

    def add(self, line: Line, seed: int = 0) -> None:
        """Add a line of metrics.jsonl; seed: the run's seed, if there are several runs."""
        accuracy = line["before"]["all"]
        if line.get("evaluated") != 0:
            self.scores[seed] = score(line)
        if accuracy is not None and (self.best is None or accuracy > self.best[0]):
            self.best = (accuracy, line["round"] - 1)
        self.begun.setdefault(seed, min(line["round"] - 1, self.rounds))
        self.round = max(self.round, min(line["round"], self.rounds))
        self.over += "participants" not in line
        self.bytes += line.get("participants", 0) * (line.get("bytes_up", 0) + line.get("bytes_down", 0))
        self.trained += line.get("participants", 0)
        self.seconds += seconds_of(line) if "participants" in line else 0.0
        self.lost += sum(map(len, line.get("missing", {}).values()))

    @property
    def score(self) -> str:
        """Current scores by seed: "accuracy 93.33 %, 91.94 %"."""
        first, *rest = [self.scores[seed] for seed in sorted(self.scores)] or [""]
        more = [", ..."] if len(rest) >= SCORES else []
        return "".join([first, *(f", {each.rpartition('accuracy ')[2]}" for each in rest[: SCORES - 1]), *more])

    @property
    def done(self) -> bool:
        """Whether all begun runs have ended."""
        return self.over >= len(self.scores)

    def details(self) -> str:
        """Resume, refused updates, best score, traffic and speed in less than a line."""
        best = (
            ""
            if self.best is None or len(self.scores) > 1
            else f"best {self.best[0]:.2f} % after round {self.best[1]}, "
        )
        lost = f"{self.lost} updates did not count, " if self.lost else ""
        resumed = f"resumed after round {self.resumed}, " if self.resumed else ""
        speed = self.trained / max(self._elapsed, 1e-9)
        return f"{resumed}{lost}{best}traffic {human_bytes(self.bytes)}, {_rate(speed)} clients/s"

    @property
    def resumed(self) -> int:
        """Finished rounds at the resume, the fewest of several runs; 0: not resumed."""
        return min(self.begun.values(), default=0)

    def took(self) -> str:
        """Time of one run as in tables and reports; for a resumed run, of the rounds since then."""
        more = (" each" if self._runs > 1 else "") + (" since" if self.resumed else "")
        return f"took {human_seconds(self._elapsed / self._runs)}{more}"

    @property
    def _runs(self) -> int:
        """Number of runs in lockstep."""
        return max(len(self.begun), 1)

    @property
    def _elapsed(self) -> float:
        """Seconds of all rounds. In lockstep the line of every run has the seconds of the whole stack."""
        return self.seconds / self._runs

    def left(self) -> float:
        """Estimated remaining seconds, from the rounds since the start or resume."""
        return (time.monotonic() - self.started) * (self.rounds - self.round) / max(self.round - self.resumed, 1)


def score(line: Line) -> str:
    """Score of the models at the start of the round: percent, or the loss without classes."""
    accuracy, loss = line["before"]["all"], line["loss_before"]
    if accuracy is not None:
        return f"accuracy {accuracy:.2f} %"
    return "diverged" if loss is None else f"loss {loss:.4f}"


def _rate(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
