"""Files that survive a crash: replaced atomically, or growing by records with a checksum."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from feddwa.errors import InputError

PIECE = 1 << 20  # bytes read at a time


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; the file written there replaces `path` at the end of the enclosed code.

    If that code fails, `path` is unchanged.
    """
    temporary = path.with_name(path.name + ".part")
    yield temporary
    _take_place(temporary, path)


def write_whole(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> str:
    """Write a file atomically; returns its SHA-256. Blocks are written as they come."""
    content = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        return _write(temporary, [content] if isinstance(content, bytes) else content)


def write_named(folder: Path, content: Iterable[bytes | memoryview], name: Callable[[str], str]) -> Path:
    """The same for a file whose name depends on its SHA-256."""
    temporary = folder / "next.part"
    path = folder / name(_write(temporary, content))
    _take_place(temporary, path)
    return path


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    found = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            found.update(piece)
            file.write(piece)
    return found.hexdigest()


def _take_place(temporary: Path, path: Path) -> None:
    """Rename a synced file; without a sync of the folder, a power failure could undo the rename."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Mark(TypedDict):
    """The length of a file, and the SHA-256 of its bytes up to there."""

    length: int
    sha256: str


def is_mark(value: Any) -> bool:
    """Whether a value that was read from a file is a mark."""
    if not isinstance(value, dict) or value.keys() != Mark.__annotations__.keys():
        return False
    return type(value["length"]) is int and value["length"] >= 0 and isinstance(value["sha256"], str)


EMPTY: Mark = {"length": 0, "sha256": hashlib.sha256().hexdigest()}


class GrowingFile:
    """A file to which records are appended. Its checksum is updated with each record."""

    def __init__(self, path: Path) -> None:
        """Open a new or existing file; an existing one must be checked and cut before appending."""
        self.path = path
        self._file = path.open("ab")
        self._sum, self._length = hashlib.sha256(), 0

    def append(self, record: bytes) -> None:
        """Append a record and flush it to the system."""
        self._file.write(record)
        self._file.flush()
        self._sum.update(record)
        self._length += len(record)

    def mark(self) -> Mark:
        """The current mark."""
        return {"length": self._length, "sha256": self._sum.hexdigest()}

    def check(self, mark: Mark) -> None:
        """Raise unless the bytes up to a mark are unchanged."""
        if self._file.tell() < mark["length"]:
            raise InputError(f"{self.path}: is shorter than when the checkpoint was made; restore it, or run anew")
        self._sum, self._length = sum_of(self.path, mark["length"]), mark["length"]
        if self.mark() != mark:
            raise InputError(
                f"{self.path}: is not what was written: one of its first {self._length} bytes has changed since the "
                "checkpoint was made; restore it, or run anew"
            )

    def cut(self, mark: Mark) -> None:
        """Truncate to a mark that was checked."""
        self._file.truncate(mark["length"])

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def sum_of(path: Path, length: int | None = None) -> Any:
    """The running SHA-256 (a hashlib object) of a file, or of its first `length` bytes."""
    found, left = hashlib.sha256(), path.stat().st_size if length is None else length
    with path.open("rb") as file:
        while left > 0 and (piece := file.read(min(PIECE, left))):
            found.update(piece)
            left -= len(piece)
    return found
