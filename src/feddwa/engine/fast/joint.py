"""Functions that federations in lockstep compute together, because each alone would launch many small operations.

A function marked `@jointly` treats tensors (..., m, d) alike for every index of the leading axes. Outside of lockstep
it is called directly. In lockstep, calls of the same function wait for one another, and one call with a leading axis of
federations serves all of them.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from feddwa.engine.rows import adjacent

P = ParamSpec("P")
T = TypeVar("T")

# Submits a request of this thread's federation and waits for the reply; None outside of lockstep.
SUBMIT: ContextVar[Callable[[Any], Any] | None] = ContextVar("submit", default=None)


@dataclass(frozen=True)
class JointCall:
    """A call of a function, with tensors, mappings or sequences of tensors, and other hashable arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @property
    def signature(self) -> object:
        """Function, shape, dtype and device of every tensor, and all other arguments."""
        return self.function, tuple(map(_signature, self.arguments))

    @staticmethod
    def serve(_: object, requests: "Sequence[JointCall]") -> Iterator[Any]:
        """The results of calls with one signature, in order."""
        function = requests[0].function
        if len(requests) == 1:
            yield function(*requests[0].arguments)
            return
        found = function(*map(_stacked, zip(*(request.arguments for request in requests), strict=True)))
        for place in range(len(requests)):
            yield _mapped(itemgetter(place), found)


def jointly(function: Callable[P, T]) -> Callable[P, T]:
    """The function, computed together with the same calls of other federations in lockstep."""

    @functools.wraps(function)
    def call(*arguments: P.args, **_: P.kwargs) -> T:
        submit = SUBMIT.get()
        if submit is None:
            return function(*arguments)  # type: ignore[call-arg]  # all are positional
        found: T = submit(JointCall(function, arguments))
        return found

    return call


def _signature(argument: Any) -> object:
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype, argument.device
    if isinstance(argument, Mapping):
        return tuple((name, _signature(value)) for name, value in argument.items())
    return tuple(map(_signature, argument)) if isinstance(argument, list) else argument


def _stacked(arguments: Sequence[Any]) -> Any:
    """One argument of several calls with its tensors stacked; adjacent tensors are not copied."""
    first = arguments[0]
    if isinstance(first, Tensor):
        found = adjacent(arguments)
        return torch.stack(list(arguments)) if found is None else found.view(len(arguments), *first.shape)
    if isinstance(first, Mapping):
        return {name: _stacked([each[name] for each in arguments]) for name in first}
    return [_stacked(each) for each in zip(*arguments, strict=True)] if isinstance(first, list) else first


def _mapped(change: Callable[[Tensor], Tensor], found: Any) -> Any:
    return {name: change(value) for name, value in found.items()} if isinstance(found, Mapping) else change(found)
