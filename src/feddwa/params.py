"""Typed hyper-parameters: frozen dataclasses filled from KEY=VALUE strings, TOML or Python values, with clear errors.

An algorithm and a partition are each a frozen dataclass; its fields *are* its hyper-parameters. The string after a
field (PEP 257 attribute docstring) or the field's `metadata["help"]` documents it; `__post_init__` checks the range.
"""

import contextlib
import dataclasses
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from feddwa.errors import InputError, require

T = TypeVar("T")


def fields_of(cls: type) -> dict[str, tuple[Any, Any]]:
    """Name -> (type, default) of every hyper-parameter of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: (hints[f.name], f.default) for f in dataclasses.fields(cls) if f.init}


def build(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Make `cls(**values)`; `what` ("algorithm feddwa") stands in errors. Values may be strings from a command line."""
    known = fields_of(cls)
    for key in values:
        if key not in known:
            valid = ", ".join(known) or "none"
            raise InputError(f"--param {key}: {what} has no such parameter; valid: {valid}")
    return cls(
        **{key: typed(f"--param {key}", parse(value, known[key][0]), known[key][0]) for key, value in values.items()}
    )


def parse(value: Any, kind: Any) -> Any:
    """A string as the value of type `kind` that it spells, where it spells one; anything else as it is."""
    kind, optional = _without_none(kind)
    if not isinstance(value, str):
        return value
    if optional and value.lower() == "none":
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    with contextlib.suppress(ValueError):
        return kind(value) if kind in (int, float) else value
    return value


def typed(field: str, value: Any, kind: Any) -> Any:
    """`value` where it is of type `kind` (bool, int, float, str, Literal, tuple[str, ...], X | None), else an error.

    Whole numbers are fine where a real one is wanted, and NumPy's numbers are numbers.
    """
    plain, optional = _without_none(kind)
    if optional and value is None:
        return None
    require(_is(value, plain), field, value, in_words(kind))
    if typing.get_origin(plain) is tuple:
        return tuple(value)
    return plain(value) if plain in (int, float) else value


def in_words(kind: Any) -> str:
    """What a value of this type looks like, for errors."""
    kind, _ = _without_none(kind)
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    return words.get(kind, "a list of strings")


def _is(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    number = {int: numbers.Integral, float: numbers.Real}.get(kind)
    return isinstance(value, kind) if number is None else isinstance(value, number) and not isinstance(value, bool)


def _without_none(kind: Any) -> tuple[Any, bool]:
    """(X, True) of `X | None`, (X, False) of X."""
    if typing.get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    return next(option for option in typing.get_args(kind) if option is not type(None)), True
