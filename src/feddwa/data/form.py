"""The conversion of a user's files into samples, as a value that can be stored and applied to new files."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from feddwa.data import arrays, columns, hub, tables
from feddwa.data.columns import Column, Rows
from feddwa.data.files import Folder
from feddwa.data.images import SUFFIXES, decode
from feddwa.data.labels import numbered
from feddwa.data.tables import Part
from feddwa.errors import InputError

Kind = Literal["table", "images", "arrays"]


class NewSamples(NamedTuple):
    """Samples that were read in the form of a dataset."""

    x: np.ndarray  # (n, *shape), as Dataset.x: not standardised
    y: np.ndarray | None  # (n,) int64 class numbers, or float32 targets; None without labels
    names: tuple[str, ...]  # of rows ("row 1") or files
    notes: tuple[str, ...] = ()  # descriptions of changes


@dataclass(frozen=True)
class InputForm:
    """The conversion of own files. Standardisation is separate: see Dataset.mean and std."""

    kind: Kind
    shape: tuple[int, ...]  # of a sample
    tokens: bool = False  # whether integers are token ids
    columns: tuple[Column, ...] = ()  # input columns of a table, in order
    label: str | None = None  # label column of a table
    unused: tuple[str, ...] = ()  # other columns of a table: owners, row numbers, time
    resize: bool = False  # whether to scale images to the shape
    class_names: tuple[str, ...] = ()  # () if targets are not classes

    def as_json(self) -> dict[str, Any]:
        """The form as values that JSON has."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "InputForm":
        """The inverse of `as_json`."""
        own = (dict(each, categories=tuple(each["categories"])) for each in content["columns"])
        values = {**content, "columns": [Column(**each) for each in own]}
        made: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**made)

    def read(self, path: str | Path) -> NewSamples:
        """The samples in a file or folder of this form; labels where it has them.

        A table has the same columns, possibly without labels. A folder of images may have a folder per class. Missing
        values, and values that no training row has, are encoded as in training.
        """
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        if self.kind == "images":
            return self._read_images(path)
        return self._read_table(path) if self.kind == "table" else self._read_arrays(path)

    def _read_table(self, path: Path) -> NewSamples:
        parts = self.parts(path)
        x, y, names, notes = [], [], [], list[str]()
        for part in parts:
            x.append(columns.encode(part, self.columns, self.shape, self.resize))
            if self.label is not None and self.label in part.table.column_names:
                known = part.class_names.get(self.label, ())
                y.append(tables.names_column(part.where, part.table[self.label], self.label, known))
            if self.columns[0].kind != "image":
                notes += columns.changes(Rows([part]), self.columns, np.arange(part.table.num_rows))
            place = Path(part.where).name
            names += [f"{place} row {row + 1}" for row in range(part.table.num_rows)]
        if y and len(y) < len(parts):
            raise InputError(f"{path}: some of its files have the column {self.label!r}, others do not")
        labels = self._numbers(path, tables.texts(np.concatenate(y))) if y else None
        return NewSamples(np.concatenate(x), labels, tuple(names), tuple(notes))

    def parts(self, path: Path) -> list[Part]:
        """The tables in a file or folder."""
        if path.is_dir() and hub.is_saved(path):
            train, test, _ = hub.parts_of(str(path), hub.load_saved(path))
            return [*train, *test]
        files = [path] if path.is_file() else tables.all_files(path)
        if not files or not all(map(tables.is_table, files)):
            raise InputError(f"{path}: must be a table ({', '.join(tables.SUFFIXES)}) like those of the training data")
        return [tables.read_part(file, (self.label or "", *self.unused)) for file in files]

    def _read_images(self, path: Path) -> NewSamples:
        folder = Folder(path, SUFFIXES) if path.is_dir() else Folder(path.parent, SUFFIXES)
        files = folder.names if path.is_dir() else [path.name]
        if not files:
            raise InputError(f"{path}: holds no images")
        images = ((folder.where(file), folder.read(file)) for file in files)
        x = decode(images, len(files), self.shape, resize=self.resize, upright=True)
        classes = [Path(file).parent.name for file in files]
        known = all(name in self.class_names for name in classes)
        notes = folder.passed_over(files) if path.is_dir() else []
        y = self._numbers(path, np.array(classes)) if known else None
        return NewSamples(x, y, tuple(files), tuple(notes))

    def _read_arrays(self, path: Path) -> NewSamples:
        content = arrays.read_npz(path)
        name = "tokens" if self.tokens else "x"
        if name not in content or not set(content) <= {name, "y", "client"}:
            raise InputError(f"{path}: must hold {name}, and may hold y; it has {', '.join(map(ascii, content))}")
        x = arrays.samples(str(path), content[name], self.tokens)
        if x.shape[1:] != self.shape:
            raise InputError(f"{path}: samples of shape {x.shape[1:]}, must be {self.shape}")
        y = self._numbers(path, content["y"]) if "y" in content else None
        if y is not None and len(y) != len(x):
            raise InputError(f"{path}: {len(x)} samples, {len(y)} labels")
        return NewSamples(x, y, tuple(f"row {row + 1}" for row in range(len(x))))

    def _numbers(self, path: Path, y: np.ndarray) -> np.ndarray:
        """Labels as class numbers of the training data; targets unchanged."""
        if not self.class_names:
            return y.astype(np.int64 if y.dtype.kind in "iub" else np.float32)
        places, names = numbered(str(path), "label", y)
        foreign = [name for name in names if name not in self.class_names]
        if foreign:
            raise InputError(f"{path}: label {foreign[0]!r} is not among the classes {', '.join(self.class_names)}")
        return np.asarray(np.array([self.class_names.index(name) for name in names], dtype=np.int64)[places])
