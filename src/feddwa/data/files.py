"""Folders and archives with a common interface: names in a fixed order, and their bytes."""

import gzip
import hashlib
import json
import os
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from feddwa.errors import InputError, counted, one_line

# Exceptions of the unpackers for invalid bytes; RuntimeError: an encrypted or unknown kind of zip member.
_UNREADABLE = (OSError, EOFError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile)

LONGEST = 200  # characters of a foreign error message: some quote half a file
DEEPEST = 3  # depth of folders of own data: <split>/<client>/<class>
OTHERS = 1000  # largest number of ignored files; a folder with more is not a folder of data
TRAIN_SPLITS = ("train", "training")  # names of folders, files and marks, in lower case
TEST_SPLITS = ("test", "testing", "val", "valid", "validation")  # the first existing one is the test part
_HIDDEN = (".", "__MACOSX")
_LEFT_BY_WINDOWS = ("thumbs.db", "desktop.ini")


def first_line(error: Exception) -> str:
    """An exception's message, printable and short enough for another message."""
    line = one_line((str(error).splitlines() or [type(error).__name__])[0])
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


class SplitFolders(NamedTuple):
    """The folders of a dataset with its training and its test part."""

    train: str
    test: str | None  # None: a part of the training samples is held out


def split_folders(path: Path, tops: Iterable[str]) -> SplitFolders | None:
    """The training and test folders among `tops`, by name; None if these are clients or classes."""
    known = {top.lower(): top for top in tops}
    train = next((known[name] for name in TRAIN_SPLITS if name in known), None)
    test = next((known[name] for name in TEST_SPLITS if name in known), None)
    strange = [top for name, top in known.items() if top not in (train, test) and name not in TEST_SPLITS]
    if train is None or (test is None and strange):
        return None
    if strange:
        raise InputError(
            f"--dataset {path}: has {strange[0]} beside {train} and {test}, which are the training and the test part; "
            "move it elsewhere"
        )
    return SplitFolders(train, test)


class Tree:
    """The files under `path`, which is a folder or an archive; names are relative, with forward slashes, sorted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def where(self, name: str) -> str:
        """The file's name in errors."""
        return f"{self.path}/{name}"

    @cached_property
    def names(self) -> list[str]:
        """All files of the tree, without hidden ones."""
        found = [name for name, _, _ in self._listing] if self._archive is None else list(self._archive)
        return sorted(name for name in found if not any(part.startswith(_HIDDEN) for part in name.split("/")))

    def read(self, name: str) -> bytes:
        """The bytes of a file; .gz files are unpacked."""
        try:
            data = (self.path / name).read_bytes() if self._archive is None else self._member(name)
            return gzip.decompress(data) if name.endswith(".gz") else data
        except _UNREADABLE as error:
            raise InputError(
                f"{self.where(name)}: cannot be read, truncated or damaged ({first_line(error)})"
            ) from None

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with any file (name, size, modification time), but not with the tree's location."""
        if self.path.is_file():
            status = self.path.stat()
            listing = [(self.path.name, status.st_size, status.st_mtime_ns)]
        else:
            listing = self._listing
        return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:16]

    @cached_property
    def _listing(self) -> list[tuple[str, int, int]]:
        """(name, bytes, time of change) of every file in the folder."""
        found = []
        for folder, _, files in os.walk(self.path):
            for file in files:
                status = os.stat(os.path.join(folder, file))
                name = Path(folder, file).relative_to(self.path).as_posix()
                found.append((name, status.st_size, status.st_mtime_ns))
        return sorted(found)

    @cached_property
    def _archive(self) -> dict[str, bytes | None] | None:
        """Members of the archive, None for a folder. A zip's are read on demand, a tar's, without index, at once."""
        if self.path.is_dir():
            return None
        try:
            if zipfile.is_zipfile(self.path):
                with zipfile.ZipFile(self.path) as archive:
                    return {info.filename: None for info in archive.infolist() if not info.is_dir()}
            with tarfile.open(self.path) as tar:
                return {m.name: file.read() for m in tar if m.isfile() and (file := tar.extractfile(m)) is not None}
        except _UNREADABLE as error:
            raise InputError(f"{self.path}: not a readable zip or tar archive ({first_line(error)})") from None

    def _member(self, name: str) -> bytes:
        content = (self._archive or {})[name]
        return self._zip.read(name) if content is None else content

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path)


class Folder(Tree):
    """A folder of own data: its files with given suffixes, with limits on depth and number."""

    def __init__(self, path: Path, suffixes: tuple[str, ...]) -> None:
        super().__init__(path)
        self._suffixes = suffixes
        self.others: list[str] = []  # files without these suffixes, once `names` are known

    @cached_property
    def names(self) -> list[str]:
        """Files with the suffixes, or an error where the folder is deeper or fuller than a folder of data is."""
        found = []
        self.others = []
        for name in self._walk("", 0):
            if name.lower().endswith(self._suffixes):
                found.append(name)
            elif name.rpartition("/")[2].lower() not in _LEFT_BY_WINDOWS:
                self.others.append(name)
            if len(self.others) > OTHERS:
                raise InputError(
                    f"--dataset {self.path}: holds more than {OTHERS:,} files that are no data; give the folder that "
                    "holds the data alone"
                )
        return sorted(found)

    def passed_over(self, used: Iterable[str]) -> list[str]:
        """A note on ignored files: unsupported photo formats, spreadsheets, descriptions."""
        others = [*self.others, *(set(self.names) - set(used))]
        kinds = Counter(PurePosixPath(name).suffix or "without a suffix" for name in sorted(others))
        told = ", ".join(f"{kind} ({count:,})" for kind, count in kinds.most_common())
        return [f"{counted(len(others), 'file')} passed over: {told}"] if others else []

    def content_key(self, names: list[str]) -> str:
        """16 hex digits that identify the names and bytes of some files."""
        digest = hashlib.sha256()
        for name in names:
            data = self.read(name)
            digest.update(f"{len(name)} {len(data)} ".encode() + os.fsencode(name))
            digest.update(data)
        return digest.hexdigest()[:16]

    def _walk(self, folder: str, depth: int) -> Iterator[str]:
        """The regular files below a folder, its own first; hidden ones are left out."""
        try:
            with os.scandir(self.path / folder) as listing:
                entries = sorted((each for each in listing if not each.name.startswith(_HIDDEN)), key=lambda e: e.name)
        except OSError as error:
            raise InputError(f"--dataset {self.path}: {folder or 'it'} cannot be read ({error.strerror})") from None
        inner = []
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError as error:  # such as a link to an unreadable place
                raise InputError(f"--dataset {self.path}: {name} cannot be read ({error.strerror})") from None
            if is_folder:
                inner.append(name)
            elif is_file or not name.lower().endswith(self._suffixes):
                yield name
            else:  # a pipe would block, and a link may be broken
                raise InputError(f"--dataset {self.path}: {name} is not a regular file")
        if inner and depth == DEEPEST:
            raise InputError(
                f"--dataset {self.path}: {inner[0]} is too deep; images are in <class>/ or <client>/<class>/ folders, "
                "below train/ and test/ where they are split"
            )
        for name in inner:
            yield from self._walk(name, depth + 1)
