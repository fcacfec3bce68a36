"""A task: data and their division among clients."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.partition import Partition


@dataclass(frozen=True)
class Task:
    """Data and their division, which several runs may share."""

    dataset: Dataset
    partition: Partition
    poison: Callable[[Any], Any] | None = None  # hostile clients' change of the samples (FederatedData)
    _kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def keep(self, name: object, make: Callable[[], Any]) -> Any:
        """The cached object of this name, created by `make` on first use: samples on a device, compiled programs.

        Tasks that do not change the samples share the cache: all divisions of a dataset use the same programs.
        """
        division = self.partition
        altered = division.turns is not None or division.relabel is not None or self.poison is not None
        kept = self._kept if altered else self.dataset.kept
        if name not in kept:
            kept[name] = make()
        return kept[name]

    def kept(self, name: object) -> Any:
        """The cached object of this name; None if there is none."""
        return self._kept.get(name, self.dataset.kept.get(name))

    @property
    def clients(self) -> int:
        """The number of clients, N."""
        return len(self.partition.train)

    @cached_property
    def newcomers(self) -> "Task | None":
        """The data of the held-out clients; None if there are none."""
        return None if self.partition.newcomers is None else Task(self.dataset, self.partition.newcomers)

    @property
    def name(self) -> str:
        """The name of the data; for own files without the folder."""
        return Path(self.dataset.name).name

    @property
    def notes(self) -> list[str]:
        """Changes to the data, one line each."""
        return [f"{self.name}: {note}" for note in self.dataset.notes]

    def fingerprint(self) -> str:
        """A checksum of all samples and their division."""
        kept = self.dataset.kept
        if "digest" not in kept:  # shared by all divisions of a dataset
            kept["digest"] = _add(hashlib.sha256(), self.dataset.x, self.dataset.y)
        digest = kept["digest"].copy()
        for own in filter(None, (self.partition, self.partition.newcomers)):
            digest = _add(digest, *own.train, *own.test, own.turns, own.relabel)
        return str(digest.hexdigest())


def fingerprint(dataset: Dataset) -> str:
    """A checksum of everything in a dataset, names included."""
    told = {name: value for name, value in vars(dataset).items() if name != "kept"}
    arrays = {name: value for name, value in told.items() if isinstance(value, np.ndarray)}
    digest = hashlib.sha256(repr([(name, value) for name, value in told.items() if name not in arrays]).encode())
    return str(_add(digest, *arrays.values()).hexdigest())


def _add(digest: Any, *arrays: np.ndarray | None) -> Any:
    for array in arrays:
        value = np.zeros(0) if array is None else np.ascontiguousarray(array)
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(value.reshape(-1).view(np.uint8) if value.size else b"")
    return digest
