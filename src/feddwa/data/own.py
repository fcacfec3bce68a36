"""Own data: folders of images, .npz, Parquet and CSV files."""

from pathlib import Path

import numpy as np

from feddwa.data import cache, tables
from feddwa.data.dataset import Dataset, hold_out
from feddwa.data.files import Tree, first_line
from feddwa.data.images import SUFFIXES, decode, shape_of
from feddwa.errors import InputError


def load_own(path: str | Path, label: str = "label", client: str = "client") -> Dataset:
    """Data at a path. `label` and `client` name the columns of a table; the client column may be absent.

    A folder holds images as <class>/<image>, <client>/<class>/<image>, either of them under train/ and test/, or
    Parquet files train*.parquet and test*.parquet. An .npz file holds x, y and optionally client. Without a test part
    of their own, every client's rows (or all rows) are split 80/20, stratified by label, the same way every time.
    """
    path = Path(path)
    if path.is_dir():
        train = tables.split_files(path, "train")
        return _from_tables(path, train, tables.held_out_files(path), label, client) if train else _from_images(path)
    if path.suffix in (".parquet", ".csv"):
        return _from_tables(path, [path], [], label, client)
    if path.suffix == ".npz":
        return _from_npz(path)
    raise InputError(f"--dataset {path}: must be a folder or a file .npz, .parquet or .csv")


def assemble(
    name: str, x: np.ndarray, y: np.ndarray, client: np.ndarray | None = None, is_test: np.ndarray | None = None
) -> Dataset:
    """A dataset from arrays in any row order: labels and owners become numbers, test rows are put last."""
    if min(x.ndim, y.ndim) == 0 or y.dtype.kind not in "fiubUS" or (client is not None and client.ndim != 1):
        raise InputError(f"{name}: x and y must be arrays with a sample axis, y of numbers or names, client a list")
    if len(x) == 0 or not len(x) == len(y) == len(y if client is None else client):
        raise InputError(f"{name}: {len(x)} samples, {len(y)} labels, {len(y if client is None else client)} clients")
    targets, classes, class_names = _targets(name, y)
    owners = np.zeros(len(y), dtype=np.int64)
    if client is not None:
        owner_names, owners = np.unique(client, return_inverse=True)
        lonely = owner_names[np.bincount(owners) < 2]
        if lonely.size:
            raise InputError(f"{name}: client {lonely[0]!s} has 1 sample, must be at least 2 (train and test)")
    if is_test is None:
        strata = targets if targets.ndim == 1 else np.zeros(len(y))
        order, train_count = hold_out(owners, strata)
    else:
        order, train_count = np.argsort(is_test, kind="stable"), int((~is_test).sum())
    owner = None if client is None else owners[order]
    return Dataset(name, _samples(name, x)[order], targets[order], train_count, classes, (), (), class_names, owner)


def _targets(name: str, y: np.ndarray) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Class labels 0..C-1 with their names; tokens (n, length) and real numbers stay what they are."""
    if np.issubdtype(y.dtype, np.floating):
        if not np.isfinite(y).all():
            raise InputError(f"{name}: targets have missing or infinite values")
        return y.astype(np.float32), 0, ()
    if y.ndim > 1 and (y.dtype.kind not in "iub" or y.size == 0):
        raise InputError(f"{name}: y of type {y.dtype} and shape {y.shape}; rows of it must be whole numbers")
    if y.ndim > 1:
        return y.astype(np.int64), int(y.max()) + 1, ()
    values, labels = np.unique(y, return_inverse=True)
    return labels.astype(np.int64), len(values), tuple(str(value) for value in values)


def _samples(name: str, x: np.ndarray) -> np.ndarray:
    """Pixels (n, C, H, W) uint8, features float32 or tokens int64."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 3:
            return x[:, None]
        return x.transpose(0, 3, 1, 2) if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) else x
    if np.issubdtype(x.dtype, np.floating) or x.dtype in (np.uint8, np.bool_):
        values = x.astype(np.float32)
        if not np.isfinite(values).all():
            raise InputError(f"{name}: x has missing or infinite values")
        return values
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(np.int64)
    raise InputError(f"{name}: x of type {x.dtype}, must be numbers")


def _from_npz(path: Path) -> Dataset:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:  # NumPy, zip and zlib each have their own
        raise InputError(f"{path}: not a readable .npz file ({first_line(error)})") from None
    if not {"x", "y"} <= arrays.keys():
        raise InputError(f"{path}: must hold x and y (and optionally client), it has {', '.join(arrays) or 'nothing'}")
    return assemble(str(path), arrays["x"], arrays["y"], arrays.get("client"))


def _from_tables(path: Path, train: list[Path], test: list[Path], label: str, client: str) -> Dataset:
    parts = [_table_columns(file, label, client) for file in (*train, *test)]
    if len({part[0].shape[1:] for part in parts}) > 1 or len({part[2] is None for part in parts}) > 1:
        raise InputError(f"{path}: its files have different columns")
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    found = [part[2] for part in parts if part[2] is not None]
    owners = np.concatenate(found) if found else None
    rows = [len(part[1]) for part in parts]
    is_test = np.repeat(np.arange(len(parts)) >= len(train), rows) if test else None
    return assemble(str(path), x, y, owners, is_test)


def _table_columns(file: Path, label: str, client: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Samples, labels and owners of one file."""
    table = tables.read_table(file)
    names = table.column_names
    tables.pick(file, names, (label,), "label")
    if table.num_rows == 0 or table[label].null_count or (client in names and table[client].null_count):
        raise InputError(f"{file}: no rows, or rows without {label} or {client}")
    y = table[label].to_numpy()
    owners = table[client].to_numpy() if client in names else None
    images = [name for name in tables.IMAGE_COLUMNS if name in names]
    if images:
        encoded = list(tables.encoded_images(file, images[0]))
        return (
            decode(encoded, len(encoded), shape_of(*encoded[0])),
            _plain(y),
            None if owners is None else _plain(owners),
        )
    rest = table.drop_columns([name for name in (label, client) if name in names])
    return tables.features(file, rest), _plain(y), None if owners is None else _plain(owners)


def _plain(column: np.ndarray) -> np.ndarray:
    """Text comes out of a table as objects; as fixed-width text it can be sorted and compared."""
    return column.astype(str) if column.dtype == object else column


def _from_images(path: Path) -> Dataset:
    tree = Tree(path)
    name = path.resolve().name
    entry = f"own-{name}"  # never mistaken for a named dataset
    if (known := cache.find(entry, tree.fingerprint)) is not None:
        return known
    files = [file for file in tree.names if file.lower().endswith(SUFFIXES)]
    if not files:
        raise InputError(f"--dataset {path}: holds no images and no train*.parquet")
    parts = [file.split("/")[:-1] for file in files]
    is_test = None
    tops = {part[0] for part in parts if part}
    if "train" in tops and tops <= {"train", *tables.TEST_SPLITS}:
        is_test = np.array([part[0] != "train" for part in parts])
        parts = [part[1:] for part in parts]
    depths = {len(part) for part in parts}
    if depths not in ({1}, {2}):
        raise InputError(f"--dataset {path}: images must all be in <class>/ or all in <client>/<class>/ folders")
    client = np.array([part[0] for part in parts]) if depths == {2} else None
    shape = shape_of(tree.where(files[0]), tree.read(files[0]))
    x = decode(((tree.where(file), tree.read(file)) for file in files), len(files), shape)
    dataset = assemble(name, x, np.array([part[-1] for part in parts]), client, is_test)
    return cache.store(entry, tree.fingerprint, dataset)
