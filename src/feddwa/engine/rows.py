"""Rows are clients: the vocabulary of stacked models.

A *row* is one model, a mapping from parameter name to tensor. *Rows* are many models: the same mapping with a leading
client axis, `(m, *shape)`. A *message* or a *state* is a mapping from part name ("model", "guidance") to rows. Nothing
here mutates its arguments.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Row = Mapping[str, Tensor]  # name -> (*shape)
Rows = Mapping[str, Tensor]  # name -> (m, *shape)
State = Mapping[str, Rows]  # part -> name -> (m, *shape): messages, client memory, server state


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, in ascending order."""

    ids: Tensor  # (m,) int64, on the CPU: who takes part
    sizes: Tensor  # (m,) int64, on the CPU: training samples of each
    round: int  # 1 is the first

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Picked(Mapping[str, Tensor]):
    """Rows of a stack by reference: row i is stack[index[i]], and exists only while somebody looks at it."""

    stack: Rows  # (n, *shape)
    index: Tensor  # (m,) int64, on the CPU

    def __getitem__(self, name: str) -> Tensor:
        return self.stack[name].index_select(0, self.index.to(self.stack[name].device))

    def __iter__(self) -> Iterator[str]:
        return iter(self.stack)

    def __len__(self) -> int:
        return len(self.stack)


def repeat(row: Row, m: int) -> Rows:
    """The same model m times, as views that share memory."""
    return {name: value.expand(m, *value.shape) for name, value in row.items()}


def take(rows: Rows, index: Tensor) -> Rows:
    """The rows at `index` (k,). All of them in order are the rows as they are; shared and picked rows stay such."""
    if len(index) == count(rows) and torch.equal(index.cpu(), torch.arange(len(index))):
        return rows
    if isinstance(rows, Picked):
        return Picked(rows.stack, rows.index[index])
    places = {device: index.to(device) for device in {value.device for value in rows.values()}}
    return {
        name: value[0].expand(len(index), *value.shape[1:])
        if value.stride(0) == 0
        else value.index_select(0, places[value.device])
        for name, value in rows.items()
    }


def put(rows: Rows, index: Tensor, new: Rows) -> Rows:
    """`rows` with those at `index` (k,) replaced by `new`."""
    if len(index) == count(rows):  # everybody: index is ascending, so it is 0..m-1
        return new
    return {name: value.index_copy(0, index.to(value.device), new[name]) for name, value in rows.items()}


def count(rows: Rows) -> int:
    """The number of rows, m; 0 if there is nothing in them."""
    return next((len(value) for value in rows.values()), 0)


def concat(blocks: Sequence[State]) -> State:
    """Blocks of clients put together again along the client axis, part by part."""
    if len(blocks) == 1:
        return blocks[0]
    return {
        part: {name: torch.cat([block[part][name] for block in blocks]) for name in rows}
        for part, rows in blocks[0].items()
    }


def take_state(state: State, index: Tensor) -> State:
    """The clients at `index` of every part."""
    return {part: take(rows, index) for part, rows in state.items()}


def put_state(state: State, index: Tensor, new: State) -> State:
    """`state` with the clients at `index` replaced by `new`, part by part."""
    return {part: put(rows, index, new[part]) for part, rows in state.items()}


def to_devices(state: State, like: State) -> State:
    """A state with every tensor on the device of its namesake."""
    return {
        part: {name: value.to(like[part][name].device) for name, value in rows.items()} for part, rows in state.items()
    }


def grown(old: State, fresh: State) -> State:
    """`fresh`, a state for more clients, with the values of `old` where that has them.

    An axis that counts clients is longer in `fresh`: old values go to its front. Where nothing is longer the old
    tensor stays, also if it has more rows than a fresh one (uploads of the last round).
    """
    return {
        part: {name: _grown(old[part][name], value) for name, value in rows.items()} for part, rows in fresh.items()
    }


def _grown(old: Tensor, fresh: Tensor) -> Tensor:
    if all(new <= now for new, now in zip(fresh.shape, old.shape, strict=True)):
        return old
    result = fresh.clone(memory_format=torch.contiguous_format)
    result[tuple(slice(0, size) for size in old.shape)] = old
    return result


def digest(row: Row) -> str:
    """SHA-256 of a model's names and values: equal for equal models."""
    total = hashlib.sha256()
    for name, value in row.items():
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def tensors(state: State) -> Iterator[tuple[str, Tensor]]:
    """Flat names ("model/conv.weight") and tensors of a message or state, in order."""
    for part, rows in state.items():
        for name, value in rows.items():
            yield f"{part}/{name}", value
