"""Runs grouped by setting, and within a setting by method."""

import dataclasses
import functools
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddwa.algorithms import title_of
from feddwa.config import WHERE_AND_HOW, RunConfig, options_of
from feddwa.data.options import DataOptions
from feddwa.errors import InputError
from feddwa.plugins import label
from feddwa.results.measure import Measure
from feddwa.results.record import Record
from feddwa.results.runs import busy

# Options shared by the runs in one figure, besides the partition's: data, reading options and division.
SETTING = (
    "dataset",
    *(field.name for field in dataclasses.fields(DataOptions)),
    "partition",
    "clients",
    "holdout_clients",
)


@dataclass(frozen=True)
class Method:
    """The runs of one method that differ only in their seed."""

    name: str
    runs: list[Record]

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.runs[0].config.algorithm

    @property
    def measure(self) -> Measure:
        """The measure by which its models are compared."""
        return self.runs[0].measure

    @property
    def rank(self) -> float:
        """Sort key of methods, larger is better: `last`, negated if lower is better."""
        return self.measure.sign * self.last if np.isfinite(self.last) else -np.inf

    @property
    def last(self) -> float:
        """By `measure`, after the last round, mean over clients and seeds."""
        return float(np.mean([run.last for run in self.runs]))

    @property
    def curve(self) -> np.ndarray:
        """(R,) per round, mean over clients and the seeds that have reached it; nan if none has."""
        return over_runs(np.nanmean, [run.curve for run in self.runs])

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """(R,) each: the lowest and the highest seed."""
        curves = [run.curve for run in self.runs]
        return over_runs(np.nanmin, curves), over_runs(np.nanmax, curves)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Metric -> (R,) per round, mean over clients and seeds; metrics of all seeds only."""
        names = [name for name in self.runs[0].metrics if all(name in run.metrics for run in self.runs)]
        return {name: over_runs(np.nanmean, [run.metrics[name] for run in self.runs]) for name in names}

    @property
    def by_class(self) -> dict[str, np.ndarray]:
        """Metric per class -> (C,) after the last round, mean over clients and seeds; metrics of all seeds only."""
        names = [name for name in self.runs[0].by_class if all(name in run.by_class for run in self.runs)]
        return {name: over_runs(np.nanmean, [run.by_class[name][-1] for run in self.runs]) for name in names}

    @property
    def traffic(self) -> float:
        """Bytes up and down of a participating client in a round, mean over rounds and seeds."""
        return float(np.mean([run.traffic for run in self.runs]))

    def total(self, cost: str) -> float:
        """Total cost of all clients over all rounds, mean over seeds: "bytes", "flops" or "seconds"."""
        return float(np.mean([run.spent(cost)[-1] for run in self.runs]))

    @property
    def finished(self) -> bool:
        """Whether every seed has completed all its rounds."""
        return all(run.finished for run in self.runs)

    @property
    def standing(self) -> str:
        """Progress, if unfinished: "stopped after round 30 of 200"; otherwise empty."""
        told = [(run.seed, standing(run)) for run in self.runs if not run.finished]
        return ", ".join(words if len(self.runs) == 1 else f"seed {seed} {words}" for seed, words in told)

    @property
    def title(self) -> str:
        """Its name, with the progress if unfinished."""
        return self.name if self.finished else f"{self.name} ({self.standing})"

    @property
    def sound(self) -> bool:
        """Whether no seed has a failure that makes its accuracy meaningless."""
        return all(run.sound for run in self.runs)


def standing(run: Record) -> str:
    """A run's state: "finished", "running, after round 30 of 200", or "stopped after round 30 of 200"."""
    if run.finished:
        return "finished"
    return f"{'running,' if busy(run.path) else 'stopped'} after round {int(run.rounds[-1])} of {run.config.rounds}"


def on_a_par(one: Record, two: Record) -> bool:
    """Whether the last rounds of two runs are comparable: both are finished, or at the same round."""
    level = one.rounds[-1] == two.rounds[-1] or (one.finished and two.finished)
    return bool(level) and one.measure is two.measure


def over_runs(reduce: Callable[..., np.ndarray], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of runs of different lengths, padded with nan and reduced over the runs."""
    longest = max(map(len, arrays))
    whole = np.full((len(arrays), longest, *arrays[0].shape[1:]), np.nan)
    for place, array in enumerate(arrays):
        whole[place, : len(array)] = array
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rounds that no seed has reached
        return reduce(whole, axis=0)


def by_setting(found: Iterable[Record]) -> dict[str, list[Record]]:
    """Runs grouped by their setting (data and reading options, partition with its options, clients), by name.

    Settings with equal names, such as two files of one name, get full paths and all options.
    """
    grouped: dict[object, list[Record]] = {}
    for record in found:
        grouped.setdefault(_setting(record.config), []).append(record)
    names = Counter(setting_name(own[0].config) for own in grouped.values())
    return {setting_name(own[0].config, whole=names[setting_name(own[0].config)] > 1): own for own in grouped.values()}


def _setting(config: RunConfig) -> tuple[object, ...]:
    """The common settings of a group of runs."""
    return *(getattr(config, name) for name in SETTING), *_division(config)


def setting_name(config: RunConfig, whole: bool = False) -> str:
    """ "digits, dirichlet alpha=0.1, 20 clients": partition options only if they are not the dataset's defaults.

    whole: include the path of own data and the reading options.
    """
    usual = _usual(config.dataset, config.partition)
    options = [entry.partition(".")[2] for entry in _division(config) if entry not in usual]
    partition = " ".join([label(config.partition or ""), *options])
    data = label(config.dataset) if whole else Path(label(config.dataset)).name
    how = [f"{name}={value}" for name, value in config.given().items()] if whole else []
    return f"{' '.join([data, *how])}, {partition}, {clients_in_words(config)}"


def clients_in_words(config: RunConfig) -> str:
    """ "20 clients", "20 clients, 4 held out"."""
    apart = (config.clients or 0) - (config.members or 0)
    return f"{config.clients} clients{f', {apart} held out' if apart else ''}"


@functools.lru_cache(maxsize=256)
def _usual(dataset: str, partition: str | None) -> tuple[str, ...]:
    """The default options, including the partition's."""
    return RunConfig(dataset=dataset, partition=partition).resolved().param


def _division(config: RunConfig) -> list[str]:
    """The options of the partition, as in `param`."""
    return [entry for entry in config.param if entry.startswith(f"{label(config.partition or '')}.")]


def by_method(found: Sequence[Record]) -> list[Method]:
    """Runs of one setting grouped by method, best first; then the unfinished, then the failed.

    If two variants of one algorithm differ in an option, it is part of the name, unless it is the default.
    """
    _check_one_setting(found)
    grouped: dict[tuple[str, ...], list[Record]] = {}
    for record in found:
        grouped.setdefault((record.config.algorithm, *_options(record.config)), []).append(record)
    methods = []
    for key, own in grouped.items():
        others = [set(other) for other in grouped if other[0] == key[0] and other != key]
        shared = set.intersection(set(key), *others) if others else set(key)
        usual = _defaults(own[0].config) if others else []
        special = [option for option in key[1:] if option not in shared and option not in usual]
        methods.append(Method(" ".join([_title(key[0]), *special]), own))
    for method in methods:
        _check_seeds(method)
    return sorted(methods, key=lambda method: (not method.sound, not method.finished, -method.rank))


def _check_seeds(method: Method) -> None:
    seed, count = Counter(run.seed for run in method.runs).most_common(1)[0]
    if count > 1:
        twice = " and ".join(str(run.path) for run in method.runs if run.seed == seed)
        raise InputError(f"{twice}: {count} runs of {method.name} with seed {seed}; give one of them")


def _options(config: RunConfig) -> list[str]:
    """All options in which two methods may differ, as on the command line."""
    plain = options_of(config, leaving_out=(*WHERE_AND_HOW, *SETTING, "algorithm", "seed", "param"))
    own, division = f"{label(config.algorithm)}.", _division(config)
    entries = [entry.removeprefix(own) for entry in config.param if entry not in division]
    return [*(f"{name}={value}" for name, value in plain.items()), *entries]


def _defaults(config: RunConfig) -> list[str]:
    """The options of a run of the same algorithm on the same data with defaults otherwise."""
    named = options_of(config, leaving_out={*RunConfig.__dataclass_fields__} - {"algorithm", *SETTING})
    return [*_options(RunConfig(**named).resolved()), *config.usual_parameters()]


def _title(algorithm: str) -> str:
    """The algorithm's display name; also for runs whose code is not available."""
    try:
        return title_of(algorithm)
    except InputError:
        return label(algorithm)


def _check_one_setting(found: Sequence[Record]) -> None:
    for first, other in itertools.pairwise(found):
        both = [(name, getattr(first.config, name), getattr(other.config, name)) for name in SETTING]
        both.append(("param", " ".join(_division(first.config)), " ".join(_division(other.config))))
        for name, one, two in both:
            if one != two:
                what = f"{first.path} has {name} {one}, {other.path} has {two}"
                raise InputError(f"{what}; give runs of one setting, and another command for the others")
