"""New samples for trained models: files in the form of the training data, or arrays in the shape of its samples."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from feddwa.data.files import first_line
from feddwa.errors import InputError, require
from feddwa.trained.card import ModelCard
from feddwa.trained.export import raw_samples


class Samples(NamedTuple):
    """Samples that were read from a file."""

    x: np.ndarray  # (n, *shape) raw
    y: np.ndarray | None  # (n,) class numbers of the run, or targets; None where the file has none
    names: tuple[str, ...]  # of rows or files
    clients: tuple[str, ...] | None  # (n,) whose they are, where the file tells


def read(card: ModelCard, path: Path) -> Samples:
    """The samples in a file or folder, as the models of a card take them."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    require(path.suffix == ".npz", "data", str(path), "an .npz file with x, and y where labels are known")
    return _from_arrays(card, path)


def _from_arrays(card: ModelCard, path: Path) -> Samples:
    """x, and y and client where they are there, of an .npz file; labels are names or numbers of classes."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:  # NumPy, zip and zlib each have their own
        raise InputError(f"{path}: not a readable .npz file ({first_line(error)})") from None
    if "x" not in arrays or not set(arrays) <= {"x", "y", "client"}:
        raise InputError(f"{path}: must hold x, and may hold y and client; it has {', '.join(map(ascii, arrays))}")
    try:
        x = raw_samples(card, arrays["x"]).numpy()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for name, values in arrays.items():
        require(
            values.ndim > 0 and len(values) == len(x),
            f"{path}: {name}",
            len(np.atleast_1d(values)),
            f"as many as x, {len(x)}",
        )
    y = None if "y" not in arrays else _numbers(card, path, arrays["y"])
    names = tuple(f"row {row + 1}" for row in range(len(x)))
    return Samples(x, y, names, tuple(map(str, arrays["client"].tolist())) if "client" in arrays else None)


def _numbers(card: ModelCard, path: Path, y: np.ndarray) -> np.ndarray:
    """Labels as numbers of the run's classes; targets as they are."""
    if not card.classes:
        return y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    known = {card.class_name(number): number for number in range(card.classes)}
    found = [known.get(str(label), -1) for label in y.tolist()]
    if -1 in found:
        row = found.index(-1)
        raise InputError(
            f"{path}: row {row + 1}: label {y.tolist()[row]!r} is not among the classes {', '.join(known)}"
        )
    return np.array(found, dtype=np.int64)
