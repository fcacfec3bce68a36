"""Own data: folders of images, tables, arrays and Hugging Face datasets; read once, and kept in the cache."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from feddwa.data import cache, hub, tables
from feddwa.data.dataset import Dataset
from feddwa.data.files import Folder
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


def load_own(path: str | Path, options: DataOptions = EVERYBODY, tell: Tell = lambda done, total: None) -> Dataset:
    """Own data at a path, or in a repository hf:OWNER/NAME of the hub.

    A folder holds images as <class>/<image> or <client>/<class>/<image>, or tables; either of them may stand under
    train/ and test/. An .npz file holds x (or tokens), y and optionally client, and the same with _test behind their
    names. Without a test part of their own, every client's rows (or all rows) are split 80/20, the same way every time.
    What was read once with these options is found in the cache, by the content of all files. tell: called with
    (done, total) while images are decoded.
    """
    options.check_options()
    if str(path).startswith(HUB):
        return _from_hub(str(path), options, tell)
    path = Path(path)
    if path.is_dir():
        return _from_folder(path, options, tell)
    if path.suffix == ".npz":
        return _kept(path.stem, str(path), _digest([path], options), lambda _: from_npz(path, options))
    if path.suffix in tables.SUFFIXES:
        part = [path]
        return _kept(
            path.stem, str(path), _digest(part, options),
            lambda scratch: from_parts(str(path), _read(part, options), [], options, scratch, tell),
        )  # fmt: skip
    valid = ", ".join((".npz", *tables.SUFFIXES))
    raise InputError(f"--dataset {path}: must be a folder or a file {valid}")


def _kept(short: str, name: str, key: str, make: Make) -> Dataset:
    """The dataset of the cache under this key, or made now."""
    entry = f"own-{short}"  # never mistaken for a named dataset
    known = cache.find(entry, key)
    return dataclasses.replace(cache.made(entry, key, make) if known is None else known, name=name)


def _digest(files: list[Path], options: DataOptions) -> str:
    """16 hex digits of the bytes of some files and of the options: the same exactly where both are the same."""
    digest = hashlib.sha256(json.dumps(options.given()).encode())
    for file in files:
        try:
            with file.open("rb") as handle:
                content = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror})") from None
        digest.update(f"{file.name} {content} ".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _from_folder(path: Path, options: DataOptions, tell: Tell) -> Dataset:
    short = path.resolve().name
    if hub.is_saved(path):
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return _kept(short, str(path), _digest(files, options), _from_saved(str(path), path, options, tell))
    folder = Folder(path, (*SUFFIXES, *tables.SUFFIXES))
    images = [file for file in folder.names if file.lower().endswith(SUFFIXES)]
    train, test = _table_files(path, [path / name for name in folder.names if name.endswith(tables.SUFFIXES)], images)
    if train:
        owned = _are_clients(train)
        return _kept(
            short, str(path), _digest([*train, *test], options),
            lambda scratch: from_parts(
                str(path), _read(train, options, owned), _read(test, options, owned), options, scratch, tell
            ),
        )  # fmt: skip
    if not images:
        raise InputError(f"--dataset {path}: holds no images and no tables ({', '.join(tables.SUFFIXES)})")
    name = f"own-{short}"
    key = hashlib.sha256(f"{folder.content_key(images)} {json.dumps(options.given())}".encode()).hexdigest()[:16]
    return _kept(short, name, key, lambda scratch: from_images(name, folder, images, options, scratch, tell))


def _table_files(path: Path, files: list[Path], images: list[str]) -> tuple[list[Path], list[Path]]:
    """Training and test files: by their names, by folders train/ and test/, or where there are no images all."""
    if not files:
        return [], []
    train = tables.split_files(path, "train", tables.SUFFIXES)
    if train or images:
        return train, tables.held_out_files(path, tables.SUFFIXES) if train else []
    tops = {file.relative_to(path).parts[0] for file in files}
    if "train" in tops and tops <= {"train", *tables.TEST_SPLITS}:
        train = [file for file in files if file.relative_to(path).parts[0] == "train"]
        return train, [file for file in files if file not in train]
    return files, []


def _read(files: list[Path], options: DataOptions, owned: bool = False) -> list[Part]:
    """The tables; owned: each of them is the client that it is named after."""
    parts = [tables.read_part(file, text_columns(options)) for file in files]
    if not owned:
        return parts
    alike = len({file.stem for file in files}) < len(files)
    names = [f"{file.parent.name}/{file.stem}" if alike else file.stem for file in files]
    return [part._replace(owner=name) for part, name in zip(parts, names, strict=True)]


def _are_clients(files: list[Path]) -> bool:
    """Whether several tables are those of several clients, and no numbered or named parts of one."""
    pieces = all(re.match(r"(train|test|val|valid|validation)(-|\.)", f.name) or "-of-" in f.name for f in files)
    return len(files) > 1 and not pieces


def _from_saved(where: str, path: Path, options: DataOptions, tell: Tell) -> Make:
    def make(scratch: Scratch) -> Dataset:
        train, test, notes = hub.parts_of(where, hub.load_saved(path))
        dataset = from_parts(where, train, test, options, scratch, tell)
        return dataclasses.replace(dataset, notes=(*notes, *dataset.notes))

    return make


def _from_hub(name: str, options: DataOptions, tell: Tell) -> Dataset:
    found = hub.load_remote(name)
    train, test, notes = hub.parts_of(name, found)
    key = hashlib.sha256(f"{hub.fingerprint(found)} {json.dumps(options.given())}".encode()).hexdigest()[:16]

    def make(scratch: Scratch) -> Dataset:
        dataset = from_parts(name, train, test, options, scratch, tell)
        return dataclasses.replace(dataset, notes=(*notes, *dataset.notes))

    return _kept(name.rpartition("/")[2], name, key, make)
