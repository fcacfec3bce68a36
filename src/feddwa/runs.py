"""The run directory: written as the run goes, readable by people, enough to make the run again or to go on with it.

config.toml           the resolved configuration: `feddwa run --config DIR/config.toml` makes the run again, elsewhere
partition.json        who has how many samples of which class, and the true groups where there are any
metrics.jsonl         a line a round (and a last one: the models that the run delivers)
clients.jsonl         every client's accuracy, a line a round
weights.safetensors   P of every round ("weights/0001") with its cohort ("cohort/0001")
weights.journal       the same, a record a round, until the run is finished
checkpoint/           the whole state after the last two rounds; of a finished run, after the last one: its models
summary.json          what it came to; where it is, the run is finished
federation.json       of a run over Flower: its name, under which nodes keep what their clients remember
"""

import contextlib
import fcntl
import itertools
import json
import os
import re
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from feddwa import checkpoint, records
from feddwa.config import RunConfig, from_toml, to_toml
from feddwa.data.describe import Description, to_json
from feddwa.errors import InputError
from feddwa.federation import Round
from feddwa.tensorboard import TensorBoard

WEIGHTS_EVERY = 5.0  # seconds between two writes of the weights, which have to be written whole
CONFIG, COMPARISON, SUMMARY, CHECKPOINTS = "config.toml", "compare.toml", "summary.json", "checkpoint"
FEDERATION = "federation.json"  # there where the run was one over Flower
PARTITION, WEIGHTS = "partition.json", "weights.safetensors"
METRICS, CLIENTS, JOURNAL = "metrics.jsonl", "clients.jsonl", "weights.journal"  # these grow by a record a round

Weights = tuple[np.ndarray, np.ndarray]  # of a round: cohort (m,), P (m, m)


@dataclass(frozen=True)
class Past:
    """What a run that is continued has behind it."""

    lines: Sequence[dict[str, Any]] = ()  # of metrics.jsonl
    weights: Sequence[Weights] = ()
    seconds: float = 0.0


NEW = Past()


class RunDirectory:
    """Writes one run: `create` begins it, `reopen` goes on with it. One process at a time."""

    def __init__(self, path: Path, config: RunConfig, facts: Mapping[str, Any]) -> None:
        self.path = path
        self._config, self._facts = config, facts  # the facts stand in every checkpoint
        self._lock = _lock(path)
        self._files = {name: (path / name).open("ab") for name in (METRICS, CLIENTS, JOURNAL)}
        self._writer = checkpoint.Writer(path / CHECKPOINTS)
        self._tensorboard = TensorBoard(path) if config.tensorboard else None
        self._weights: dict[str, Tensor] = {}
        self._weights_written = time.monotonic()

    @classmethod
    def create(
        cls, config: RunConfig, description: Description | None = None, facts: Mapping[str, Any] | None = None
    ) -> "RunDirectory":
        """Begin a run."""
        path = Path(config.out) if config.out else default_path(config.algorithm, config.dataset)
        claim(path)
        if description is not None:
            write_whole(path / PARTITION, json.dumps(to_json(description)) + "\n")
        write_whole(path / CONFIG, to_toml(config))  # where it is, there is a run that can be continued
        return cls(path, config, facts or {})

    @classmethod
    def reopen(cls, config: RunConfig, facts: Mapping[str, Any]) -> "RunDirectory":
        """Go on with the run in `config.out`."""
        try:
            return cls(Path(config.out or "."), config, facts)
        except OSError as error:
            raise InputError(f"{config.out}: cannot go on there: {error.strerror}") from None

    def add(self, line: Mapping[str, Any], clients: Mapping[str, Any], result: Round | None = None) -> None:
        """Append what is known of a round."""
        self._append(METRICS, json.dumps(line, allow_nan=False).encode() + b"\n")
        self._append(CLIENTS, json.dumps(clients, allow_nan=False).encode() + b"\n")
        if self._tensorboard is not None:
            self._tensorboard.add(line, clients, result)
        if result is not None and "weights" in result.info:
            round, cohort, weights = torch.tensor(line["round"]), result.cohort.ids, result.info["weights"].cpu()
            record = save({"round": round, "cohort": cohort, "weights": weights.contiguous()})
            self._append(JOURNAL, len(record).to_bytes(8, "little") + record)
            self._show_weights(line["round"], cohort, weights)
            if time.monotonic() - self._weights_written > WEIGHTS_EVERY:
                self._write_weights()

    def keep(self, round: int, state: checkpoint.Tree, seconds: float, facts: Mapping[str, Any] | None = None) -> None:
        """Where one is due, keep the state after a round, with facts about it and how long the files are by now."""
        every = self._config.checkpoint_every
        if every and (round % every == 0 or round == self._config.rounds):
            lengths = {name: file.tell() for name, file in self._files.items()}
            facts = {**self._facts, **(facts or {}), "lengths": lengths, "seconds": seconds}
            self._writer.save(round, state, facts, before=self._sync)

    def settle(self) -> None:
        """Wait until the state that was kept last is on the disk."""
        self._writer.wait()

    def rewind(self, found: checkpoint.Checkpoint | None) -> Past:
        """Cut the files back to what they were when a checkpoint was made, and tell what is left in them."""
        lengths: dict[str, int] = {} if found is None else found.facts["lengths"]
        for name, file in self._files.items():
            if file.tell() < lengths.get(name, 0):
                raise InputError(f"{self.path / name}: is shorter than when the checkpoint was made; restore it")
            file.truncate(lengths.get(name, 0))
        lines, weights = read_lines(self.path / METRICS), []
        for round, cohort, own in _journal(self.path / JOURNAL):
            self._show_weights(round, cohort, own)
            weights.append((cohort.numpy(), own.numpy()))
        return Past(lines, weights, 0.0 if found is None else found.facts["seconds"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the rest; the summary comes last, because it says that all of it is there."""
        self._writer.wait()
        self._sync()
        self._write_weights()
        if self._tensorboard is not None:
            self._tensorboard.close()
        write_whole(self.path / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")
        (self.path / JOURNAL).unlink()
        checkpoint.keep(self.path / CHECKPOINTS, 1)

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._writer.close()
        finally:
            for file in (*self._files.values(), self._lock):
                file.close()

    def _append(self, name: str, record: bytes) -> None:
        self._files[name].write(record)
        self._files[name].flush()

    def _sync(self) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())

    def _show_weights(self, round: int, cohort: Tensor, weights: Tensor) -> None:
        self._weights[f"weights/{round:04d}"] = weights.to(torch.float32).contiguous()
        self._weights[f"cohort/{round:04d}"] = cohort

    def _write_weights(self) -> None:
        write_whole(self.path / WEIGHTS, save(self._weights))
        self._weights_written = time.monotonic()


def read_config(path: Path) -> RunConfig:
    """The configuration of the run in a directory."""
    if (path / COMPARISON).is_file():
        raise InputError(f"{path}: holds several runs; `feddwa resume {path}` goes on with all of them")
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: holds no run, there is no {CONFIG} in it")
    return from_toml(path / CONFIG, RunConfig)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return records.check_metrics(path, records.read_lines(path, whole=True))


def read_summary(path: Path) -> dict[str, Any] | None:
    """The summary of a run; None where it is not finished."""
    text = records.contents(path / SUMMARY)
    return None if text is None else records.check_summary(path / SUMMARY, records.parse(path / SUMMARY, text))


def read_weights(path: Path) -> list[Weights]:
    """Cohort and P of every round of a finished run, P in float32."""
    return [(cohort, weights) for _, cohort, weights in records.read_weights(path / WEIGHTS)]


def unfinished(path: Path) -> bool:
    """Whether a directory holds a run, or several, with which `feddwa resume` can go on."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        names = tomllib.loads((path / COMPARISON).read_text(encoding="utf-8"))["algorithms"]
        return not all((path / name / SUMMARY).exists() for name in names)
    return (path / CONFIG).exists() and not (path / SUMMARY).exists()


def busy(path: Path) -> bool:
    """Whether a process is at work on the run in a directory."""
    try:
        _lock(path).close()
    except InputError:
        return True
    except OSError:  # there is no run, or none that this process may write
        return False
    return False


def default_path(*names: str) -> Path:
    """A directory that does not exist yet: runs/<time>-<names>, numbered where that is taken."""
    slugs = [re.sub(r"[^\w.]+", "-", Path(name).name) for name in names]  # own data have a path for a name
    first = "-".join(["runs/" + time.strftime("%Y%m%d-%H%M%S"), *slugs])
    names_to_try = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names_to_try) if not path.exists())


def claim(path: Path) -> None:
    """Make an empty directory for a run, or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if unfinished(path):
            raise InputError(f"--out {path}: has an unfinished run; `feddwa resume {path}` goes on with it")
        leftovers = (".probe", PARTITION, f"{PARTITION}.part", f"{CONFIG}.part")  # of a run killed as it began
        if any(entry.name not in leftovers for entry in path.iterdir()):
            raise InputError(f"--out {path}: is not empty; give a new directory, or remove it first")
        probe = path / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out {path}: cannot write there: {error.strerror}; give a directory that can be") from None


def check_free(out: str | None) -> None:
    """Raise what `claim` would raise, and leave no trace: so that nobody waits for data and then hears of it."""
    if out is None:
        return
    path = Path(out)
    new = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        claim(path)
    finally:
        for folder in new:
            with contextlib.suppress(OSError):
                folder.rmdir()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file: all of it or, if that is interrupted, nothing."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    checkpoint.sync_directory(path.parent)


def _lock(path: Path) -> IO[bytes]:
    """Nobody else writes here until the file is closed; the system closes it when a process is killed."""
    file = (path / CONFIG).open("rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(f"{path}: another process is at work on this run") from None
    return file


def _journal(path: Path) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Round, cohort and P from weights.journal: lengths and safetensors, one after another."""
    data, place = path.read_bytes(), 0
    while place < len(data):
        end = place + 8 + int.from_bytes(data[place : place + 8], "little")
        try:
            record = load(data[place + 8 : end])
            number, cohort, weights = int(record["round"]), record["cohort"], record["weights"]
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise records.damaged(path, error) from None
        records.check_weights(path, number, cohort.numpy(), weights.double().numpy())
        yield number, cohort, weights
        place = end
