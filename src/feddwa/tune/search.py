"""One method: searched on validation data within a budget, then run on fresh seeds and tested once.

    METHOD/trials.db     Optuna's study
    METHOD/search.json   the finished search: space, trials, the winner, importance
    METHOD/best.toml     the winner's configuration, for `feddwa run --config`
    METHOD/default/seed-S, METHOD/tuned/seed-S   the runs on fresh seeds

The runs on fresh seeds train on all training data, including the share that the search held out.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddwa.build import make_engine
from feddwa.config import RunConfig
from feddwa.config_file import to_toml
from feddwa.data.task import Task
from feddwa.errors import InputError
from feddwa.experiment import run_tasks
from feddwa.results import runs
from feddwa.results.measure import Measure
from feddwa.storage import write_whole
from feddwa.tune import trials
from feddwa.tune.space import FOUND, Value, applied, space_of
from feddwa.tune.study import Study, Trial

BEST, DEFAULT, TUNED = "best.toml", "default", "tuned"
TPE_BATCHES = 3  # batches of TPE's trials, so that it can learn from two of them
OPEN_BATCH = 10  # trials trained together if only their gradients are bounded
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Budget:
    """The budget of a search: the same for all methods."""

    sampler: str = "tpe"
    trials: int | None = 30
    gradients: float | None = None  # of single samples, in place of a number of trials
    space: tuple[str, ...] = ()  # entries of --space
    batch: int | None = None  # trials trained together; None: what fits, divided for TPE

    @property
    def usual_batch(self) -> int:
        """Number of trials trained together if they fit."""
        if self.trials is None:
            return OPEN_BATCH
        return math.ceil(self.trials / TPE_BATCHES) if self.sampler == "tpe" else self.trials

    def due(self, done: Sequence[Trial], size: int) -> int:
        """Number of next trials, at most `size`; 0 once the budget is spent."""
        if self.gradients is None:
            return min(size, (self.trials or 0) - len(done))
        spent = [each.outcome.gradients for each in done if each.outcome is not None]
        if not spent:
            return 1  # the cost of a trial is not known yet
        return min(size, max(0, math.floor((self.gradients - sum(spent)) / (sum(spent) / len(spent)))))


@dataclass(frozen=True)
class Search:
    """The search of one method."""

    config: RunConfig  # completed: the method with its defaults; `seed` and `validation` are the search's
    folder: Path
    budget: Budget


def run_search(search: Search, task: Task, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Run the remaining trials and write the result; a finished search is read back."""
    if (search.folder / FOUND).is_file():
        return read(search.folder)
    begun, config, budget = time.perf_counter(), search.config, search.budget
    engine = make_engine(config, task)
    measure, space = trials.measure_of(engine), space_of(config, budget.space)
    search.folder.mkdir(parents=True, exist_ok=True)
    study = Study(search.folder, space, budget.sampler, budget.trials or OPEN_BATCH, config.seed, measure.sign)
    size = study.size(lambda: trials.batch_that_fits(engine, budget.batch or budget.usual_batch))
    rungs = trials.rungs_of(budget.sampler, config.rounds or 1)
    while count := budget.due(study.finished(), size):
        batch = study.batch(count)
        configs = [applied(config, each.values).resolved() for each in batch]
        default = [place for place, each in enumerate(batch) if each.number == 0]
        outcomes = trials.train(configs, task, rungs, protected=default)
        study.tell([Trial(each.number, each.values, out) for each, out in zip(batch, outcomes, strict=True)])
        tell(_progress(search.folder.name, study.finished(), measure))
    done = study.finished()
    best = best_of(done, measure.sign)
    if best is None:
        why = next(each.outcome.failed for each in done if each.outcome)
        raise InputError(f"{search.folder.name}: no trial ended well ({why}); give a --space of smaller rates")
    content = {
        "algorithm": config.algorithm,
        "measure": measure.name,
        "sampler": budget.sampler,
        "space": {each.key: str(each.tried) for each in space},
        "trials": [{"number": own.number, "values": own.values, **vars(own.outcome)} for own in done],
        "best": {"number": best.number, "values": best.values, "validation": best.score},
        "default": {"validation": next((each.score for each in done if each.number == 0), None)},
        "importance": study.importance(),
        "seconds": time.perf_counter() - begun,
    }
    write_whole(search.folder / BEST, to_toml(tuned_config(config, best.values)))
    write_whole(search.folder / FOUND, json.dumps(content, indent=1) + "\n")
    return content


def _progress(name: str, done: Sequence[Trial], measure: Measure) -> str:
    """Progress of a search, as text."""
    best = best_of(done, measure.sign)
    told = "none has ended well" if best is None else f"best {measure.text(best.score or 0.0)}"
    return f"{name}: {len(done)} trials, {told}"


def run_finals(config: RunConfig, folder: Path, tasks: dict[int, Task]) -> None:
    """Run the method with its defaults and the winner on fresh seeds; finished runs are kept."""
    found = read(folder)
    kinds = {TUNED: tuned_config(config, found["best"]["values"])}
    if found["best"]["number"]:  # otherwise the default has won, and runs once
        kinds[DEFAULT] = tuned_config(config, {})
    configs = [
        dataclasses.replace(own, seed=seed, out=str(folder / kind / f"seed-{seed}")).resolved()
        for kind, own in kinds.items()
        for seed in tasks
    ]
    begun = [each for each in configs if (Path(str(each.out)) / runs.CONFIG).is_file()]
    run_tasks(configs, [tasks[each.seed] for each in configs], begun=begun)


def tuned_config(config: RunConfig, values: Mapping[str, Value]) -> RunConfig:
    """A trial's configuration as a run."""
    return dataclasses.replace(applied(config, values), validation=0.0, out=None).resolved()


def best_of(done: Iterable[Trial], sign: int) -> Trial | None:
    """The trial with the best score; ties take the first."""
    scored = [each for each in done if each.score is not None and math.isfinite(each.score)]
    return max(scored, key=lambda each: (sign * (each.score or 0.0), -each.number), default=None)


def read(folder: Path) -> dict[str, Any]:
    """The result of a finished search."""
    try:
        content: dict[str, Any] = json.loads((folder / FOUND).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / FOUND}: cannot be read: {error}") from None
    return content
