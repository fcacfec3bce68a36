"""Storage of the rows of all N clients (`--state`): on the device, in host memory or on disk.

Rows are those of every client's memory, and parts of the server's state that `setup` makes by repeating a model for all
clients. Off the device they are `StoredRows`: the algorithm indexes them like any stack, the client side loads one
block at a time onto the device, and the changes of a round are written at its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from feddwa import checkpoint
from feddwa.engine import Parts, Stack
from feddwa.engine.rows import described, loaded, take, to_devices
from feddwa.engine.stored import RowStore, StoredRows

KINDS = ("device", "host", "disk")
SERVER, MEMORY, ROWS = "server", "memory", "rows"  # keys of a checkpoint's tree; ROWS: marks of stored rows


@dataclass
class Placement:
    """The storage of all clients' rows; a side is SERVER or MEMORY."""

    kind: str = "device"
    folder: Path | None = None  # of the files with rows; None: temporary files
    stores: dict[str, RowStore] = field(default_factory=dict)  # "side/part" -> its rows

    def move(self, folder: Path) -> None:
        """Move the files with rows to a folder."""
        self.folder = folder
        for name, store in self.stores.items():
            store.file.move(folder / _file_name(name))

    def place(self, side: str, parts: Parts, clients: int) -> Parts:
        """A side before the first round, with the rows of all clients moved to their storage."""
        found = dict(parts)
        for part, stack in parts.items():
            if self.kind != "device" and has_rows(side, stack, clients):
                store = self.stores[f"{side}/{part}"] = RowStore(
                    stack, self._path(f"{side}/{part}"), in_memory=self.kind == "host"
                )
                found[part] = store.stack()
        return found

    def written_back(self, side: str, parts: Parts) -> Parts:
        """A side after a round, with new rows written to their store. All reads precede the writes."""
        if not self.stores:
            return parts
        found, new = dict(parts), list[tuple[RowStore, Tensor, Stack]]()
        for part, stack in parts.items():
            store = self.stores.get(f"{side}/{part}")
            if store is None or not store.holds(described(stack)):
                self.stores.pop(f"{side}/{part}", None)
                found |= loaded({part: stack})
                continue
            found[part] = everybody = store.stack()
            if isinstance(stack, StoredRows) and stack.is_all_of(store):
                new += [(store, rows, loaded({part: values})[part]) for rows, values in stack.changes]
            else:
                new.append((store, everybody.ids, loaded({part: stack})[part]))
        for store, rows, values in new:
            store.write(rows, values)
        return found

    def tree(self, side: str, parts: Parts) -> Parts:
        """The parts of a side that a checkpoint holds itself: those that are in no store."""
        return {part: stack for part, stack in parts.items() if f"{side}/{part}" not in self.stores}

    def marks(self) -> Parts:
        """A checkpoint's record of the stores."""
        return {name: store.mark() for name, store in self.stores.items()}

    def restored(
        self, sides: Mapping[str, Parts], tree: Mapping[str, Parts], older: Sequence[Mapping[str, Parts]]
    ) -> dict[str, Parts]:
        """The sides of a checkpoint, whatever the storage was when it was made.

        sides: before the first round; tree: of the checkpoint; older: trees of other checkpoints to keep. Raises
        DamagedRows, or an OSError, before anything has changed.
        """
        marks, rows = tree.get(ROWS, {}), dict[str, RowStore]()
        for name, mark in marks.items():
            side, _, part = name.partition("/")
            rows[name] = self.stores.get(name) or RowStore(sides[side][part], self._path(name), in_memory=True)
            rows[name].file.check(mark)
        for name, store in rows.items():
            store.adopt(marks[name], [each[ROWS][name] for each in older if name in each.get(ROWS, {})])
        return {
            side: {part: self._restored(f"{side}/{part}", stack, rows, tree[side]) for part, stack in parts.items()}
            for side, parts in sides.items()
        }

    def _restored(self, name: str, now: Stack, rows: Mapping[str, RowStore], tree: Parts) -> Stack:
        """A part; rows: the checkpoint's stores; tree: the parts in the checkpoint itself."""
        store, part = self.stores.get(name), name.partition("/")[2]
        if name in rows:
            own = rows[name].stack()
            return own if store else own.loaded()
        if store is not None and store.holds(tree[part]):
            store.write(store.stack().ids, tree[part])
            return store.stack()
        self.stores.pop(name, None)
        like = loaded({part: take(now, torch.zeros(1, dtype=torch.int64)) if isinstance(now, StoredRows) else now})
        return to_devices({part: tree[part]}, like)[part]

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / _file_name(name)


def _file_name(name: str) -> str:
    return quote(name, safe="") + checkpoint.ROWS


def row_bytes(sides: Mapping[str, Parts], clients: int) -> int:
    """Bytes of one client's rows in all parts of a state that can be stored."""
    stacks = [own for side, parts in sides.items() for own in parts.values() if has_rows(side, own, clients)]
    return sum(value[0].numel() * value.element_size() for stack in stacks for value in stack.values())


def has_rows(side: str, stack: Stack, clients: int) -> bool:
    """Whether a part from `setup` has a row for each of N clients; on the server, a model repeated N times."""
    rows = bool(stack) and all(value.ndim and len(value) == clients for value in stack.values())
    return rows and (side == MEMORY or all(value.stride(0) == 0 for value in stack.values()))
