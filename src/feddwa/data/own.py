"""Own data: folders of images, .npz, Parquet and CSV files."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from feddwa.data import cache, labels, tables
from feddwa.data.dataset import Dataset, hold_out
from feddwa.data.files import Folder, first_line
from feddwa.data.images import SUFFIXES, decode, shape_of
from feddwa.errors import InputError

ARRAYS = ("x", "tokens", "y", "client")  # of an .npz file, each also with _test behind its name


def load_own(path: str | Path, label: str = "label", client: str = "client") -> Dataset:
    """Data at a path. `label` and `client` name the columns of a table; the client column may be absent.

    A folder holds images as <class>/<image>, <client>/<class>/<image>, either of them under train/ and test/, or
    Parquet files train*.parquet and test*.parquet. An .npz file holds x (or tokens), y and optionally client, and the
    same with _test behind their names. Without a test part of their own, every client's rows (or all rows) are split
    80/20, stratified by label, the same way every time.
    """
    path = Path(path)
    if path.is_dir():
        folder = Folder(path, (*SUFFIXES, ".parquet"))
        parquet = any(name.endswith(".parquet") for name in folder.names)
        train = tables.split_files(path, "train") if parquet else []
        return _from_tables(path, train, tables.held_out_files(path), label, client) if train else _from_images(folder)
    if path.suffix in (".parquet", ".csv"):
        return _from_tables(path, [path], [], label, client)
    if path.suffix == ".npz":
        return _from_npz(path)
    raise InputError(f"--dataset {path}: must be a folder or a file .npz, .parquet or .csv")


def assemble(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    client: np.ndarray | None = None,
    is_test: np.ndarray | None = None,
    tokens: bool = False,
) -> Dataset:
    """A dataset from arrays in any row order: labels and owners become numbers with names, test rows are put last.

    `tokens` says that x (n, length) are token ids: whole numbers alone do not tell them from other numbers.
    """
    columns = [y] if client is None else [y, client]
    if x.ndim == 0 or y.ndim == 0 or any(column.dtype.kind not in "fiubUS" for column in columns):
        raise InputError(f"{name}: x and y must be arrays with a sample axis, y and client of numbers or names")
    if client is not None and client.ndim != 1:
        raise InputError(f"{name}: client has shape {client.shape}, must be a list with one owner for each sample")
    if len(x) == 0 or any(len(column) != len(x) for column in columns):
        raise InputError(f"{name}: {len(x)} samples, {len(y)} labels, {len(columns[-1])} clients")
    targets, classes, class_names = labels.targets(name, y)
    owners, client_names = np.zeros(len(y), dtype=np.int64), tuple[str, ...]()
    if client is not None:
        owners, client_names = labels.numbered(name, "client", client)
        lonely = np.flatnonzero(np.bincount(owners) < 2)
        if lonely.size:
            raise InputError(
                f"{name}: client {client_names[lonely[0]]} has 1 sample, must be at least 2 (train and test)"
            )
    samples = _tokens(name, x) if tokens else _samples(name, x)
    if is_test is None:
        strata = targets if targets.ndim == 1 else np.zeros(len(y))
        order, train_count = hold_out(owners, strata)
    else:
        order, train_count = np.argsort(is_test, kind="stable"), int((~is_test).sum())
    return Dataset(
        name, samples[order], targets[order], train_count, classes, class_names=class_names,
        client=None if client is None else owners[order], client_names=client_names,
    )  # fmt: skip


def _samples(name: str, x: np.ndarray) -> np.ndarray:
    """Pixels (n, C, H, W) uint8, or features float32.

    Whole numbers of any type are pixels where a sample has the axes of an image. In a flat row they could be numbers
    or token ids, which train differently, so such a row is refused.
    """
    if np.issubdtype(x.dtype, np.integer) and x.ndim in (3, 4):
        return _pixels(name, x)
    if np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8:
        raise InputError(
            f"{name}: x of type {x.dtype} and shape {x.shape} may be numbers or token ids; store numbers as float32, "
            "and token ids under the name tokens"
        )
    if np.issubdtype(x.dtype, np.floating) or x.dtype in (np.uint8, np.bool_):
        with np.errstate(over="ignore"):  # beyond float32: infinite, and refused
            values = x.astype(np.float32)
        if not np.isfinite(values).all():
            raise InputError(f"{name}: x has missing or infinite values")
        return values
    raise InputError(f"{name}: x of type {x.dtype}, must be numbers")


def _pixels(name: str, x: np.ndarray) -> np.ndarray:
    """(n, C, H, W) uint8 of grey images (n, H, W), or of images with the channels first or last."""
    if x.size and not 0 <= x.min() <= x.max() <= 255:
        raise InputError(
            f"{name}: x of type {x.dtype} and shape {x.shape} has values from {x.min()} to {x.max()}; pixels must be "
            "0..255, store other numbers as float32"
        )
    pixels = x.astype(np.uint8)
    if x.ndim == 3:
        return pixels[:, None]
    return pixels.transpose(0, 3, 1, 2) if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) else pixels


def _tokens(name: str, x: np.ndarray) -> np.ndarray:
    """Token ids (n, length) int64."""
    if not np.issubdtype(x.dtype, np.integer) or x.ndim != 2 or (x.size and not 0 <= x.min() <= x.max() < 2**62):
        raise InputError(
            f"{name}: tokens of type {x.dtype} and shape {x.shape}, must be (n, length) whole numbers from 0"
        )
    return x.astype(np.int64)


class _Rows(NamedTuple):
    """Samples, labels and owners of one file, or of one part of it."""

    where: str  # how to speak of it in an error
    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None = None
    tokens: bool = False

    def signature(self) -> tuple[object, ...]:
        """What all parts of a dataset must have in common."""
        owner = None if self.client is None else _kind(self.client)
        return self.x.dtype, self.x.shape[1:], _kind(self.y), self.y.shape[1:], owner, self.tokens


def _kind(values: np.ndarray) -> str:
    return {"U": "names", "S": "names"}.get(values.dtype.kind, "numbers" if values.dtype.kind in "fiub" else "others")


def _joined(name: str, train: list[_Rows], test: list[_Rows]) -> Dataset:
    """The dataset of its parts; where none of them is there to test, a share of the rows is held out."""
    parts = [*train, *test]
    for part in parts:
        if part.signature() != parts[0].signature():
            raise InputError(
                f"{part.where}: not like {parts[0].where} in the samples, the kind of labels or the owners"
            )
        labels.refuse_missing(part.where, "label", part.y)
        if part.client is not None:
            labels.refuse_missing(part.where, "client", part.client)
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    owned = [part.client for part in parts if part.client is not None]
    is_test = np.repeat(np.arange(len(parts)) >= len(train), [len(part.y) for part in parts]) if test else None
    return assemble(name, x, y, np.concatenate(owned) if owned else None, is_test, parts[0].tokens)


def _from_npz(path: Path) -> Dataset:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:  # NumPy, zip and zlib each have their own
        raise InputError(f"{path}: not a readable .npz file ({first_line(error)})") from None
    valid = [name + part for part in ("", "_test") for name in ARRAYS]
    foreign = [name for name in arrays if name not in valid]
    if foreign or "y" not in arrays or ("x" in arrays) == ("tokens" in arrays):
        raise InputError(
            f"{path}: must hold x (or tokens) and y, and may hold client, all also with _test behind their names; it "
            f"has {', '.join(map(ascii, arrays)) or 'nothing'}"
        )
    split = any(name.endswith("_test") for name in arrays)
    return _joined(str(path), [_npz_part(path, arrays, "")], [_npz_part(path, arrays, "_test")] if split else [])


def _npz_part(path: Path, arrays: dict[str, np.ndarray], part: str) -> _Rows:
    """The arrays whose names end in `part`, which must be those of the training part again."""
    names = [name for name in ARRAYS if name in arrays]
    found = {name: arrays[name + part] for name in names if name + part in arrays}
    if len(found) < len(names):
        missing = next(name for name in names if name not in found)
        raise InputError(f"{path}: has a test part, but no {missing}{part}")
    if any(value.ndim == 0 for value in found.values()):
        raise InputError(f"{path}: its arrays must have a sample axis")
    where = f"{path} ({', '.join(name + part for name in names)})" if part else str(path)
    return _Rows(where, found[names[0]], found["y"], found.get("client"), "tokens" in found)


def _from_tables(path: Path, train: list[Path], test: list[Path], label: str, client: str) -> Dataset:
    read = [[_table_rows(file, label, client) for file in files] for files in (train, test)]
    return _joined(str(path), *read)


def _table_rows(file: Path, label: str, client: str) -> _Rows:
    """The rows of one file."""
    table = tables.read_table(file, (label, client))
    names = table.column_names
    tables.pick(file, names, (label,), "label")
    if table.num_rows == 0:
        raise InputError(f"{file}: no rows")
    y = tables.names_column(file, table, label)
    owners = tables.names_column(file, table, client) if client in names else None
    images = [name for name in tables.IMAGE_COLUMNS if name in names]
    if images:
        encoded = list(tables.encoded_images(file, images[0]))
        return _Rows(str(file), decode(encoded, len(encoded), shape_of(*encoded[0])), y, owners)
    rest = table.drop_columns([name for name in (label, client) if name in names])
    x = tables.features(file, rest)
    return _Rows(str(file), x, y, owners, np.issubdtype(x.dtype, np.integer))


def _from_images(folder: Folder) -> Dataset:
    files = [file for file in folder.names if file.lower().endswith(SUFFIXES)]
    if not files:
        raise InputError(f"--dataset {folder.path}: holds no images and no train*.parquet")
    parts = [file.split("/")[:-1] for file in files]
    is_test = None
    tops = {part[0] for part in parts if part}
    if "train" in tops and tops <= {"train", *tables.TEST_SPLITS}:
        is_test = np.array([bool(part) and part[0] != "train" for part in parts])
        parts = [part[1:] for part in parts]
    depths = {len(part) for part in parts}
    if depths not in ({1}, {2}):
        raise InputError(f"--dataset {folder.path}: images must all be in <class>/ or all in <client>/<class>/ folders")
    client = np.array([part[0] for part in parts]) if depths == {2} else None
    name, key = f"own-{folder.path.resolve().name}", folder.content_key(files)  # never mistaken for a named dataset
    if (known := cache.find(name, key)) is not None:
        return known
    shape = shape_of(folder.where(files[0]), folder.read(files[0]))
    x = decode(((folder.where(file), folder.read(file)) for file in files), len(files), shape)
    dataset = assemble(name, x, np.array([part[-1] for part in parts]), client, is_test)
    return cache.store(name, key, dataset)
