"""The personalised models of a federation whose rows are stored off the device: computed on access."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from feddwa.engine import Stack
from feddwa.engine.rows import LazyRows
from feddwa.federation import Federation


@dataclass(frozen=True, eq=False)
class PersonalRows(LazyRows):
    """Current parameters and buffers after the last round: row i is the model of client ids[i]. On the CPU.

    Accessing a tensor computes the models of all rows, a block at a time.
    """

    federation: Federation
    ids: Tensor  # (m,) int64
    names: tuple[str, ...]

    @classmethod
    def of(cls, federation: Federation) -> "PersonalRows":
        """The rows of all clients."""
        return cls(federation, torch.arange(federation.clients), tuple(_tensors(federation)))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        if name in self.shared:
            return next(self.only([name]).blocks())[name][:1].expand(self.rows, *self.described()[name].shape[1:])
        return torch.cat([block[name] for block in self.only([name]).blocks()])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def rows(self) -> int:
        """m."""
        return len(self.ids)

    @cached_property
    def shared(self) -> frozenset[str]:
        """Names of tensors that are the same for all clients, such as a global model's: two clients share memory."""
        model, buffers = self.federation.personal(self.federation.all_clients().only(torch.arange(min(2, self.rows))))
        return frozenset(name for name, value in {**model, **buffers}.items() if value.stride(0) == 0)

    def take(self, index: Tensor) -> "PersonalRows":
        """See LazyRows."""
        return replace(self, ids=self.ids[index.cpu()])

    def only(self, names: Iterable[str]) -> "PersonalRows":
        """See LazyRows."""
        return replace(self, names=tuple(names))

    def described(self) -> Stack:
        """See LazyRows."""
        known = _tensors(self.federation)
        return {name: known[name].to("meta").expand(self.rows, *known[name].shape) for name in self.names}

    def stored(self) -> Stack:
        """The same as in a file: one row for shared tensors."""
        return {name: value[:1] if name in self.shared else value for name, value in self.described().items()}

    def blocks(self) -> Iterator[Stack]:
        """The models, as many clients at a time as are trained together."""
        federation, everybody = self.federation, self.federation.all_clients()
        for block in self.ids.split(federation.client_side.chunk):
            model, buffers = federation.personal(everybody.only(block))
            yield {name: value.cpu() for name, value in {**model, **buffers}.items() if name in self.names}


def _tensors(federation: Federation) -> dict[str, Tensor]:
    module = federation.engine.module
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
