"""A method's search as an Optuna study: an SQLite file that survives a kill, with an ask-and-tell interface.

The sampler of trial n is seeded by n. A trial therefore depends on the seed and on the results of earlier trials, not
on interruptions; an interrupted batch is repeated as a whole.
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
DONE = "outcomes"  # attribute of the study: outcomes of a batch, written before Optuna gets them
SIZE = "batch"  # attribute of the study


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    curve: Mapping[int, float]  # round -> validation score of the models after it; infinite or nan if diverged
    gradients: float  # gradients of single samples computed by all clients
    stopped: bool = False  # by halving, before its last round
    failed: str = ""  # reason why it counts as the worst


@dataclass(frozen=True)
class Trial:
    """A planned or finished trial."""

    number: int
    values: Mapping[str, Value]  # of its space; missing keys keep the default
    outcome: Outcome | None = None

    @property
    def score(self) -> float | None:
        """The validation score of its last models; None if it did not reach its last round."""
        out = self.outcome
        return None if out is None or out.stopped or out.failed else list(out.curve.values())[-1]


@dataclass
class Study:
    """The search of one method."""

    folder: Path
    space: Space
    sampler: str  # tpe, random, grid or halving
    trials: int  # largest size of a grid
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
        """Trials per batch: chosen once, and kept when the search is continued."""
        if SIZE not in self._study.user_attrs:
            self._study.set_user_attr(SIZE, choose())
        return int(self._study.user_attrs[SIZE])

    def batch(self, size: int) -> list[Trial]:
        """The next trials: those of an interrupted batch, and new ones up to `size`.

        The very first trial is the method with its defaults.
        """
        self._tell_known()
        found = [_as_trial(each) for each in self._study.get_trials(states=[TrialState.RUNNING])]
        for number in range(len(self._study.get_trials(deepcopy=False)), self._count_after(found, size)):
            found.append(self._ask(number))
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Store the outcomes of a batch atomically, so that a kill leaves the whole batch or nothing."""
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
        """Importance of every hyper-parameter for the validation score, with sum 1; {} if trials do not suffice."""
        with _quiet():
            try:
                return dict(optuna.importance.get_param_importances(self._study))
            except (ValueError, RuntimeError):  # fewer than two finished trials, or all with one score
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
        """Tell Optuna the known outcomes of trials that it lists as running."""
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
    """A grid that does not stop an exhausted study: we ask for and count its trials."""

    def after_trial(self, *_: Any) -> None:
        """Nothing."""


def distribution(dimension: Dimension) -> BaseDistribution:
    """A dimension as an Optuna distribution."""
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
    """A sampler's seed, from the seed of the search, the method and the number of the trial."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Optuna's warnings about experimental features: its version is pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
