"""The run directory: written during the run, human-readable, sufficient to repeat or to resume the run.

config.toml           the resolved configuration: `feddwa run --config DIR/config.toml` repeats the run
partition.json        samples per client and class, and the true groups, if any
rates.json            the rates that --lr auto tried, and their losses, if given
metrics.jsonl         one line per round (and a last one: the final models)
clients.jsonl         every client's accuracy, one line per round; the last one has the clients' names, if any
weights.journal       P of every round with its cohort, one record per round, until the run is finished
weights.safetensors   the same of a finished run ("weights/0001", "cohort/0001")
checkpoint/           the state after the last two rounds, until the run is finished; *.rows: rows of clients (--state)
models.safetensors    of a finished run: every client's evaluated model (feddwa.trained.store)
model.json            the facts needed to use them
SHA256SUMS            of a finished run's files, for `sha256sum --check`
record.json           the record of the run (feddwa.results.content); if it exists, the run is finished
federation.json       of a run over Flower: its name, under which nodes store their clients' memory
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from feddwa import checkpoint
from feddwa.config import RunConfig
from feddwa.config_file import from_toml, to_toml
from feddwa.data.describe import Description, to_json
from feddwa.errors import InputError
from feddwa.federation import Round
from feddwa.plugins import label
from feddwa.results import checks, content, findings, weights
from feddwa.results.metrics import Line
from feddwa.results.weights import JOURNAL, WEIGHTS
from feddwa.seeds import members
from feddwa.storage import EMPTY, GrowingFile, Mark, is_mark, sum_of, write_whole
from feddwa.trained import store
from feddwa.trained.store import TrainedModels

CONFIG, RECORD, CHECKPOINTS = "config.toml", "record.json", "checkpoint"
FEDERATION = "federation.json"  # only for a run over Flower
PARTITION = "partition.json"
METRICS, CLIENTS = "metrics.jsonl", "clients.jsonl"  # these and the journal grow by one record per round
SUMS = "SHA256SUMS"


class RunDirectory:
    """Writes one run: `create` begins it, `reopen` continues it. One process at a time."""

    def __init__(self, path: Path, config: RunConfig, facts: Mapping[str, Any]) -> None:
        self.path = path
        self._config, self._facts = config, facts  # every checkpoint has the facts
        self._lock = _lock(path)
        self._files = {name: GrowingFile(path / name) for name in (METRICS, CLIENTS, JOURNAL)}
        self._writer = checkpoint.Writer(path / CHECKPOINTS)
        self._last: Mapping[str, Any] = {}  # the last written line of clients.jsonl

    @classmethod
    def create(
        cls, config: RunConfig, description: Description | None = None, facts: Mapping[str, Any] | None = None
    ) -> "RunDirectory":
        """Begin a run."""
        path = Path(config.out) if config.out else default_path(config.algorithm, config.dataset)
        claim(path)
        if description is not None:
            write_whole(path / PARTITION, json.dumps(to_json(description)) + "\n")
        write_whole(path / CONFIG, to_toml(config))  # if it exists, the run can be resumed
        return cls(path, config, facts or {})

    @classmethod
    def reopen(cls, config: RunConfig, facts: Mapping[str, Any]) -> "RunDirectory":
        """Continue the run in `config.out`."""
        try:
            return cls(Path(config.out or "."), config, facts)
        except OSError as error:
            raise InputError(f"{config.out}: cannot go on there: {error.strerror}") from None

    def add(self, line: Mapping[str, Any], clients: Mapping[str, Any], result: Round | None = None) -> None:
        """Append the results of a round."""
        self._append(METRICS, json.dumps(line, allow_nan=False).encode() + b"\n")
        self._append(CLIENTS, json.dumps(clients, allow_nan=False).encode() + b"\n")
        self._last = clients
        if result is not None and "weights" in result.info:
            self._append(JOURNAL, weights.journal_record(line["round"], result.cohort.ids, result.info["weights"]))

    def due(self, round: int) -> bool:
        """Whether a checkpoint is due after a round."""
        every = self._config.checkpoint_every
        return bool(every) and (round % every == 0 or round == self._config.rounds)

    def keep(self, round: int, state: checkpoint.Tree, facts: Mapping[str, Any], durable: bool = False) -> None:
        """Save the state after a round, facts about it, and the marks of the files.

        durable: wait until it is on disk.
        """
        files = {name: file.mark() for name, file in self._files.items()}
        facts = {**self._facts, **facts, "files": files}
        self._writer.save(round, state, facts, before=self._sync)
        if durable:
            self._writer.wait()

    def rewind(self, found: checkpoint.Checkpoint | None) -> list[dict[str, Any]]:
        """Truncate the files to their marks in a checkpoint; returns the remaining lines of metrics.jsonl.

        A file whose bytes up to its mark have changed is refused.
        """
        then: Any = {} if found is None else found.facts.get("files")
        if not isinstance(then, dict) or not all(map(is_mark, then.values())):
            raise InputError(f"{self.path}: its checkpoint does not say where the run's files stood; run anew")
        marks: dict[str, Mark] = {name: then.get(name, EMPTY) for name in self._files}
        for name, mark in marks.items():
            self._files[name].check(mark)
        for name, mark in marks.items():
            self._files[name].cut(mark)
        return read_lines(self.path / METRICS)

    def finish(
        self, lines: Sequence[Line], summary: Mapping[str, Any], made: Mapping[str, Any], trained: TrainedModels
    ) -> None:
        """Write the remaining files; the record comes last, because it marks the run as complete.

        lines: of metrics.jsonl; made: the origin of the run.
        """
        self._writer.wait()
        self._sync()
        sums = {name: self._files[name].mark()["sha256"] for name in (METRICS, CLIENTS)}
        sums[WEIGHTS] = write_whole(self.path / WEIGHTS, weights.as_safetensors(self.path / JOURNAL))
        sums |= store.write(self.path, trained, self._facts, "" if self._config.save_models else store.LEFT_OUT)
        text = content.to_text(self._content(lines, summary, made))
        sums[RECORD] = hashlib.sha256(text.encode()).hexdigest()
        write_whole(self.path / SUMS, "".join(f"{own}  {name}\n" for name, own in sums.items()))
        write_whole(self.path / RECORD, text)
        tidy(self.path)

    def _content(self, lines: Sequence[Line], summary: Mapping[str, Any], made: Mapping[str, Any]) -> content.Content:
        """record.json, from the written files."""
        partition = checks.read_partition(self.path / PARTITION)
        groups = None if partition is None else partition.groups
        found = findings.of_run(lines, partition, stopped=summary.get("stopped"))
        stored, last = weights.read(self.path), self._last
        known = self._config, lines, last["before"], stored, groups, found, summary, made
        return content.make(*known, last.get("newcomers"))

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._writer.close()
        finally:
            for file in self._files.values():
                file.close()
            self._lock.close()

    def _append(self, name: str, record: bytes) -> None:
        self._files[name].append(record)

    def _sync(self) -> None:
        for file in self._files.values():
            file.sync()


def read_config(path: Path) -> RunConfig:
    """The configuration of the run in a directory."""
    if members(path):
        raise InputError(f"{path}: holds several runs; `feddwa resume {path}` continues all of them")
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: holds no run, there is no {CONFIG} in it")
    return from_toml(path / CONFIG, RunConfig)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return checks.check_metrics(path, checks.read_lines(path, whole=True))


def read_record(path: Path) -> content.Content | None:
    """The content of record.json in a run directory; None if the run is not finished."""
    text = checks.contents(path / RECORD)
    return None if text is None else checks.check_record(path / RECORD, checks.parse(path / RECORD, text))


def check_sums(path: Path) -> None:
    """Raise if a file of a finished run has changed."""
    try:
        pairs = [line.split("  ", 1) for line in (path / SUMS).read_text(encoding="utf-8").splitlines()]
        sums = {name: own for own, name in pairs}
        names = (METRICS, CLIENTS, WEIGHTS, RECORD, store.CARD, *([store.MODELS] if store.MODELS in sums else []))
        changed = [name for name in names if sum_of(path / name).hexdigest() != sums[name]]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path / SUMS}: cannot be checked: {error}") from None
    if changed:
        raise InputError(f"{path / changed[0]}: is not what was written: its sum is not that in {SUMS}; restore it")


def read_models(path: Path) -> TrainedModels:
    """The trained models in the directory of a finished run, or of an adapted model, with checked sums."""
    if not path.is_dir():
        raise InputError(f"{path}: no such directory; must be that of a finished run")
    if several := members(path):
        inside = sorted(str(own.relative_to(path)) for own in several if (own / store.CARD).exists())
        raise InputError(f"{path}: holds several runs; name one of them: {', '.join(inside) or 'none is finished'}")
    if unfinished(path):
        raise InputError(f"{path}: the run is not finished; `feddwa resume {path}` continues it")
    if (path / RECORD).exists():
        check_sums(path)
    return store.read(path)


def tidy(path: Path) -> None:
    """Remove files that a finished run no longer needs: the journal of weights and the checkpoints."""
    (path / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(path / CHECKPOINTS, ignore_errors=True)


def unfinished(path: Path) -> bool:
    """Whether a directory holds one or several runs that `feddwa resume` can continue."""
    if several := members(path):
        return not all((own / RECORD).exists() for own in several)
    return (path / CONFIG).exists() and not (path / RECORD).exists()


def busy(path: Path) -> bool:
    """Whether a process is working on the run in a directory."""
    try:
        _lock(path).close()
    except InputError:
        return True
    except OSError:  # no run, or not writable by this process
        return False
    return False


def default_path(*names: str) -> Path:
    """A directory that does not exist yet: runs/<time>-<names>, with a number if taken."""
    slugs = [re.sub(r"[^\w.]+", "-", Path(label(name)).name) for name in names]  # the name of own data is a path
    first = "-".join(["runs/" + time.strftime("%Y%m%d-%H%M%S"), *slugs])
    names_to_try = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names_to_try) if not path.exists())


def claim(path: Path) -> None:
    """Make an empty directory for a run; raises InputError if that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if unfinished(path):
            raise InputError(f"--out {path}: has an unfinished run; `feddwa resume {path}` continues it")
        leftovers = (".probe", PARTITION, f"{PARTITION}.part", f"{CONFIG}.part")  # of a run killed at its start
        if any(entry.name not in leftovers for entry in path.iterdir()):
            raise InputError(f"--out {path}: is not empty; give a new directory, or remove it first")
        probe = path / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out {path}: cannot write there: {error.strerror}; give a directory that can be") from None


def check_free(out: str | None) -> None:
    """Raise the errors of `claim` without leaving files, before data are loaded."""
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


def _lock(path: Path) -> IO[bytes]:
    """Lock the directory until the file is closed; the system closes it when a process is killed."""
    file = (path / CONFIG).open("rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(f"{path}: another process is at work on this run") from None
    return file
