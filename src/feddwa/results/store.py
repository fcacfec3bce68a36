"""Published results: a folder with a JSONL file per dataset, a line per cell and seed, indexed by settings.

    FOLDER/cifar10.jsonl     lines sorted by cell and seed
    FOLDER/.work/            results not yet in their file, one file each, and the directories of unfinished runs

A result is valid only while all its settings equal those that a configuration resolves to. A change of a default must
remove the lines that it makes stale.
"""

import fcntl
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feddwa.config import RunConfig
from feddwa.plugins import label
from feddwa.results import checks, content
from feddwa.results.content import Content
from feddwa.results.record import PUBLISHED, Record, from_content
from feddwa.storage import write_whole

Key = tuple[str, int]  # cell, seed


class Store:
    """A folder of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contents: dict[str, dict[Key, Content]] = {}  # by dataset
        self._records: dict[Key, Record] = {}
        self._known: dict[RunConfig, tuple[str, dict[str, Any]]] = {}  # cache of cells and settings

    def find(self, config: RunConfig, seed: int) -> Record | None:
        """The result of a cell and a seed, if it exists with exactly these settings."""
        (cell, settings), dataset = self._identity(config), label(config.dataset)
        key = (cell, seed)
        found = self._of(dataset).get(key)
        if found is None or not content.agrees(found["config"], settings):
            return None
        if key not in self._records:
            self._records[key] = from_content(self.file(dataset), found)
        return self._records[key]

    def all(self, config: RunConfig) -> dict[int, Record]:
        """All results of a cell, by seed."""
        cell, _ = self._identity(config)
        seeds = sorted(seed for name, seed in self._of(label(config.dataset)) if name == cell)
        found = {seed: self.find(config, seed) for seed in seeds}
        return {seed: record for seed, record in found.items() if record is not None}

    def missing(self, config: RunConfig, seeds: Iterable[int], series: str = "before.all") -> tuple[int, ...]:
        """The seeds still to run: those without a result, or without this series in it."""
        found = self.all(config)
        return tuple(seed for seed in seeds if seed not in found or series not in found[seed].series)

    def work(self, config: RunConfig) -> Path:
        """The directory of an unfinished run."""
        return self._work / f"{self._identity(config)[0]}-s{config.seed}"

    def save(self, found: Content) -> Path:
        """Write a result atomically next to the files; `merge` puts it into its file."""
        self._work.mkdir(parents=True, exist_ok=True)
        path = self._work / f"{found['cell']}-s{found['seed']}.json"
        write_whole(path, _line(found))
        self._contents.clear()
        self._records.pop((found["cell"], found["seed"]), None)
        return path

    def merge(self) -> list[Path]:
        """Put saved results into the files, replacing older results of the same runs; returns the changed files."""
        with self._locked():
            saved = [(path, self._parse(path, path.read_bytes())) for path in sorted(self._work.glob("*.json"))]
            datasets = list(dict.fromkeys(label(found["config"]["dataset"]) for _, found in saved))
            for dataset in datasets:
                own = {_key(found): found for _, found in saved if label(found["config"]["dataset"]) == dataset}
                self.write(dataset, {**self._published(dataset), **own}.values())
            for path, _ in saved:
                path.unlink()
        self._contents.clear()
        return [self.file(dataset) for dataset in datasets]

    def write(self, dataset: str, found: Iterable[Content]) -> None:
        """Rewrite the file of a dataset."""
        write_whole(self.file(dataset), "".join(_line(each) for each in sorted(found, key=_key)))

    def file(self, dataset: str) -> Path:
        """The file of a dataset."""
        return self.folder / f"{dataset}{PUBLISHED}"

    def _identity(self, config: RunConfig) -> tuple[str, dict[str, Any]]:
        """The name of its cell, and its settings."""
        if config not in self._known:
            self._known[config] = content.cell_name(config), content.settings(config)
        return self._known[config]

    @property
    def _work(self) -> Path:
        return self.folder / ".work"

    def _of(self, dataset: str) -> dict[Key, Content]:
        """All results of a dataset, including those not yet in its file."""
        if dataset not in self._contents:
            saved = (self._parse(path, path.read_bytes()) for path in self._work.glob("*.json"))
            own = {_key(found): found for found in saved if label(found["config"]["dataset"]) == dataset}
            self._contents[dataset] = {**self._published(dataset), **own}
        return self._contents[dataset]

    def _published(self, dataset: str) -> dict[Key, Content]:
        file = self.file(dataset)
        if not file.is_file():
            return {}
        lines = enumerate(checks.read_lines(file, whole=True), 1)
        return {_key(found): found for found in (checks.check_record(file, each, f"line {n}") for n, each in lines)}

    @staticmethod
    def _parse(path: Path, text: bytes) -> Content:
        return checks.check_record(path, checks.parse(path, text))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other process changes the files."""
        self._work.mkdir(parents=True, exist_ok=True)
        with (self._work / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _key(found: Content) -> Key:
    return found["cell"], found["seed"]


def _line(found: Content) -> str:
    return json.dumps(found, allow_nan=False, separators=(",", ":")) + "\n"
