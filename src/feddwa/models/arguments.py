"""Arguments of a network's constructor as KEY=VALUE, typed by its annotations and defaults."""

import ast
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union

from feddwa import params
from feddwa.errors import InputError, require
from feddwa.params import AtMost

OPTION = "--model-arg"
GIVEN = ("shape", "classes", "inputs", "vocabulary")  # set from the data, if a constructor has them
_LISTS = (tuple, list, Sequence)
_ANY = Any  # untyped values are parsed by their form
_BOUND = AtMost(2**62)


class Argument(NamedTuple):
    """The type and default of a constructor's argument."""

    type: Any = _ANY
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


def arguments_of(constructor: Callable[..., Any]) -> dict[str, Argument]:
    """Name -> argument of a class or function that can be given by name; `shape`, `classes` and `inputs` cannot."""
    hints = _hints(constructor)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: Argument(hints.get(name, _type_of(each.default)), each.default)
        for name, each in inspect.signature(constructor).parameters.items()
        if each.kind in named and name not in ("shape", "classes", "inputs")
    }


def _type_of(default: Any) -> Any:
    return _ANY if default is None or default is inspect.Parameter.empty else type(default)


def takes_any(constructor: Callable[..., Any]) -> bool:
    """Whether a class or function accepts **kwargs."""
    kinds = (each.kind for each in inspect.signature(constructor).parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


def _hints(constructor: Callable[..., Any]) -> dict[str, Any]:
    try:
        source = constructor.__init__ if isinstance(constructor, type) else constructor  # type: ignore[misc]
        return typing.get_type_hints(source, include_extras=True)
    except Exception:  # names known to type checkers only: use the defaults' types
        return {}


def read(
    entries: Iterable[str], known: Mapping[str, Argument], model: str, others: bool = False, option: str = OPTION
) -> dict[str, Any]:
    """Name -> value of entries KEY=VALUE for the constructor of `model`; others: whether it accepts **kwargs."""
    found: dict[str, Any] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        require(bool(equals and key), option, entry, "of the form KEY=VALUE")
        require(key not in found, option, entry, f"the only value of {key}; it is given twice")
        if key not in known and not (others and key not in GIVEN and key.isidentifier()):
            raise InputError(f"{option} {key}: {model} has no such argument; valid: {', '.join(known) or 'none'}")
        found[key] = value_of(f"{option} {key}", text, known.get(key, Argument()).type)
    return found


def value_of(field: str, text: str, kind: Any) -> Any:
    """The value of type `kind` that a text spells; errors name `field` and the valid values."""
    kind = _plain(kind)
    if typing.get_origin(kind) in _LISTS or kind in _LISTS:
        item = next(iter(typing.get_args(kind)), _ANY)
        parts = [part.strip() for part in text.strip("()[] ").split(",")]
        values = [value_of(field, part, item) for part in parts if part]
        return values if (typing.get_origin(kind) or kind) is list else tuple(values)
    if not _is_known(kind):
        return _literal(text)
    bounded = Annotated[kind, _BOUND] if params.parts_of(kind)[0] is int else kind
    return params.typed(field, params.parse(text, bounded), bounded)


def _plain(kind: Any) -> Any:
    """A type without marks; for a union with a list, the list."""
    while typing.get_origin(kind) is Annotated:
        kind = kind.__origin__
    if typing.get_origin(kind) in (Union, types.UnionType):
        lists = [each for each in typing.get_args(kind) if typing.get_origin(each) in _LISTS]
        return lists[0] if lists else kind
    return kind


def _is_known(kind: Any) -> bool:
    plain = params.parts_of(kind)[0]
    several = typing.get_origin(kind) in (Union, types.UnionType) and len(typing.get_args(kind)) > 2
    return not several and (plain in (bool, int, float, str) or typing.get_origin(plain) is typing.Literal)


def _literal(text: str) -> Any:
    """A text as the number, truth value, None or tuple that it spells; otherwise unchanged."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
