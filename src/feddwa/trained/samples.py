"""New samples for trained models: files in the form of the training data, or arrays in the shape of its samples."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from feddwa.data import arrays, tables
from feddwa.data.form import InputForm
from feddwa.data.labels import numbered
from feddwa.data.options import CLIENT
from feddwa.errors import InputError, require
from feddwa.trained.card import ModelCard
from feddwa.trained.export import raw_samples


class Samples(NamedTuple):
    """Samples that were read from a file or folder."""

    x: np.ndarray  # (n, *shape) raw
    y: np.ndarray | None  # (n,) class numbers of the run, or targets; None if the file has none
    names: tuple[str, ...]  # of rows or files
    clients: tuple[str, ...] | None = None  # (n,) their clients, if the data name them
    notes: tuple[str, ...] = ()  # descriptions of preprocessing


def read(card: ModelCard, path: Path, column: str = CLIENT) -> Samples:
    """The samples at a path, in the form that a card's models take; column: names a row's client in a table."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if card.form is None:
        require(not card.sample.parts, "DATA", str(path), "Python's result.predict: a sample has several inputs")
        require(path.suffix == ".npz", "DATA", str(path), "an .npz file with x, and y where labels are known")
        return _from_arrays(card, path)
    try:
        form = InputForm.from_json(card.form)
    except (KeyError, TypeError, ValueError):
        raise InputError("model.json: is damaged: form does not say how files become samples") from None
    found = form.read(path)
    require(len(found.x) > 0, str(path), "no rows", "at least one sample")
    return Samples(found.x, found.y, found.names, _owners(card, form, path, column, found.names), found.notes)


def _owners(
    card: ModelCard, form: InputForm, path: Path, column: str, names: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The samples' clients: from a column of a table, `client` of an .npz file, or the folder of an image."""
    if form.kind == "arrays":
        content = arrays.read_npz(path)
        return _named(str(path), content["client"]) if "client" in content else None
    if form.kind == "images":
        folders = tuple(name.split("/")[0] for name in names if "/" in name)
        return folders if len(folders) == len(names) and set(folders) <= set(card.clients) else None
    parts = form.parts(path)
    known = {*(each.name for each in form.columns), *form.unused, form.label, column}
    for part in parts:
        foreign = [name for name in part.table.column_names if name not in known]
        if foreign:
            raise InputError(f"{part.where}: column {foreign[0]!r} was not in the training data; leave it out")
    found = [
        tables.names_column(part.where, part.table[column], column)
        for part in parts
        if column in part.table.column_names
    ]
    return _named(str(path), tables.texts(np.concatenate(found))) if len(found) == len(parts) else None


def _named(where: str, owners: np.ndarray) -> tuple[str, ...]:
    """The names of owners (n,), in the form of the training data."""
    numbers, names = numbered(where, "client", owners)
    return tuple(names[number] for number in numbers.tolist())


def _from_arrays(card: ModelCard, path: Path) -> Samples:
    """x, and y and client if present, of an .npz file; labels are names or numbers of classes."""
    content = arrays.read_npz(path)
    if "x" not in content or not set(content) <= {"x", "y", "client"}:
        raise InputError(f"{path}: must hold x, and may hold y and client; it has {', '.join(map(ascii, content))}")
    try:
        (x,) = (each.numpy() for each in raw_samples(card, content["x"]))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for name, values in content.items():
        found = len(values) if values.ndim else "one value"
        require(found == len(x), f"{path}: {name}", found, f"as many as there are samples in x, {len(x)}")
    y = _numbers(card, path, content["y"]) if "y" in content else None
    owners = _named(str(path), content["client"]) if "client" in content else None
    return Samples(x, y, tuple(f"row {row + 1}" for row in range(len(x))), owners)


def _numbers(card: ModelCard, path: Path, y: np.ndarray) -> np.ndarray:
    """Labels as numbers of the run's classes; targets unchanged."""
    if not card.classes:
        return y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    known = {card.class_name(number): number for number in range(card.classes)}
    found = [known.get(str(label), -1) for label in y.tolist()]
    if -1 in found:
        row = found.index(-1)
        told = f"label {y.tolist()[row]!r} is not among the classes {', '.join(known)}"
        raise InputError(f"{path}: row {row + 1}: {told}")
    return np.array(found, dtype=np.int64)
