"""Own data: folders of images, tables, arrays and Hugging Face datasets; read once, and stored in the cache."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from feddwa.data import cache, hub, tables
from feddwa.data.dataset import Dataset
from feddwa.data.files import TEST_SPLITS, TRAIN_SPLITS, Folder, SplitFolders, split_folders
from feddwa.data.images import SUFFIXES, Tell
from feddwa.data.options import DataOptions
from feddwa.data.own.folders import from_images
from feddwa.data.own.npz import from_npz
from feddwa.data.own.pictures import Scratch
from feddwa.data.own.plan import EVERYBODY, assemble
from feddwa.data.own.tabular import from_parts, text_columns
from feddwa.data.tables import Part
from feddwa.errors import InputError
from feddwa.plugins import HUB

__all__ = ["assemble", "load_own"]

Make = Callable[[Scratch], Dataset]
Owners = Callable[[Path], str]  # table -> its owner
_PIECE = re.compile(rf"({'|'.join((*TRAIN_SPLITS, *TEST_SPLITS))})(-|\.)", re.IGNORECASE)


def load_own(path: str | Path, options: DataOptions = EVERYBODY, tell: Tell = lambda done, total: None) -> Dataset:
    """Own data at a path, or in a repository hf:OWNER/NAME of the hub.

    A folder holds images as <class>/<image> or <client>/<class>/<image>, or tables; both may be under train/ and test/.
    An .npz file holds x (or tokens), y and optionally client, and the same names with the suffix _test. Without a test
    part, every client's rows (or all rows) are split 80/20, always in the same way. Data read before with these options
    are found in the cache, by the content of all files. tell: called with (done, total) while images are decoded.
    """
    options.check_options()
    if str(path).startswith(HUB):
        return _from_hub(str(path), options, tell)
    path = Path(path)
    if path.is_dir():
        return _from_folder(path, options, tell)
    if path.suffix.lower() == ".npz":
        return _kept(path.stem, str(path), _digest([path], options, path.parent), lambda _: from_npz(path, options))
    if tables.is_table(path):
        part = [path]
        return _kept(
            path.stem, str(path), _digest(part, options, path.parent),
            lambda scratch: from_parts(str(path), _read(part, options, None), [], options, scratch, tell),
        )  # fmt: skip
    valid = ", ".join((".npz", *tables.SUFFIXES))
    raise InputError(f"--dataset {path}: must be a folder or a file {valid}")


def _kept(short: str, name: str, key: str, make: Make) -> Dataset:
    """The dataset in the cache under this key, or made now."""
    entry = f"own-{short}"  # never mistaken for a named dataset
    known = cache.find(entry, key)
    return dataclasses.replace(cache.made(entry, key, make) if known is None else known, name=name)


def _digest(files: list[Path], options: DataOptions, root: Path) -> str:
    """16 hex digits that identify some files' bytes, their names below `root` and the options."""
    digest = hashlib.sha256(json.dumps(options.given()).encode())
    for file in files:
        try:
            with file.open("rb") as handle:
                content = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror})") from None
        digest.update(f"{file.relative_to(root)} {content} ".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _from_folder(path: Path, options: DataOptions, tell: Tell) -> Dataset:
    short = path.resolve().name
    if hub.is_saved(path):
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return _kept(short, str(path), _digest(files, options, path), _from_saved(str(path), path, options, tell))
    folder = Folder(path, (*SUFFIXES, *tables.SUFFIXES))
    images = [file for file in folder.names if file.lower().endswith(SUFFIXES)]
    files = [path / name for name in folder.names if name not in images]
    train, test = _table_files(path, files, images)
    if train:
        owners = _owners(train)
        dataset = _kept(
            short, str(path), _digest([*train, *test], options, path),
            lambda scratch: from_parts(
                str(path), _read(train, options, owners), _read(test, options, owners), options, scratch, tell
            ),
        )  # fmt: skip
        return _noted(folder.passed_over(file.relative_to(path).as_posix() for file in (*train, *test)), dataset)
    if not images:
        raise InputError(f"--dataset {path}: holds no images and no tables ({', '.join(tables.SUFFIXES)})")
    key = hashlib.sha256(f"{folder.content_key(images)} {json.dumps(options.given())}".encode()).hexdigest()[:16]
    dataset = _kept(short, str(path), key, lambda scratch: from_images(folder, images, options, scratch, tell))
    return _noted(folder.passed_over(images), dataset)


def _table_files(path: Path, files: list[Path], images: list[str]) -> tuple[list[Path], list[Path]]:
    """Training and test files: by name, by folders train/ and test/, or all files if there are no images."""
    if not files:
        return [], []
    train = tables.split_files(path, "train", tables.SUFFIXES)
    if train or images:
        return train, tables.held_out_files(path, tables.SUFFIXES) if train else []
    tops = {file: file.relative_to(path).parts[0] for file in files}
    split = split_folders(path, tops.values()) or SplitFolders("", None)
    train = [file for file, top in tops.items() if top == split.train] if split.train else files
    return train, [file for file, top in tops.items() if top == split.test]


def _read(files: list[Path], options: DataOptions, owners: Owners | None) -> list[Part]:
    """The tables, each with the client from `owners`."""
    parts = [tables.read_part(file, text_columns(options)) for file in files]
    if owners is None:
        return parts
    return [part._replace(owner=owners(file)) for part, file in zip(parts, files, strict=True)]


def _owners(files: list[Path]) -> Owners | None:
    """The function from a table to its owner; None if the tables are numbered parts of one.

    A client is named after its file, or after its folder if all file names are those of parts, as in
    <client>/train.csv.
    """
    pieces = all(_PIECE.match(file.name) or "-of-" in file.name for file in files)
    if len({file.parent for file in files} if pieces else files) < 2:
        return None
    if pieces:
        return lambda file: file.parent.name
    alike = len({file.stem for file in files}) < len(files)
    return lambda file: f"{file.parent.name}/{file.stem}" if alike else file.stem


def _from_saved(where: str, path: Path, options: DataOptions, tell: Tell) -> Make:
    def make(scratch: Scratch) -> Dataset:
        train, test, notes = hub.parts_of(where, hub.load_saved(path))
        return _noted(notes, from_parts(where, train, test, options, scratch, tell))

    return make


def _noted(notes: list[str], dataset: Dataset) -> Dataset:
    """The dataset with further notes before its own."""
    return dataclasses.replace(dataset, notes=(*notes, *dataset.notes))


def _from_hub(name: str, options: DataOptions, tell: Tell) -> Dataset:
    found = hub.load_remote(name)
    train, test, notes = hub.parts_of(name, found)
    key = hashlib.sha256(f"{hub.fingerprint(found)} {json.dumps(options.given())}".encode()).hexdigest()[:16]

    def make(scratch: Scratch) -> Dataset:
        return _noted(notes, from_parts(name, train, test, options, scratch, tell))

    return _kept(name.rpartition("/")[2], name, key, make)
