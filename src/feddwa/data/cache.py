"""Decoded datasets as raw arrays on disk: written once, checked and memory-mapped afterwards.

An entry is a folder `<name>-<key>` with one .npy file per array and a manifest. It is written under another name and
renamed in one step, so that readers see all of it or nothing; if two processes decode the same data, the second uses
the first one's entry. Images are decoded directly into the final file.
"""

import dataclasses
import json
import logging
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.form import InputForm
from feddwa.errors import InputError

VERSION = 5  # increase it when the decoded form changes; old entries are then ignored
MANIFEST = "manifest.json"
SCRATCH = ".scratch.npy"  # suffix of unfinished arrays on disk
log = logging.getLogger(__name__)


def root() -> Path:
    """FEDDWA_CACHE, or the user's cache folder."""
    if own := os.environ.get("FEDDWA_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feddwa"


def find(name: str, key: str | None = None) -> Dataset | None:
    """The valid entry of a dataset with this key, or the newest with any; a damaged entry is removed."""
    pattern = re.escape(_slug(name)) + "-" + (key or "[0-9a-f]{16}")
    entries = [entry for entry in root().glob("*") if re.fullmatch(pattern, entry.name)]
    for entry in sorted(entries, key=lambda e: e.stat().st_mtime, reverse=True):
        try:
            return _read(entry)
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("cache entry %s is damaged and will be made anew (%s)", entry, error)
            shutil.rmtree(entry, ignore_errors=True)
    return None


def entry(name: str, key: str) -> Path:
    """The folder of an entry, existing or not."""
    return root() / f"{_slug(name)}-{key}"


def is_entry(path: Path) -> bool:
    """Whether a path is the folder of an entry."""
    return (path / MANIFEST).is_file()


def read(path: Path) -> Dataset:
    """The dataset of the entry in a folder, memory-mapped."""
    try:
        return _read(path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: this copy of a dataset is damaged ({error}); remove it, and give the data again"
        ) from None


def store(name: str, key: str, dataset: Dataset) -> Dataset:
    """Write a dataset and return it memory-mapped."""
    return made(name, key, lambda _: dataset)


def made(name: str, key: str, make: Callable[[Callable[[tuple[int, ...]], np.ndarray]], Dataset]) -> Dataset:
    """Write the dataset from `make`, and return it memory-mapped.

    make: receives a function from a shape to an empty uint8 array on disk, which is kept if it becomes `x`.
    """
    final = entry(name, key)
    try:
        root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=root(), ignore_cleanup_errors=True) as folder:
            _write(make(partial(_scratch, Path(folder))), Path(folder))
            try:
                Path(folder).rename(final)
            except OSError:
                if not final.is_dir():  # taken by another process is fine, anything else is not
                    raise
    except OSError as error:
        raise InputError(f"cache {root()}: cannot write ({error}); set FEDDWA_CACHE to a writable folder") from None
    return _read(final)


def _scratch(folder: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An empty array on disk with reserved space: a full disk raises an error now instead of a signal later."""
    with tempfile.NamedTemporaryFile(suffix=SCRATCH, dir=folder, delete=False) as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, file.tell() + int(np.prod(shape)))
        else:
            file.truncate(file.tell() + int(np.prod(shape)))
    array: np.ndarray = np.load(file.name, mmap_mode="r+")
    return array


def _write(dataset: Dataset, folder: Path) -> None:
    values = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(dataset) if field.init}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    for name, array in arrays.items():
        file = Path(str(getattr(array, "filename", "")))
        if file.parent == folder and np.load(file, mmap_mode="r").shape == array.shape:
            array.flush()  # type: ignore[attr-defined]  # it is memory-mapped
            file.rename(folder / f"{name}.npy")
        else:
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    for left in folder.glob(f"*{SCRATCH}"):
        left.unlink()
    facts = {name: value for name, value in values.items() if name not in arrays}
    facts["form"] = None if dataset.form is None else dataset.form.as_json()
    sums = {name: _crc32(array) for name, array in arrays.items()}
    manifest = {"version": VERSION, "facts": facts, "crc32": sums}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _read(entry: Path) -> Dataset:
    """The dataset of an entry; ValueError if an array is damaged."""
    manifest: dict[str, Any] = json.loads((entry / MANIFEST).read_text())
    if manifest["version"] != VERSION:
        raise ValueError(f"version {manifest['version']}")
    arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r") for name in manifest["crc32"]}
    for name, array in arrays.items():
        if _crc32(array) != manifest["crc32"][name]:
            raise ValueError(f"checksum of {name}.npy")
    facts = {name: tuple(value) if isinstance(value, list) else value for name, value in manifest["facts"].items()}
    form = manifest["facts"]["form"]
    values: dict[str, Any] = {**facts, **arrays, "form": form and InputForm.from_json(form)}
    return Dataset(**values)


def _crc32(array: np.ndarray) -> int:
    """Checksum of the values, at about a gigabyte a second."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
