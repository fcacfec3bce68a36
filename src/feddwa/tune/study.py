"""A method's search as Optuna keeps it: an SQLite file that survives a kill, asked for trials and told what they gave.

The sampler of trial n is seeded by n. So a trial depends on the seed and on what is known of the trials before it, not
on whether the search was interrupted in between; a batch that was interrupted is made once more as a whole.
"""

import contextlib
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from feddwa.tune.space import Dimension, Space, Value, grid

FILE = "trials.db"
DONE = "outcomes"  # attribute of the study: what a batch gave, written before Optuna is told of its trials
SIZE = "batch"  # attribute of the study


@dataclass(frozen=True)
class Outcome:
    """What a trial gave."""

    curve: Mapping[int, float]  # round -> validation score of the models after it; infinite or nan where diverged
    gradients: float  # gradients of single samples that all clients have computed
    stopped: bool = False  # by halving, before its last round
    failed: str = ""  # why it counts as the worst


@dataclass(frozen=True)
class Trial:
    """A trial that is to be made, or was."""

    number: int
    values: Mapping[str, Value]  # of its space; what is missing keeps the default
    outcome: Outcome | None = None

    @property
    def score(self) -> float | None:
        """The validation score of its last models; None where it did not come to its last round."""
        out = self.outcome
        return None if out is None or out.stopped or out.failed else list(out.curve.values())[-1]


@dataclass
class Study:
    """The search of one method."""

    folder: Path
    space: Space
    sampler: str  # tpe, random, grid or halving
    trials: int  # that a grid has at most
    seed: int
    sign: int = 1  # 1: higher scores are better; -1: lower ones
    _study: optuna.Study = field(init=False)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = f"sqlite:///{self.folder / FILE}"
        with _quiet():
            self._study = optuna.create_study(
                study_name=self.folder.name,
                storage=storage,
                direction="maximize" if self.sign > 0 else "minimize",
                load_if_exists=True,
            )

    def size(self, choose: Callable[[], int]) -> int:
        """Trials of a batch: chosen once, whatever fits when the search is continued."""
        if SIZE not in self._study.user_attrs:
            self._study.set_user_attr(SIZE, choose())
        return int(self._study.user_attrs[SIZE])

    def batch(self, size: int) -> list[Trial]:
        """The next trials: those of a batch that was interrupted, and new ones up to `size`.

        The first trial of all is the method as it is by default.
        """
        self._tell_known()
        found = [_as_trial(each) for each in self._study.get_trials(states=[TrialState.RUNNING])]
        for number in range(len(self._study.get_trials(deepcopy=False)), self._count_after(found, size)):
            found.append(self._ask(number))
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep what the trials of a batch gave: all at once, so that a kill leaves the whole batch or nothing of it."""
        done = {str(each.number): asdict(each.outcome) for each in trials if each.outcome is not None}
        self._study.set_user_attr(DONE, {**self._done(), **done})
        self._tell_known()

    def finished(self) -> list[Trial]:
        """All trials that have ended, by number."""
        done = self._done()
        trials = (_as_trial(each) for each in self._study.get_trials(deepcopy=False))
        return [
            Trial(each.number, each.values, _outcome(done[str(each.number)]))
            for each in trials
            if str(each.number) in done
        ]

    def importance(self) -> dict[str, float]:
        """Of every hyper-parameter for the validation score, the sum being 1; {} where trials do not tell."""
        with _quiet():
            try:
                return dict(optuna.importance.get_param_importances(self._study))
            except (ValueError, RuntimeError):  # fewer than two trials that ended, or all with one score
                return {}

    def _count_after(self, waiting: Sequence[Trial], size: int) -> int:
        return len(self._study.get_trials(deepcopy=False)) - len(waiting) + size

    def _done(self) -> dict[str, Any]:
        return dict(self._study.user_attrs.get(DONE, {}))

    def _ask(self, number: int) -> Trial:
        with _quiet():
            self._study.sampler = self._sampler(number)
            if number:
                asked = self._study.ask({each.key: distribution(each) for each in self.space})
            else:
                usual = {each.key: each.default for each in self.space if each.default is not None}
                self._study.enqueue_trial(usual)
                asked = self._study.ask({each.key: distribution(each) for each in self.space if each.key in usual})
        return Trial(asked.number, asked.params)

    def _sampler(self, number: int) -> BaseSampler:
        seed = _seed(self.seed, self.folder.name, number)
        if self.sampler == "tpe":
            return TPESampler(seed=seed, constant_liar=True)
        if self.sampler == "grid":
            return _Grid(grid(self.space, max(1, self.trials - 1)), seed=_seed(self.seed, self.folder.name, 0))
        return RandomSampler(seed=seed)

    def _tell_known(self) -> None:
        """Tell Optuna what is known of trials that it has for running."""
        done = self._done()
        for each in self._study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if str(each.number) in done:
                outcome = _outcome(done[str(each.number)])
                trial = optuna.trial.Trial(self._study, each._trial_id)
                for round, score in outcome.curve.items():
                    trial.report(score, round)
                with _quiet():
                    if outcome.stopped:
                        self._study.tell(each.number, state=TrialState.PRUNED)
                    else:
                        worst = 0.0 if self.sign > 0 else math.inf
                        self._study.tell(each.number, worst if outcome.failed else list(outcome.curve.values())[-1])


class _Grid(GridSampler):
    """A grid that does not stop a study when it is exhausted: its trials are asked for, and counted, by us."""

    def after_trial(self, *_: Any) -> None:
        """Nothing."""


def distribution(dimension: Dimension) -> BaseDistribution:
    """A dimension as Optuna has it."""
    if dimension.tried.choices:
        return CategoricalDistribution(dimension.tried.choices)
    low, high = dimension.ends
    if dimension.whole:
        return IntDistribution(int(low), int(high), log=dimension.tried.log)
    return FloatDistribution(low, high, log=dimension.tried.log)


def _as_trial(found: optuna.trial.FrozenTrial) -> Trial:
    return Trial(found.number, dict(found.params))


def _outcome(stored: Mapping[str, Any]) -> Outcome:
    curve = {int(round): float(score) for round, score in stored["curve"].items()}
    return Outcome(curve, stored["gradients"], stored["stopped"], stored["failed"])


def _seed(*parts: object) -> int:
    """Of a sampler, from the seed of the search, the method and the number of the trial."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's warnings that what we use of it may change: its version is pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
