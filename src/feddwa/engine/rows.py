"""Rows are clients: operations on stacks of models and on their containers (`engine/types.py`).

Nothing here mutates its arguments.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.engine.types import Model, Parts, Stack


class LazyRows(Mapping[str, Tensor]):
    """A stack whose tensors are loaded on access. The functions of this module accept it too."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """m."""

    @abstractmethod
    def take(self, index: Tensor) -> Stack:
        """The rows at `index` (k,)."""

    @abstractmethod
    def only(self, names: Iterable[str]) -> Stack:
        """Only these parameters."""

    @abstractmethod
    def described(self) -> Stack:
        """Shapes and types of the tensors, without values: tensors (m, *shape) on the device "meta"."""

    def put(self, index: Tensor, new: Stack) -> Stack:
        """The stack with the rows at `index` (k,) replaced by those of `new`."""
        return put(dict(self), index, new)

    def loaded(self) -> Stack:
        """The stack with its tensors in device memory."""
        return self


@dataclass(frozen=True)
class Picked(LazyRows):
    """Rows of a stack by reference: row i is stack[index[i]]."""

    stack: Stack  # (n, *shape)
    index: Tensor  # (m,) int64, on the CPU

    def __getitem__(self, name: str) -> Tensor:
        return self.stack[name].index_select(0, self.index.to(self.stack[name].device))

    def __iter__(self) -> Iterator[str]:
        return iter(self.stack)

    def __len__(self) -> int:
        return len(self.stack)

    @property
    def rows(self) -> int:
        """m."""
        return len(self.index)

    def take(self, index: Tensor) -> Stack:
        """See LazyRows."""
        return Picked(self.stack, self.index[index])

    def only(self, names: Iterable[str]) -> Stack:
        """See LazyRows."""
        return Picked(only(self.stack, names), self.index)

    def described(self) -> Stack:
        """See LazyRows."""
        known = described(self.stack)
        return {name: value.new_empty(self.rows, *value.shape[1:], device="meta") for name, value in known.items()}


def repeat(model: Mapping[str, Tensor], m: int) -> Stack:
    """The same model m times, as views that share memory. m = 0 gives a stack without rows."""
    return {name: value.expand(m, *value.shape) for name, value in model.items()}


def row(stack: Stack, number: int) -> Model:
    """One model of a stack."""
    return Model({name: value[number] for name, value in stack.items()})


def zeros(model: Mapping[str, Tensor]) -> Model:
    """Zeros in the shapes of a model."""
    return Model({name: torch.zeros_like(value) for name, value in model.items()})


def take(stack: Stack, index: Tensor) -> Stack:
    """The rows at `index` (k,). All rows in order return the stack itself; shared and lazy rows stay so."""
    if len(index) == count(stack) and torch.equal(index.cpu(), torch.arange(len(index))):
        return stack
    if isinstance(stack, LazyRows):
        return stack.take(index)
    places = {device: index.to(device) for device in {value.device for value in stack.values()}}
    return {
        name: value[0].expand(len(index), *value.shape[1:])
        if value.stride(0) == 0
        else value.index_select(0, places[value.device])
        for name, value in stack.items()
    }


def put(stack: Stack, index: Tensor, new: Stack) -> Stack:
    """`stack` with the rows at `index` (k,) replaced by those of `new`."""
    if len(index) == count(stack):  # all rows: index is ascending, so it is 0..m-1
        return new
    if isinstance(stack, LazyRows):
        return stack.put(index, new)
    return {name: value.index_copy(0, index.to(value.device), new[name]) for name, value in stack.items()}


def count(stack: Stack) -> int:
    """The number of rows, m; 0 for an empty stack."""
    if isinstance(stack, LazyRows):
        return stack.rows
    return next((len(value) for value in stack.values()), 0)


def only(stack: Stack, names: Iterable[str]) -> Stack:
    """Only these parameters."""
    if isinstance(stack, LazyRows):
        return stack.only(names)
    return {name: stack[name] for name in names}


def difference(a: Stack, b: Stack) -> Stack:
    """a - b, for all names of a."""
    return {name: value - b[name] for name, value in a.items()}


def add_scaled(stack: Stack, factors: Tensor, more: Stack) -> Stack:
    """Row i plus factors[i] times row i of `more`. factors: (m,)."""
    return {name: torch.addcmul(value, more[name], _column(factors, value)) for name, value in stack.items()}


def scale(factors: Tensor, stack: Stack) -> Stack:
    """Row i times factors[i]. factors: (m,)."""
    return {name: _column(factors, value) * value for name, value in stack.items()}


def _column(factors: Tensor, value: Tensor) -> Tensor:
    """Factors (m,) in the shape and dtype that multiply the rows of value (m, *shape)."""
    return factors.to(value).reshape(-1, *[1] * (value.ndim - 1))


def norms(stack: Stack) -> Tensor:
    """The Euclidean norm of every row: (m,) in float64, on the CPU."""
    flat = [value.reshape(len(value), -1) for value in stack.values()]
    parts = [torch.linalg.vector_norm(value, dim=1, dtype=torch.float64) for value in flat]
    return torch.stack(parts).square().sum(0).sqrt().cpu()


def concat(blocks: Sequence[Parts]) -> Parts:
    """Concatenate blocks of clients along the client axis, part by part; shared rows stay shared."""
    if len(blocks) == 1:
        return blocks[0]
    return {
        part: {name: _joined([block[part][name] for block in blocks]) for name in stack}
        for part, stack in blocks[0].items()
    }


def adjacent(values: Sequence[Tensor]) -> Tensor | None:
    """Tensors (k_i, *shape) that are adjacent in memory, as one tensor (sum of k_i, *shape); None if they are not."""
    first, place = values[0], values[0].data_ptr()
    for value in values:
        if value.data_ptr() != place or not value.is_contiguous():
            return None
        place += value.numel() * value.element_size()
    whole = first.untyped_storage()
    if not first.numel() or place > whole.data_ptr() + whole.nbytes():  # two storages may be adjacent by chance
        return None
    rows = sum(map(len, values))
    return first.as_strided((rows * first.shape[1:].numel(),), (1,)).view(rows, *first.shape[1:])


def _joined(values: Sequence[Tensor]) -> Tensor:
    """(m, *shape) of blocks (k, *shape)."""
    if (whole := adjacent(values)) is not None:
        return whole
    first, alone = values[0][:1], [len(value) == 1 or value.stride(0) == 0 for value in values]
    same = {(value.data_ptr(), value.stride()[1:]) for value in values}
    if all(alone) and len(same) == 1 and first.numel():
        return first.expand(sum(map(len, values)), *first.shape[1:])
    return torch.cat(list(values))


def take_parts(parts: Parts, index: Tensor) -> Parts:
    """The clients at `index` of every part."""
    return {part: take(stack, index) for part, stack in parts.items()}


def put_parts(parts: Parts, index: Tensor, new: Parts) -> Parts:
    """`parts` with the clients at `index` replaced by `new`, part by part."""
    return {part: put(stack, index, new[part]) for part, stack in parts.items()}


def described(stack: Stack) -> Stack:
    """Name -> (m, *shape) with the right shapes and types; values may be missing."""
    return stack.described() if isinstance(stack, LazyRows) else stack


def loaded(parts: Parts) -> Parts:
    """Parts with all rows loaded to their device."""
    return {part: stack.loaded() if isinstance(stack, LazyRows) else stack for part, stack in parts.items()}


def row_of_parts(parts: Parts, number: int) -> dict[str, Model]:
    """One client of every part."""
    return {part: row(stack, number) for part, stack in parts.items()}


def to_devices(parts: Parts, like: Parts) -> Parts:
    """`parts` with every tensor on the device of the tensor of the same name in `like`."""
    return {
        part: {name: value.to(like[part][name].device) for name, value in stack.items()}
        for part, stack in parts.items()
    }


def grown(old: Parts, fresh: Parts) -> Parts:
    """`fresh`, which is for more clients, with the values of `old` copied in.

    Axes that count clients are longer in `fresh`; old values go to their front. If no axis is longer, the old tensor is
    kept, even if it has more rows than the fresh one (uploads of the last round).
    """
    return {
        part: {name: _grown(old[part][name], value) for name, value in stack.items()} for part, stack in fresh.items()
    }


def _grown(old: Tensor, fresh: Tensor) -> Tensor:
    if all(new <= now for new, now in zip(fresh.shape, old.shape, strict=True)):
        return old
    result = fresh.clone(memory_format=torch.contiguous_format)
    result[tuple(slice(0, size) for size in old.shape)] = old
    return result


def digest(model: Mapping[str, Tensor]) -> str:
    """SHA-256 of a model's names and values: equal for equal models."""
    total = hashlib.sha256()
    for name, value in model.items():
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def tensors(parts: Parts) -> Iterator[tuple[str, Tensor]]:
    """Flat names ("model/conv.weight") and tensors of a message, a memory or a server state, in order."""
    for part, stack in parts.items():
        for name, value in stack.items():
            yield f"{part}/{name}", value
