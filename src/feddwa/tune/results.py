"""Results of a tuning: per method the search, and the runs of its defaults and of the winner on fresh seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from feddwa.algorithms import title_of
from feddwa.errors import InputError
from feddwa.results.compare import Spread, difference
from feddwa.results.measure import ACCURACY, LOSS, Measure
from feddwa.results.record import Record, read_run
from feddwa.tune.search import DEFAULT, TUNED, read
from feddwa.tune.space import FOUND


@dataclass(frozen=True)
class Tuned:
    """The result of one method."""

    name: str
    found: Mapping[str, Any]  # of search.json
    runs: Mapping[str, Mapping[int, Record]]  # "default" and "tuned" -> seed -> run; one entry if the default has won

    @property
    def title(self) -> str:
        """The name used in the literature."""
        return title_of(str(self.found["algorithm"]))

    @property
    def measure(self) -> Measure:
        """The measure of the search."""
        return ACCURACY if self.found["measure"] == ACCURACY.name else LOSS

    @property
    def values(self) -> Mapping[str, Any]:
        """The winner's values."""
        values: Mapping[str, Any] = self.found["best"]["values"]
        return values

    def validation(self, kind: str) -> float | None:
        """Validation score of the search's last models."""
        score: float | None = self.found["best" if kind == TUNED else "default"]["validation"]
        return score

    @cached_property
    def test(self) -> Mapping[str, Spread]:
        """Over fresh seeds, of the models after the last round: "default", "tuned"."""
        return {kind: Spread({seed: run.last for seed, run in runs.items()}) for kind, runs in self.runs.items()}

    @property
    def gain(self) -> Spread | None:
        """The gain by tuning, seed by seed."""
        return difference(self.test[TUNED], self.test[DEFAULT])

    @cached_property
    def so_far(self) -> list[tuple[float, float]]:
        """(gradients spent, best validation score so far) after every trial that reached its last round."""
        spent, best, points = 0.0, -float("inf"), []
        for trial in self.found["trials"]:
            spent += trial["gradients"]
            scores = list(trial["curve"].values())
            if scores and not trial["stopped"] and not trial["failed"]:
                best = max(best, self.measure.sign * scores[-1])
                points.append((spent, self.measure.sign * best))
        return points


def read_tuning(out: Path) -> list[Tuned]:
    """All methods of a directory with a finished search and runs, best tuned first."""
    found = [each for file in sorted(out.glob(f"*/{FOUND}")) if (each := _read(file.parent)) is not None]
    if not found:
        raise InputError(f"{out}: holds no finished search of feddwa tune; `feddwa resume {out}` continues one")
    return sorted(found, key=lambda each: -each.measure.sign * each.test[TUNED].mean)


def _read(folder: Path) -> Tuned | None:
    """One method; None until its runs are finished."""
    runs = {
        kind: {record.seed: record for path in sorted((folder / kind).glob("seed-*")) for record in [read_run(path)]}
        for kind in (DEFAULT, TUNED)
    }
    runs[DEFAULT] = runs[DEFAULT] or runs[TUNED]
    if not runs[TUNED] or not all(each.finished for kind in runs.values() for each in kind.values()):
        return None
    return Tuned(folder.name, read(folder), runs)
