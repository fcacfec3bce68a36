"""Results on disk: one small JSON file per cell and seed, found by what was run.

The name of a cell is readable and ends in a hash of the settings that are not a method's or a partition's defaults, so
that a hyper-parameter that is added later, with a default that changes nothing, does not orphan what is there. A file
counts only while every setting in it is still what the specification resolves to. Whoever changes what a default does
removes the files that it made stale.
"""

import dataclasses
import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from feddwa import __version__
from feddwa.config import RunConfig
from feddwa.params import fields_of
from feddwa.plugins import ALGORITHMS, PARTITIONS, label

Record = dict[str, Any]  # a result file

# What says where and how a run is made, but not what it gives.
ELSEWHERE = frozenset(
    {"seed", "device", "dtype", "data_dir", "out", "backend", "chunk", "checkpoint_every", "tensorboard"}
)


def settings(config: RunConfig) -> dict[str, Any]:
    """Everything of a configuration that a result depends on, seed apart; options that are None left out."""
    values = dataclasses.asdict(config.resolved())
    known = [field.name for field in dataclasses.fields(RunConfig) if field.name not in ELSEWHERE]
    found = {key: values[key] for key in known if values[key] is not None}
    return {**found, "param": sorted(found["param"])}


def cell_name(config: RunConfig) -> str:
    """dataset-partition-clients-method-hash: the same for the same settings, on any machine."""
    values = settings(config)
    usual = dataclasses.asdict(RunConfig())
    values["param"] = [entry for entry in values["param"] if entry not in _defaults(config)]
    told = {key: value for key, value in values.items() if key in _ALWAYS or value != usual[key]}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
    dataset, partition, algorithm = (label(values[key]) for key in ("dataset", "partition", "algorithm"))
    return f"{dataset}-{partition}-{values['clients']}-{algorithm}-{digest}"


_ALWAYS = ("algorithm", "dataset", "model", "partition", "clients", "rounds", "batch_size", "lr", "param")


def _defaults(config: RunConfig) -> set[str]:
    partition = config.partition or config.usual_partition
    assert partition is not None  # results are of named datasets
    kinds = {label(config.algorithm): ALGORITHMS.find(config.algorithm), label(partition): PARTITIONS.find(partition)}
    return {f"{owner}.{key}={usual}" for owner, kind in kinds.items() for key, (_, usual) in fields_of(kind).items()}


class Store:
    """A folder of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, Record] = {}

    def path(self, config: RunConfig, seed: int) -> Path:
        """The file of a cell and a seed: <folder>/<dataset>/<cell>-s<seed>.json."""
        return self.folder / label(config.dataset) / f"{cell_name(config)}-s{seed}.json"

    def work(self, config: RunConfig) -> Path:
        """The run directory of a run that is not finished."""
        return self.folder / ".work" / self.path(config, config.seed).stem

    def find(self, config: RunConfig, seed: int) -> Record | None:
        """The result of a cell and a seed, if it is there and made with these very settings."""
        path = self.path(config, seed)
        if path not in self._known:
            if not path.is_file():
                return None
            self._known[path] = json.loads(path.read_text(encoding="utf-8"))
        record = self._known[path]
        return record if _agrees(record["config"], settings(config)) else None

    def all(self, config: RunConfig) -> dict[int, Record]:
        """The results of a cell by seed, whatever seeds there are."""
        pattern = f"{cell_name(config)}-s*.json"
        seeds = sorted(
            int(path.stem.rpartition("-s")[2]) for path in (self.folder / label(config.dataset)).glob(pattern)
        )
        found = {seed: self.find(config, seed) for seed in seeds}
        return {seed: record for seed, record in found.items() if record is not None}

    def missing(self, config: RunConfig, seeds: Iterable[int]) -> tuple[int, ...]:
        """The seeds that are still to be run."""
        return tuple(seed for seed in seeds if self.find(config, seed) is None)

    def save(self, config: RunConfig, record: Record) -> Path:
        """Write a result whole or not at all."""
        path = self.path(config, record["seed"])
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_text(to_text(record), encoding="utf-8")
        os.replace(temporary, path)
        self._known[path] = record
        return path


def _agrees(stored: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """Whether every setting of a result is still the same; options and hyper-parameters added since do not matter."""
    same = all(present.get(key) == value for key, value in stored.items() if key not in ELSEWHERE | {"param"})
    return same and set(stored["param"]) <= set(present["param"])


def to_text(record: Record) -> str:
    """A key a line, its value on that line: small, and readable in a diff."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


@functools.cache
def code_version() -> str:
    """The commit of the code: of the archive that it was unpacked from, else of the repository around it, if any."""
    commit = Path(__file__).with_name("commit.txt").read_text(encoding="utf-8").strip()  # `git archive` fills it in
    if commit.startswith("$"):
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
        try:
            commit = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return f"feddwa {__version__}"
    return f"feddwa {__version__}, {commit[:10] if len(commit) == 40 else commit}"
