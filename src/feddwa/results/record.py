"""Read runs back from run directories (finished, unfinished, running) and from files of published results.

Damage gives a one-line error.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.data.describe import Description
from feddwa.errors import InputError
from feddwa.params import fields_of, typed
from feddwa.results import checks, findings, runs, weights
from feddwa.results.content import Content, expand, from_thousandths
from feddwa.results.findings import Finding
from feddwa.results.measure import ACCURACY, LOSS, Measure
from feddwa.results.runs import CLIENTS, CONFIG, FEDERATION, METRICS, PARTITION
from feddwa.results.summary import metric_series, seconds_of, series
from feddwa.results.weights import Weights

PUBLISHED = ".jsonl"  # suffix of files of published results


@dataclass(frozen=True)
class Record:
    """A run. For a published one, costs are the rounds' mean, and single clients are known at the end alone."""

    path: Path  # of the run directory, or of the file of published results
    config: RunConfig
    lines: list[dict[str, Any]]  # of metrics.jsonl
    scores: np.ndarray  # (R, N) by `measure`, of every client before each line's round; nan if unknown
    weights: Sequence[Weights]  # read from disk on access
    partition: Description | None
    finished: bool
    content: Content = field(default_factory=dict)  # of record.json; empty if the run is not finished

    @property
    def seed(self) -> int:
        """The seed."""
        return self.config.seed

    @property
    def rounds(self) -> np.ndarray:
        """(R,) number of finished rounds when each line's accuracies were measured: 0, 1, ..."""
        return np.array([line["round"] - 1 for line in self.lines])

    @cached_property
    def series(self) -> Mapping[str, np.ndarray]:
        """Percent per round, nan if missing: "before.all", "after.participants_weighted", ..."""
        return {name: np.array(values, dtype=float) for name, values in series(self.lines).items()}

    @cached_property
    def measure(self) -> Measure:
        """The measure of its models: accuracy, or the loss if targets are not classes."""
        return ACCURACY if np.isfinite(self.series["before.all"]).any() else LOSS

    @property
    def curve(self) -> np.ndarray:
        """(R,) by `measure`, mean over all clients; in a federation over those that replied, nan if none did."""
        if self.measure is ACCURACY:
            return self.series["before.all"]
        return np.array([line.get("loss_before") for line in self.lines], dtype=float)

    @property
    def last(self) -> float:
        """By `measure`, after the last round with an evaluation, mean over clients."""
        return float([np.nan, *self.curve[np.isfinite(self.curve)]][-1])

    @property
    def best(self) -> tuple[float, int]:
        """The best value, mean over clients, and the round after which it was reached."""
        known = np.where(np.isfinite(self.curve), self.measure.sign * self.curve, -np.inf)
        return float(self.curve[known.argmax()]), int(self.rounds[known.argmax()])

    @cached_property
    def metrics(self) -> Mapping[str, np.ndarray]:
        """Metric -> (R,) before each line's round, mean over clients; nan if undefined.

        Includes the measure on held-out training data and on all clients' test data, if measured. Per-class metrics are
        in `by_class`.
        """
        known = metric_series(self.lines).items()
        found = {name: np.array(own["before"], dtype=float) for name, own in known if " " not in name}
        if "validation" in self.lines[0]:
            losses = np.array([line.get("loss_validation") for line in self.lines], dtype=float)
            own = self.series["validation.all"] if self.measure is ACCURACY else losses
            found[f"validation {self.measure.name}"] = own
        if "central" in self.lines[0]:
            losses = np.array([line.get("loss_central") for line in self.lines], dtype=float)
            found[f"central {self.measure.name}"] = self.series["central.all"] if self.measure is ACCURACY else losses
        if "triggered" in self.lines[0]:
            found["backdoor success"] = self.series["triggered.all"]
        return found

    @cached_property
    def by_class(self) -> Mapping[str, np.ndarray]:
        """Metric per class -> (R, C) before each line's round, mean over the clients that have samples of the class."""
        found: dict[str, list[list[float | None]]] = {}
        for name, own in metric_series(self.lines).items():
            metric, space, _ = name.partition(" ")
            if space:
                found.setdefault(metric, []).append(own["before"])
        return {metric: np.array(classes, dtype=float).T for metric, classes in found.items()}

    @property
    def final(self) -> np.ndarray:
        """(N,) by `measure`, of every client in the last round with an evaluation; nan if unknown."""
        rows = np.flatnonzero(np.isfinite(self.scores).any(axis=1))
        final: np.ndarray = self.scores[rows[-1] if len(rows) else -1]
        return final

    @cached_property
    def newcomers(self) -> Mapping[str, np.ndarray]:
        """Epochs ("0", "1", "5"), and "alone" -> (h,) by `measure`, of held-out clients; {} if there are none."""
        found = self.content.get("newcomers", {}).get(self.measure.name, {})
        return {when: np.array(values, dtype=float) for when, values in found.items()}

    @property
    def lockstep(self) -> int:
        """Number of runs trained in lockstep, which share the seconds of the lines."""
        return int(self.content.get("summary", {}).get("lockstep", 1))

    @property
    def seconds(self) -> float:
        """Seconds of all rounds, including evaluation; of a stack of runs, this one's share."""
        return float(self.spent("seconds")[-1])

    @property
    def groups(self) -> np.ndarray | None:
        """(N,) the true group of each client, if known."""
        if self.partition is not None:
            return self.partition.groups
        groups = self.content.get("groups")
        return None if groups is None else np.array(groups)

    @cached_property
    def findings(self) -> list[Finding]:
        """Failures and warnings, the most serious first."""
        if "loss_before" in self.lines[0]:
            return findings.of_run(self.lines, self.partition, self.finished, self.content.get("stopped"))
        return [Finding(level, text) for level, text in self.content.get("findings", ())]

    @property
    def sound(self) -> bool:
        """Whether its accuracies are meaningful."""
        return all(finding.level != "error" for finding in self.findings)

    def class_name(self, number: int) -> str:
        """The data's name of a class, else its number."""
        return str(number) if self.partition is None else self.partition.class_names[number]

    def client_name(self, client: int) -> str:
        """The data's name of a client, else its number."""
        return str(client) if self.partition is None else self.partition.client_name(client)

    def spent(self, cost: str) -> np.ndarray:
        """(R,) total cost of all clients when each line was measured: "bytes", "flops" or "seconds"."""
        if cost not in self._spent:
            parts = ("bytes_up", "bytes_down") if cost == "bytes" else (cost,)
            rounds = [line for line in self.lines if "participants" in line]
            if cost == "seconds":
                each = np.array([seconds_of(line) for line in rounds]) / self.lockstep
            else:
                each = np.array([sum(line[part] for part in parts) * line["participants"] for line in rounds])
            self._spent[cost] = np.array([0.0, *np.cumsum(each)], dtype=float)[: len(self.lines)]
        return self._spent[cost]

    @cached_property
    def _spent(self) -> dict[str, np.ndarray]:
        """Cache of `spent`: tables need it repeatedly."""
        return {}

    @property
    def traffic(self) -> float:
        """Bytes up and down of a participating client in a round, mean over rounds."""
        rounds = [line for line in self.lines if "bytes_up" in line]
        return float(sum(line["bytes_up"] + line["bytes_down"] for line in rounds)) / max(len(rounds), 1)


def read(paths: Iterable[str | Path]) -> list[Record]:
    """The runs at these paths: run directories, directories with begun runs inside, files of published results."""
    found: dict[Path, list[Record]] = {}  # by directory or file: duplicates count once
    for path in map(Path, paths):
        for place, own in itertools.groupby(_at(path), key=lambda record: record.path.resolve()):
            found[place] = list(own)
    if not found:
        raise InputError("no run has finished a round yet; wait for one")
    return [record for own in found.values() for record in own]


def _at(path: Path) -> Iterator[Record]:
    """The runs at one path."""
    if path.suffix == PUBLISHED and path.is_file():
        yield from read_published(path)
        return
    if not path.is_dir():
        valid = f"a run directory, one with runs inside, or a file of results ({PUBLISHED})"
        raise InputError(f"{path}: no such directory; must be {valid}")
    named = (path / CONFIG).exists()
    inside = [path] if named else sorted(file.parent for file in path.rglob(CONFIG))
    if not inside:
        raise InputError(f"{path}: no run in it; must be a directory that `feddwa run` or `compare` has written")
    for each in inside:
        record = read_run(each)
        if not record.lines and named:
            raise InputError(f"{each}: no round has been finished yet; wait for one")
        if record.lines:
            yield record


def read_published(path: Path) -> Iterator[Record]:
    """The runs in a file of published results, one per line."""
    for number, content in enumerate(checks.read_lines(path, whole=True), 1):
        yield from_content(path, checks.check_record(path, content, f"line {number}"))


def from_content(path: Path, content: Content) -> Record:
    """A published record: its lines are built from its series; its weights are those of some rounds."""
    config = _from_json(path, content)
    clients = len(content["clients"])
    lines = expand(content, max(1, int(config.participation * clients + 1e-9)))
    scores = np.full((len(lines), clients), np.nan)
    scores[-1] = content["clients"]
    kept = [from_thousandths(int(number), rows) for number, rows in content.get("weights", {}).items()]
    return Record(path, config, lines, scores, sorted(kept, key=lambda each: each.round), None, True, content)


def _from_json(path: Path, content: Content) -> RunConfig:
    """The configuration of a record."""
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in content["config"].items()
        if name in RunConfig.__dataclass_fields__
    }
    try:
        seed = typed("seed", content["seed"], fields_of(RunConfig)["seed"][0])
        given = RunConfig(**{"defence": "none", **known, "seed": 0})  # the first results do not record defences
        return dataclasses.replace(_resolved(given), seed=seed)
    except (InputError, TypeError) as error:
        raise checks.damaged(path, f"{content['cell']}, seed {content['seed']}: {error}") from None


@functools.lru_cache(maxsize=1024)
def _resolved(config: RunConfig) -> RunConfig:
    """Cached for all seeds of a cell: a file has thousands of lines, and each takes some milliseconds."""
    return config.resolved()


def read_run(path: Path) -> Record:
    """One run directory, finished or not."""
    config, content = _config(path), runs.read_record(path)
    lines = checks.check_metrics(path / METRICS, checks.read_lines(path / METRICS))
    clients = checks.check_clients(path / CLIENTS, checks.read_lines(path / CLIENTS))
    if content is not None:
        for name, found in ((METRICS, lines), (CLIENTS, clients)):
            rounds = content.get("stopped", {}).get("round", config.rounds)
            if len(found) != rounds + 1:
                raise checks.damaged(path / name, f"{len(found)} lines of {rounds} rounds and the final models")
    count = min(len(lines), len(clients))  # a stopped run may have written only one of them
    scores = _scores(path, clients[:count], config.members or 0)
    partition, total = checks.read_partition(path / PARTITION), scores.shape[1]
    if partition is not None and count and len(partition.counts) != total:
        raise checks.damaged(path / PARTITION, f"it has {len(partition.counts)} clients, {CLIENTS} has {total}")
    stored = weights.read(path, total or None)
    known = sum(1 <= number <= count for number in stored.rounds)  # a running run may have written more
    return Record(path, config, lines[:count], scores, stored[:known], partition, content is not None, content or {})


def _config(path: Path) -> RunConfig:
    """The configuration of a run, checked as by `feddwa run`, except for components missing on this machine."""
    file = path / CONFIG
    try:
        given = from_toml(file, RunConfig)
        checked = dataclasses.replace(given, track=(), callbacks=()).resolved()
        return dataclasses.replace(checked, track=given.track, callbacks=given.callbacks)
    except InputError as error:
        known = str(error).removeprefix("--config ")
        raise InputError(known if known.startswith(str(file)) else f"{file}: {error}") from None


def _scores(path: Path, clients: Sequence[Sequence[float | None]], expected: int) -> np.ndarray:
    """(R, N) of every client, nan if missing: a federation's clients may join late, or not reply."""
    if not clients:
        return np.zeros((0, 0))
    total = max(map(len, clients))
    if not (path / FEDERATION).exists() and {len(line) for line in clients} - {0} != {expected}:
        raise checks.damaged(path / CLIENTS, f"a line is not one of {expected} clients, which {CONFIG} has")
    whole = [[*line, *[None] * (total - len(line))] for line in clients]
    return np.array(whole, dtype=float).reshape(len(clients), total)
