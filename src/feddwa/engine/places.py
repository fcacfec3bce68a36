"""Storage of rows as bytes: in host memory, or in a file that checkpoints refer to.

A file is a sequence of slots of one row each. A row is never written to a slot of a marked state (`RowFile.mark`), so a
checkpoint needs only the slot and the checksum of every row, and a round writes only the rows that it has changed.
"""

import errno
import mmap
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from feddwa.engine.types import Stack

Bytes = Mapping[str, np.ndarray]  # name -> (k, bytes of a row) uint8
MARKS = 3  # states that can be restored: checkpoints on disk, and the one being written
MOST = 1000  # memory blocks per system call
NOWHERE = -1  # slot of an unwritten row


class DamagedRows(ValueError):
    """Rows that differ from what was written."""


class Place(Protocol):
    """Storage of rows as bytes."""

    def read(self, ids: np.ndarray, into: Bytes) -> None:
        """Fill `into` with the rows of clients `ids` (k,)."""

    def write(self, ids: np.ndarray, rows: Bytes) -> None:
        """Store the rows of clients `ids` (k,)."""


class HostRows:
    """Rows in host memory, which is allocated as rows are written."""

    def __init__(self, clients: int, widths: Mapping[str, int]) -> None:
        """widths: name -> bytes of a row."""
        self._rows = {
            name: np.frombuffer(mmap.mmap(-1, max(1, clients * width)), np.uint8, clients * width).reshape(clients, -1)
            if width
            else np.zeros((clients, 0), np.uint8)
            for name, width in widths.items()
        }

    def read(self, ids: np.ndarray, into: Bytes) -> None:
        """See Place."""
        for name, rows in into.items():
            np.take(self._rows[name], ids, axis=0, out=rows)

    def write(self, ids: np.ndarray, rows: Bytes) -> None:
        """See Place."""
        for name, own in rows.items():
            self._rows[name][ids] = own


class RowFile:
    """Rows in a file, which is created by the first write."""

    def __init__(self, path: Path | None, clients: int, widths: Mapping[str, int]) -> None:
        """path: None for a temporary file; widths: name -> bytes of a row."""
        self.path, self._widths = path, widths
        self._width = sum(widths.values())
        self._slots = np.full(clients, NOWHERE, np.int64)
        self._sums = np.zeros(clients, np.int64)  # CRC-32 of each row
        self._marked: list[np.ndarray] = []  # slots of marked states, newest last
        self._file = -1

    @property
    def written(self) -> np.ndarray:
        """(N,) bool: clients whose rows have been written."""
        return np.not_equal(self._slots, NOWHERE)

    def move(self, path: Path) -> None:
        """Use this file from now on."""
        before, self._file, self.path = self._file, -1, path
        if before != -1:
            self._open()
            with os.fdopen(os.dup(before), "rb") as old, path.open("wb") as new:
                old.seek(0)
                shutil.copyfileobj(old, new)

    def read(self, ids: np.ndarray, into: Bytes) -> None:
        """See Place. Reads only the names of `into`, which must be in storage order."""
        for start, names in self._runs(into):
            pieces = [into[name] for name in names]
            for place, slot in enumerate(self._slots[ids].tolist()):
                _all(os.preadv, self._open(), [piece[place] for piece in pieces], slot * self._width + start)

    def write(self, ids: np.ndarray, rows: Bytes) -> None:
        """See Place. Never overwrites a slot of a marked state."""
        slots = self._free(ids)
        for place, slot in enumerate(slots.tolist()):
            pieces, total = [own[place] for own in rows.values()], 0
            for piece in pieces:
                total = zlib.crc32(piece.data, total)
            self._sums[ids[place]] = total
            _all(os.pwritev, self._open(), pieces, slot * self._width)
        self._slots[ids] = slots

    def mark(self) -> Stack:
        """A checkpoint's record of this state; its rows stay until MARKS later states are marked."""
        self._marked = [*self._marked, self._slots.copy()][-MARKS:]
        return {"slots": torch.from_numpy(self._slots.copy()), "sums": torch.from_numpy(self._sums.copy())}

    def check(self, mark: Stack) -> None:
        """Raise DamagedRows if the rows of a marked state differ from what was written."""
        row = np.empty(self._width, np.uint8)
        slots, sums = (mark[name].tolist() for name in ("slots", "sums"))
        for client, slot in enumerate(slots):
            if slot != NOWHERE:
                found = os.preadv(self._open(), [row.data], slot * self._width)
                if found < self._width or zlib.crc32(row.data) != sums[client]:
                    raise DamagedRows(f"{self.path}: the row of client {client} is not what was written")

    def adopt(self, mark: Stack, older: Sequence[Stack] = ()) -> None:
        """Restore a marked state that was checked; older: further states whose rows are kept."""
        self._slots, self._sums = (mark[name].numpy().copy() for name in ("slots", "sums"))
        self._marked = [each["slots"].numpy() for each in (*older, mark)]

    def _free(self, ids: np.ndarray) -> np.ndarray:
        """(k,) slots for new rows of clients `ids`, used neither by other clients' rows nor by a marked state."""
        staying = np.delete(self._slots, ids)
        used = np.unique(np.concatenate([staying, *self._marked]))
        used = used[used != NOWHERE]
        free = np.setdiff1d(np.arange(len(used) + len(ids)), used, assume_unique=True)
        return free[: len(ids)]

    def _runs(self, asked: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """(first byte in a row, names) for runs of adjacent names."""
        wanted, start, run = set(asked), 0, list[str]()
        for name, width in self._widths.items():
            if name in wanted:
                run.append(name)
            elif run:
                yield start - sum(self._widths[each] for each in run), run
                run = []
            start += width
        if run:
            yield start - sum(self._widths[each] for each in run), run

    def _open(self) -> int:
        if self._file < 0:
            if self.path is None:
                with tempfile.TemporaryFile() as file:
                    self._file = os.dup(file.fileno())
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._file)
        return self._file


def _all(move: Callable[[int, list[Any], int], int], file: int, pieces: Sequence[np.ndarray], place: int) -> None:
    """Read or write adjacent blocks, from position `place` of a file."""
    for start in range(0, len(pieces), MOST):
        group = pieces[start : start + MOST]
        due = sum(piece.nbytes for piece in group)
        if move(file, [piece.data for piece in group], place) < due:
            raise OSError(errno.EIO, "a row was read or written only in part; is the disk full?")
        place += due
