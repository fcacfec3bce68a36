"""A running run's state from the lines of metrics.jsonl: accuracy, progress, time."""

import time
from dataclasses import dataclass, field
from typing import Any

from feddwa.results.summary import seconds_of
from feddwa.results.units import human_bytes, human_seconds

Line = dict[str, Any]  # of metrics.jsonl

SCORES = 5  # runs in lockstep whose scores stand beside one another


@dataclass
class Tally:
    """What is known so far of a run, or of several in lockstep."""

    name: str
    rounds: int
    started: float = field(default_factory=lambda: time.monotonic())
    scores: dict[int, str] = field(default_factory=dict)  # seed -> how good its models are
    best: tuple[float, int] | None = None  # percent, and the round after which it was reached
    round: int = 0  # finished rounds
    begun: dict[int, int] = field(default_factory=dict)  # seed -> rounds that were finished when the run was resumed
    bytes: int = 0  # up and down, of all clients
    trained: int = 0  # clients, every round anew
    lost: int = 0  # updates that did not count
    over: int = 0  # runs that have ended
    seconds: float = 0.0  # of the rounds that were told of, of all runs: as tables and reports count them

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
        """How good the models are, of several runs one behind the other: "accuracy 93.33 %, 91.94 %"."""
        first, *rest = [self.scores[seed] for seed in sorted(self.scores)] or [""]
        more = [", ..."] if len(rest) >= SCORES else []
        return "".join([first, *(f", {each.rpartition('accuracy ')[2]}" for each in rest[: SCORES - 1]), *more])

    @property
    def done(self) -> bool:
        """Whether no run that has begun is under way."""
        return self.over >= len(self.scores)

    def details(self) -> str:
        """What there is besides the score, in less than a line."""
        best = (
            ""
            if self.best is None or len(self.scores) > 1
            else f"best {self.best[0]:.2f} % after round {self.best[1]}, "
        )
        lost = f"{self.lost} updates did not count, " if self.lost else ""
        resumed = f"resumed after round {self.resumed}, " if self.resumed else ""
        speed = (
            self.trained * max(len(self.begun), 1) / max(self.seconds, 1e-9)
        )  # in lockstep every line has all seconds
        return f"{resumed}{lost}{best}traffic {human_bytes(self.bytes)}, {_rate(speed)} clients/s"

    @property
    def resumed(self) -> int:
        """The round after which the run was resumed, of several the first; 0: it began here."""
        return min(self.begun.values(), default=0)

    def took(self) -> str:
        """The time of a run, as tables and reports have it; of a resumed one that of its rounds since then.

        Runs in lockstep share their time: each of their lines has all of it.
        """
        runs = max(len(self.begun), 1)
        more = (" each" if runs > 1 else "") + (" since" if self.resumed else "")
        return f"took {human_seconds(self.seconds / runs**2)}{more}"

    def left(self) -> float:
        """Seconds to go, if rounds go on as they went; those before a resume took none of this time."""
        return (time.monotonic() - self.started) * (self.rounds - self.round) / max(self.round - self.resumed, 1)


def score(line: Line) -> str:
    """Score of the models at the start of the round: percent, or the loss without classes."""
    accuracy, loss = line["before"]["all"], line["loss_before"]
    if accuracy is not None:
        return f"accuracy {accuracy:.2f} %"
    return "diverged" if loss is None else f"loss {loss:.4f}"


def _rate(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
