"""Run directories read back: finished, half-finished or still running; what is damaged is named in one line."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from feddwa import records, runs, stored_weights
from feddwa.algorithms import title_of
from feddwa.config import RunConfig, from_toml
from feddwa.data.describe import Description
from feddwa.errors import InputError
from feddwa.findings import Finding, went_wrong
from feddwa.plugins import label
from feddwa.runs import CLIENTS, CONFIG, FEDERATION, METRICS, PARTITION

SETTING = ("dataset", "partition", "clients")  # what runs in one picture have to share
NOT_THE_METHOD = ("algorithm", "seed", "out", "device", "backend", "chunk", "tensorboard", "checkpoint_every")


@dataclass(frozen=True)
class Weights:
    """P of one round."""

    round: int
    cohort: np.ndarray  # (m,) the clients' numbers
    matrix: np.ndarray  # (m, m), row i has the weights of client cohort[i]


class WeightsOnDisk(Sequence[Weights]):
    """P of every round of a run, in the order of rounds; a slice is a list of them."""

    def __init__(self, stored: stored_weights.StoredWeights, clients: int | None) -> None:
        self._stored, self._rounds, self._clients = stored, stored.rounds, clients

    def __len__(self) -> int:
        return len(self._rounds)

    @overload
    def __getitem__(self, index: int) -> Weights: ...

    @overload
    def __getitem__(self, index: slice) -> list[Weights]: ...

    def __getitem__(self, index: int | slice) -> Weights | list[Weights]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        found = Weights(self._rounds[index], *self._stored[index])
        records.check_weights(self._stored.path, found.round, found.cohort, found.matrix, self._clients)
        return found


@dataclass(frozen=True)
class Record:
    """What a run directory holds."""

    path: Path
    config: RunConfig
    lines: list[dict[str, Any]]  # of metrics.jsonl
    accuracy: np.ndarray  # (R, N) percent of every client before each line's round
    weights: Sequence[Weights]  # read from the disk when they are asked for
    partition: Description | None
    finished: bool
    lockstep: int = 1  # runs that were trained in lockstep and share their seconds

    @property
    def rounds(self) -> np.ndarray:
        """(R,) rounds that were finished when each line's accuracies were measured: 0, 1, ..."""
        return np.array([line["round"] - 1 for line in self.lines])

    @property
    def curve(self) -> np.ndarray:
        """(R,) percent, mean over all clients; of a federation over those that answered, nan where nobody did."""
        known = np.isfinite(self.accuracy)
        total, count = np.where(known, self.accuracy, 0).sum(axis=1), known.sum(axis=1)
        mean: np.ndarray = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
        return mean

    @property
    def last(self) -> float:
        """Percent after the last round whose models were evaluated, mean over clients."""
        curve = self.curve
        return float(curve[np.isfinite(curve)][-1])

    @property
    def seconds(self) -> float:
        """Of all rounds, evaluation included; of a stack of runs, this one's share."""
        return sum(sum(line["seconds"].values()) for line in self.lines if "seconds" in line) / self.lockstep

    @cached_property
    def findings(self) -> list[Finding]:
        """What went wrong, the most serious first."""
        if self.partition is None:
            return went_wrong(self.lines, finished=self.finished)
        return went_wrong(self.lines, self.partition.test_counts, self.finished, self.partition.client_name)

    @property
    def sound(self) -> bool:
        """Whether its accuracies say anything about its method."""
        return all(finding.level != "error" for finding in self.findings)

    def total(self, cost: str) -> float:
        """Bytes or FLOPs of all participants in all rounds: "bytes_up", "bytes_down" or "flops"."""
        return float(sum(line[cost] * line["participants"] for line in self.lines if cost in line))


@dataclass(frozen=True)
class Method:
    """The runs of one method that differ by nothing but their seed."""

    name: str
    runs: list[Record]

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.runs[0].config.algorithm

    @property
    def last(self) -> float:
        """Percent after the last round, mean over clients and seeds."""
        return float(np.mean([run.last for run in self.runs]))

    @property
    def sound(self) -> bool:
        """Whether nothing went wrong, in any seed, that makes its accuracy meaningless."""
        return all(run.sound for run in self.runs)


def read(paths: Iterable[str | Path]) -> list[Record]:
    """The runs at these paths; a directory of runs stands for all runs inside it that have finished a round."""
    found: dict[Path, Record] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise InputError(f"{path}: no such directory; must be a run directory, or one with runs inside")
        named = (path / CONFIG).exists()
        inside = [path] if named else sorted(file.parent for file in path.rglob(CONFIG))
        if not inside:
            raise InputError(f"{path}: no run in it; must be a directory that `feddwa run` or `compare` has written")
        for each in inside:
            record = read_run(each)
            if not record.lines and named:
                raise InputError(f"{each}: no round has been finished yet; wait for one")
            if record.lines:
                found[each.resolve()] = record
    if not found:
        raise InputError("no run has finished a round yet; wait for one")
    return list(found.values())


def read_run(path: Path) -> Record:
    """One run directory, whatever there is of it."""
    config, summary = _config(path), runs.read_summary(path)
    lines = records.check_metrics(path / METRICS, records.read_lines(path / METRICS))
    clients = records.check_clients(path / CLIENTS, records.read_lines(path / CLIENTS))
    if summary is not None:
        for name, found in ((METRICS, lines), (CLIENTS, clients)):
            if len(found) != (config.rounds or 0) + 1:
                raise records.damaged(path / name, f"{len(found)} lines of {config.rounds} rounds and the final models")
    count = min(len(lines), len(clients))  # a run that was stopped may have written one and not the other
    accuracy = _accuracy(path, clients[:count], config.clients or 0)
    partition, total = records.read_partition(path / PARTITION), accuracy.shape[1]
    if partition is not None and count and len(partition.counts) != total:
        raise records.damaged(path / PARTITION, f"it has {len(partition.counts)} clients, {CLIENTS} has {total}")
    weights = _weights(path, total, count)
    lockstep = (summary or {}).get("lockstep", 1)
    return Record(path, config, lines[:count], accuracy, weights, partition, summary is not None, lockstep)


def _config(path: Path) -> RunConfig:
    """The configuration of a run, checked as `feddwa run` would check it, but for what this machine lacks."""
    file = path / CONFIG
    try:
        given = from_toml(file, RunConfig)
        checked = dataclasses.replace(given, tensorboard=False).resolved()
        return dataclasses.replace(checked, tensorboard=given.tensorboard)
    except InputError as error:
        known = str(error).removeprefix("--config ")
        raise InputError(known if known.startswith(str(file)) else f"{file}: {error}") from None


def _accuracy(path: Path, clients: Sequence[Sequence[float | None]], expected: int) -> np.ndarray:
    """(R, N) percent of every client, nan where it has none: a federation's may come late, or not answer."""
    if not clients:
        return np.zeros((0, 0))
    total = max(map(len, clients))
    if not (path / FEDERATION).exists() and {len(line) for line in clients} != {expected}:
        raise records.damaged(path / CLIENTS, f"a line is not one of {expected} clients, which {CONFIG} has")
    whole = [[*line, *[None] * (total - len(line))] for line in clients]
    accuracy = np.array(whole, dtype=float).reshape(len(clients), total)
    if not np.isfinite(accuracy).any():
        raise InputError(f"{path}: its targets are not classes, so there is no accuracy to draw")
    return accuracy


def _weights(path: Path, clients: int, lines: int) -> Sequence[Weights]:
    """P of the rounds that have a line; a run that is under way may have written more."""
    stored = stored_weights.read(path)
    known = sum(1 <= number <= lines for number in stored.rounds)
    return WeightsOnDisk(stored[:known], clients or None) if known else []


def by_method(found: Sequence[Record]) -> list[Method]:
    """Runs grouped by method, best first, those that went wrong behind all others.

    Where two of one algorithm differ by an option, the option is in the name.
    """
    _check_one_setting(found)
    grouped: dict[tuple[str, ...], list[Record]] = {}
    for record in found:
        grouped.setdefault((record.config.algorithm, *_options(record.config)), []).append(record)
    often = Counter(key[0] for key in grouped)
    methods = []
    for key, own in grouped.items():
        others = [set(other) for other in grouped if other[0] == key[0] and other != key]
        special = [option for option in key[1:] if not all(option in other for other in others)]
        title = _title(key[0])
        methods.append(Method(" ".join([title, *special]) if often[key[0]] > 1 else title, own))
    for method in methods:
        seeds = Counter(run.config.seed for run in method.runs)
        seed, count = seeds.most_common(1)[0]
        if count > 1:
            twice = " and ".join(str(run.path) for run in method.runs if run.config.seed == seed)
            raise InputError(f"{twice}: {count} runs of {method.name} with seed {seed}; give one of them")
    return sorted(methods, key=lambda method: (not method.sound, -method.last))


def _options(config: RunConfig) -> list[str]:
    """Everything that two methods may differ by, as it would be written on the command line."""
    fields = [name for name in RunConfig.__dataclass_fields__ if name not in (*NOT_THE_METHOD, *SETTING, "param")]
    plain = [f"{name}={getattr(config, name)}" for name in fields]
    return plain + [entry.removeprefix(f"{label(config.algorithm)}.") for entry in config.param]


def _title(algorithm: str) -> str:
    """How the algorithm is called; runs of code that is not at hand can be read, too."""
    try:
        return title_of(algorithm)
    except InputError:
        return label(algorithm)


def _check_one_setting(found: Sequence[Record]) -> None:
    for first, other in itertools.pairwise(found):
        for field in SETTING:
            one, two = getattr(first.config, field), getattr(other.config, field)
            if one != two:
                what = f"{first.path} has {field} {one}, {other.path} has {two}"
                raise InputError(f"{what}; give runs of one setting, and another command for the others")
