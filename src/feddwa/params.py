"""Typed hyper-parameters: frozen dataclasses filled from KEY=VALUE strings or TOML values, with clear errors.

An algorithm and a partition are each a frozen dataclass; its fields *are* its hyper-parameters. The string after a
field (PEP 257 attribute docstring) or the field's `metadata["help"]` documents it; `__post_init__` checks the range.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from feddwa.errors import InputError

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
    return cls(**{key: convert(key, value, known[key][0], what) for key, value in values.items()})


def convert(key: str, value: Any, kind: Any, what: str) -> Any:
    """`value` as the type `kind` (bool, int, float, str, Literal, X | None), or an InputError that names the type."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return convert(key, value, options[0], what)
    if origin is Literal:
        valid = typing.get_args(kind)
        if value not in valid:
            raise InputError(f"--param {key}={value}: {what} wants one of {', '.join(map(str, valid))}")
        return value
    if isinstance(value, str) and kind is bool:
        if value.lower() not in ("true", "false"):
            raise InputError(f"--param {key}={value}: {what} wants true or false")
        return value.lower() == "true"
    exact = isinstance(value, str) or type(value) is kind or (kind is float and type(value) is int)
    try:
        if not exact:
            raise ValueError
        return kind(value)
    except ValueError:
        raise InputError(f"--param {key}={value}: {what} wants a value of type {kind.__name__}") from None
