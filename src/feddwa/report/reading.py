"""Run directories read back: finished, half-finished or still running; what is damaged is named in one line."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from feddwa import stored_weights
from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig, from_toml
from feddwa.data.describe import Description, from_json
from feddwa.errors import InputError

SETTING = ("dataset", "partition", "clients")  # what runs in one picture have to share
NOT_THE_METHOD = ("algorithm", "seed", "out", "device", "backend", "chunk", "tensorboard", "checkpoint_every")


@dataclass(frozen=True)
class Weights:
    """P of one round."""

    round: int
    cohort: np.ndarray  # (m,) the clients' numbers
    matrix: np.ndarray  # (m, m), row i = who client cohort[i] listens to


class WeightsOnDisk(Sequence[Weights]):
    """P of every round of a run, in the order of rounds; a slice is a list of them."""

    def __init__(self, stored: stored_weights.StoredWeights) -> None:
        self._stored, self._rounds = stored, stored.rounds

    def __len__(self) -> int:
        return len(self._rounds)

    @overload
    def __getitem__(self, index: int) -> Weights: ...

    @overload
    def __getitem__(self, index: slice) -> list[Weights]: ...

    def __getitem__(self, index: int | slice) -> Weights | list[Weights]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        return Weights(self._rounds[index], *self._stored[index])


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
    together: int = 1  # runs that were trained as one stack and share their seconds

    @property
    def rounds(self) -> np.ndarray:
        """(R,) rounds that were finished when each line's accuracies were measured: 0, 1, ..."""
        return np.array([line["round"] - 1 for line in self.lines])

    @property
    def curve(self) -> np.ndarray:
        """(R,) percent, mean over all clients."""
        mean: np.ndarray = self.accuracy.mean(axis=1)
        return mean

    @property
    def seconds(self) -> float:
        """Of all rounds, evaluation included; of a stack of runs, this one's share."""
        return sum(sum(line["seconds"].values()) for line in self.lines if "seconds" in line) / self.together

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
        return float(np.mean([run.curve[-1] for run in self.runs]))


def read(paths: Iterable[str | Path]) -> list[Record]:
    """The runs at these paths; a directory of runs stands for all runs inside it that have finished a round."""
    found: dict[Path, Record] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise InputError(f"{path}: no such directory; must be a run directory, or one with runs inside")
        named = (path / "config.toml").exists()
        inside = [path] if named else sorted(file.parent for file in path.rglob("config.toml"))
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
    config = from_toml(path / "config.toml", RunConfig)
    lines, clients = _json_lines(path / "metrics.jsonl"), _json_lines(path / "clients.jsonl")
    count = min(len(lines), len(clients))  # a run that was stopped may have written one and not the other
    lines = lines[:count]
    try:
        accuracy = np.array([line["before"] for line in clients[:count]], dtype=float).reshape(
            count, -1 if count else 0
        )
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path / 'clients.jsonl'}: is damaged: a line lacks some client's accuracy") from None
    if count and not np.isfinite(accuracy).any():
        raise InputError(f"{path}: its targets are not classes, so there is no accuracy to draw")
    summary = _summary(path)
    together = (summary or {}).get("together", 1)
    return Record(path, config, lines, accuracy, _weights(path), _partition(path), summary is not None, together)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last one that was cut off in writing does not count."""
    if not path.exists():
        return []
    texts, lines = path.read_text(encoding="utf-8", errors="replace").split("\n"), []
    for number, text in enumerate(texts[:-1], 1):  # what stands behind the last line's end is a line half-written
        try:
            lines.append(json.loads(text))
        except ValueError:
            raise InputError(f"{path}: is damaged: line {number} is not JSON") from None
    return lines


def _weights(path: Path) -> Sequence[Weights]:
    stored = stored_weights.read(path)
    return WeightsOnDisk(stored) if len(stored) else []


def _summary(path: Path) -> dict[str, Any] | None:
    """What stands in summary.json; None where the run has not come to its end."""
    file = path / "summary.json"
    try:
        found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        return found
    except ValueError:
        raise InputError(f"{file}: is damaged: not JSON") from None


def _partition(path: Path) -> Description | None:
    file = path / "partition.json"
    if not file.exists():
        return None
    try:
        return from_json(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file}: is damaged: not the description of a partition") from None


def by_method(records: Sequence[Record]) -> list[Method]:
    """Runs grouped by method, best first; where two of one algorithm differ by an option, the option is in the name."""
    _check_one_setting(records)
    grouped: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        grouped.setdefault((record.config.algorithm, *_options(record.config)), []).append(record)
    often = Counter(key[0] for key in grouped)
    methods = []
    for key, runs in grouped.items():
        others = [set(other) for other in grouped if other[0] == key[0] and other != key]
        special = [option for option in key[1:] if not all(option in other for other in others)]
        title = ALGORITHMS[key[0]].title if key[0] in ALGORITHMS else key[0]
        methods.append(Method(" ".join([title, *special]) if often[key[0]] > 1 else title, runs))
    for method in methods:
        seeds = Counter(run.config.seed for run in method.runs)
        seed, count = seeds.most_common(1)[0]
        if count > 1:
            twice = " and ".join(str(run.path) for run in method.runs if run.config.seed == seed)
            raise InputError(f"{twice}: {count} runs of {method.name} with seed {seed}; give one of them")
    return sorted(methods, key=lambda method: -method.last)


def _options(config: RunConfig) -> list[str]:
    """Everything that two methods may differ by, as it would be written on the command line."""
    fields = [name for name in RunConfig.__dataclass_fields__ if name not in (*NOT_THE_METHOD, *SETTING, "param")]
    plain = [f"{name}={getattr(config, name)}" for name in fields]
    return plain + [entry.removeprefix(f"{config.algorithm}.") for entry in config.param]


def _check_one_setting(records: Sequence[Record]) -> None:
    for first, other in itertools.pairwise(records):
        for field in SETTING:
            one, two = getattr(first.config, field), getattr(other.config, field)
            if one != two:
                what = f"{first.path} has {field} {one}, {other.path} has {two}"
                raise InputError(f"{what}; give runs of one setting, and another command for the others")
