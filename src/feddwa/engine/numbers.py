"""The numbers of a step: factors such as the rate, which may differ from row to row.

A step is a frozen dataclass and the key of its compiled program. A field annotated `Number` is a float in the step that
an algorithm makes. If such numbers change from round to round or differ between federations in lockstep, they are
*lifted*: the program belongs to the step's template, and the numbers are (m,) tensors; the mapped step of a row sees
its own.

    ProximalStep(rate=0.1, strength=1.0)
      numbers    {"rate": 0.1, "strength": 1.0}       those of nested dataclasses by path: "optimizer.momentum"
      template   ProximalStep(rate=1.0, strength=1.0)

A number of zero is an absent term: it is part of the template and never lifted, so a step asks `present(number)` before
it computes a term. If all rows share constant numbers, nothing is lifted and the compiled program contains them.
"""

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

Number = float | Tensor  # a float, or a scalar tensor for one row of a stack
HALF = (torch.bfloat16, torch.float16)  # not precise enough for a factor
T = TypeVar("T")


def present(number: Number) -> bool:
    """Whether the term with this factor exists; lifted numbers are never zero."""
    return isinstance(number, Tensor) or number != 0


def times(number: Number, value: Tensor) -> Tensor:
    """number * value, (*shape) in the dtype of `value`, or in float32 if that is of half precision."""
    if isinstance(number, Tensor):
        wide = torch.float32 if value.dtype in HALF else value.dtype
        return value.to(wide) * number.to(wide)
    return value * number


def numbers(step: Any) -> dict[str, float]:
    """Path -> value of a step's nonzero numbers; {} for a function."""
    return {path: value for path, value in _numbers(step) if value}


def template(step: T) -> T:
    """The step with 1 in place of its numbers: equal for steps that differ in numbers alone."""
    made: T = _template(step)
    return made


@functools.lru_cache(1024)
def _template(step: Any) -> Any:
    """The same, cached per step: every training needs it several times."""
    return with_numbers(step, dict.fromkeys(numbers(step), 1.0))


def with_numbers(step: T, values: Mapping[str, Number], prefix: str = "") -> T:
    """The step with other numbers, by path."""
    whole: Any = step
    changes: dict[str, Any] = {}
    for name, kind in _fields(type(whole)):
        path = prefix + name
        if kind is Number and path in values:
            changes[name] = values[path]
        elif kind is not Number and any(key.startswith(f"{path}.") for key in values):
            changes[name] = with_numbers(getattr(whole, name), values, f"{path}.")
    new: T = dataclasses.replace(whole, **changes) if changes else step
    return new


def _numbers(step: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, kind in _fields(type(step)):
        value = getattr(step, name)
        if kind is Number:
            yield prefix + name, value
        else:
            yield from _numbers(value, f"{prefix}{name}.")


def _fields(cls: type) -> tuple[tuple[str, Any], ...]:
    """(name, type) of a dataclass's fields that are numbers or may contain some."""
    return _looked_up(cls)


@functools.cache
def _looked_up(cls: type) -> tuple[tuple[str, Any], ...]:
    """The same, cached per class: every training needs it."""
    if not dataclasses.is_dataclass(cls):
        return ()
    hints = typing.get_type_hints(cls)
    found = ((field.name, Number if hints[field.name] == Number else object) for field in dataclasses.fields(cls))
    return tuple(found)
