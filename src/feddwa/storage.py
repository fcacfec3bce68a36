"""Files that survive a crash: replaced whole or not at all, or growing by records with a checksum."""

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
    """A path beside `path` to write to; the file there takes the place of `path` when the enclosed code has ended.

    Where that code fails, `path` stays as it was.
    """
    temporary = path.with_name(path.name + ".part")
    yield temporary
    _take_place(temporary, path)


def write_whole(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> str:
    """Write a file, all of it or, if that is interrupted, nothing; its SHA-256. Pieces are written as they come."""
    content = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        return _write(temporary, [content] if isinstance(content, bytes) else content)


def write_named(folder: Path, content: Iterable[bytes | memoryview], name: Callable[[str], str]) -> Path:
    """As `write_whole`, for a file whose name depends on its SHA-256."""
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
    """Rename a file that is on the disk; the rename alone may be undone by a loss of power."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Mark(TypedDict):
    """How far a file had come, and the SHA-256 of all bytes up to there."""

    length: int
    sha256: str


EMPTY: Mark = {"length": 0, "sha256": hashlib.sha256().hexdigest()}


class GrowingFile:
    """A file to which records are appended. Its checksum is updated with each record, never computed anew."""

    def __init__(self, path: Path) -> None:
        """Open a file, new or old; an old one has to be checked and cut before anything is appended."""
        self.path = path
        self._file = path.open("ab")
        self._sum, self._length = hashlib.sha256(), 0

    def append(self, record: bytes) -> None:
        """Add a record and hand it to the system."""
        self._file.write(record)
        self._file.flush()
        self._sum.update(record)
        self._length += len(record)

    def mark(self) -> Mark:
        """Where the file stands now."""
        return {"length": self._length, "sha256": self._sum.hexdigest()}

    def check(self, mark: Mark) -> None:
        """Raise unless the bytes up to a mark are those that were written."""
        if self._file.tell() < mark["length"]:
            raise InputError(f"{self.path}: is shorter than when the checkpoint was made; restore it, or run anew")
        self._sum, self._length = sum_of(self.path, mark["length"]), mark["length"]
        if self.mark() != mark:
            raise InputError(
                f"{self.path}: is not what was written: one of its first {self._length} bytes has changed since the "
                "checkpoint was made; restore it, or run anew"
            )

    def cut(self, mark: Mark) -> None:
        """Go back to a mark that was checked."""
        self._file.truncate(mark["length"])

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """End it."""
        self._file.close()


def sum_of(path: Path, length: int | None = None) -> Any:
    """The running SHA-256 (a hashlib object) of a file, or of its first `length` bytes."""
    found, left = hashlib.sha256(), path.stat().st_size if length is None else length
    with path.open("rb") as file:
        while left > 0 and (piece := file.read(min(PIECE, left))):
            found.update(piece)
            left -= len(piece)
    return found
