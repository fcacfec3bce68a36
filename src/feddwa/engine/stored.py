"""Rows of all clients outside the device: in host memory or in a file.

A store has one part of a state, name -> (N, *shape). It stores only rows that were written; the others are the initial
rows. `StoredRows` is the stack that algorithms see: it reads rows on access. `put` only records new rows, so that
tensors already read do not change; `RowStore.write` stores them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddwa.engine.places import NOWHERE, Bytes, HostRows, Place, RowFile
from feddwa.engine.rows import LazyRows, count, take
from feddwa.engine.types import Model, Stack

BLOCK = 1 << 26  # bytes per block when processing all rows


class RowStore:
    """The rows of N clients of one part of a state."""

    def __init__(self, initial: Stack, path: Path | None, in_memory: bool) -> None:
        """initial: (N, *shape), the initial rows; path: the file, None for a temporary one.

        in_memory: keep rows in host memory, and in the file for checkpoints alone.
        """
        self.clients = count(initial)
        self.like = {name: value[:1].to("meta") for name, value in initial.items()}
        self.devices = {name: value.device for name, value in initial.items()}
        widths = {name: value[0].numel() * value.element_size() for name, value in self.like.items()}
        self.width = sum(widths.values())
        self._first = Model({name: value[0].detach().clone() for name, value in initial.items()})
        self.file = RowFile(path, self.clients, widths)
        self._host = HostRows(self.clients, widths) if in_memory else None
        self._written = np.zeros(self.clients, bool)  # in memory
        self._unsaved = np.zeros(self.clients, bool)  # written in memory and not yet to the file
        if any(value.stride(0) for value in initial.values()):  # clients have different initial rows
            self.write(torch.arange(self.clients), initial)

    def stack(self) -> "StoredRows":
        """All rows."""
        return StoredRows(self, torch.arange(self.clients), tuple(self.like))

    def holds(self, stack: Stack) -> bool:
        """Whether a stack has all N rows of this store."""
        if stack.keys() != self.like.keys() or count(stack) != self.clients:
            return False
        return all((stack[name].shape[1:], stack[name].dtype) == (own.shape[1:], own.dtype) for name, own in
                   self.like.items())  # fmt: skip

    def read(self, ids: Tensor, names: Iterable[str]) -> Stack:
        """Rows of clients `ids` (k,) on their device, name -> (k, *shape)."""
        clients, names = ids.numpy(), set(names)
        there = (self.file.written if self._host is None else self._written)[clients]
        own = {name: value for name, value in self.like.items() if name in names}
        k = int(there.sum())
        pieces = {name: torch.empty(k, *value.shape[1:], dtype=value.dtype) for name, value in own.items()}
        place: Place = self._host or self.file
        place.read(clients[there], {name: as_bytes(value) for name, value in pieces.items()})
        values = {name: value.to(self.devices[name]) for name, value in pieces.items()}
        if there.all():
            return values
        places = torch.from_numpy(np.flatnonzero(there))
        return {
            name: self._first[name]
            .expand(len(ids), *value.shape[1:])
            .clone(memory_format=torch.contiguous_format)
            .index_copy_(0, places.to(value.device), value)
            for name, value in values.items()
        }

    def write(self, ids: Tensor, rows: Stack) -> None:
        """Replace the rows of clients `ids` (k,)."""
        for block in torch.arange(len(ids)).split(max(1, BLOCK // max(1, self.width))):
            clients, own = ids[block].numpy(), take(rows, block)
            found = {name: as_bytes(own[name].detach().cpu().contiguous()) for name in self.like}
            if self._host is None:
                self.file.write(clients, found)
            else:
                self._host.write(clients, found)
                self._written[clients] = self._unsaved[clients] = True

    def mark(self) -> Stack:
        """A checkpoint's record of this state; all rows are in the file afterwards."""
        if self._host is not None:
            for block in self._blocks(self._unsaved):
                self.file.write(block.numpy(), self._bytes_in_memory(block))
            self._unsaved[:] = False
        return self.file.mark()

    def adopt(self, mark: Stack, older: Sequence[Stack] = ()) -> None:
        """Restore a marked state; see RowFile."""
        self.file.adopt(mark, older)
        if self._host is None:
            return
        self._written, self._unsaved = self.file.written, np.zeros(self.clients, bool)
        for block in self._blocks(self._written):
            into = self._empty(len(block))
            self.file.read(block.numpy(), into)
            self._host.write(block.numpy(), into)

    def _blocks(self, which: np.ndarray) -> Sequence[Tensor]:
        ids = torch.from_numpy(np.flatnonzero(which))
        return ids.split(max(1, BLOCK // max(1, self.width))) if len(ids) else ()

    def _bytes_in_memory(self, ids: Tensor) -> Bytes:
        assert self._host is not None
        into = self._empty(len(ids))
        self._host.read(ids.numpy(), into)
        return into

    def _empty(self, k: int) -> Bytes:
        return {
            name: np.empty((k, value[0].numel() * value.element_size()), np.uint8) for name, value in self.like.items()
        }


@dataclass(frozen=True, eq=False)
class StoredRows(LazyRows):
    """Rows of a store as a stack: row i is that of client ids[i] unless replaced by `put`."""

    store: RowStore
    ids: Tensor  # (m,) int64, on the CPU
    names: tuple[str, ...]
    changes: tuple[tuple[Tensor, Stack], ...] = ()  # (rows (k,), their replacements), the last one counts

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self._read([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def rows(self) -> int:
        """m."""
        return len(self.ids)

    def take(self, index: Tensor) -> Stack:
        """See LazyRows."""
        index = index.cpu()
        own = ((_places(rows, index, self.rows), new) for rows, new in self.changes)
        changes = tuple((places, take(new, found)) for (places, found), new in own if len(places))
        return replace(self, ids=self.ids[index], changes=changes)

    def put(self, index: Tensor, new: Stack) -> Stack:
        """See LazyRows."""
        return replace(self, changes=(*self.changes, (index.cpu(), new)))

    def only(self, names: Iterable[str]) -> Stack:
        """See LazyRows."""
        return replace(self, names=tuple(names))

    def described(self) -> Stack:
        """See LazyRows."""
        return {name: self.store.like[name].expand(self.rows, *self.store.like[name].shape[1:]) for name in self.names}

    def loaded(self) -> Stack:
        """See LazyRows."""
        return self._read(self.names)

    def is_all_of(self, store: RowStore) -> bool:
        """Whether these are all rows of a store, apart from changes."""
        return self.store is store and set(self.names) == set(store.like) and self.rows == store.clients

    def _read(self, names: Iterable[str]) -> Stack:
        names = tuple(names)
        found = self.store.read(self.ids, names)
        if self.changes:
            found = {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}
        for rows, new in self.changes:
            for name, value in found.items():
                value.index_copy_(0, rows.to(value.device), new[name].to(value))
        return {name: found[name] for name in names}


def _places(rows: Tensor, index: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """For rows (k,) of m: their positions in an index, and which of the k occur there."""
    known = torch.full((m,), NOWHERE)
    known[rows] = torch.arange(len(rows))
    places = (known[index] != NOWHERE).nonzero().flatten()
    return places, known[index[places]]


def as_bytes(value: Tensor) -> np.ndarray:
    """A contiguous tensor (k, *shape) as (k, bytes of a row), sharing memory."""
    return value.reshape(len(value), value.shape[1:].numel()).view(torch.uint8).numpy()
