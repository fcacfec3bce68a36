"""Typed hyper-parameters: frozen dataclasses filled from KEY=VALUE strings, TOML or Python values, with clear errors.

An algorithm and a partition are each a frozen dataclass; its fields *are* its hyper-parameters. The string after a
field (PEP 257 attribute docstring) or the field's `metadata["help"]` documents it; `__post_init__` checks the range.

A whole number is bounded above by its type: `Annotated[int, AtMost(...)]`, `Repeats`, or LARGEST for a plain `int`. A
larger value would not finish or fit into memory, and is more likely a typing error.
"""

import contextlib
import dataclasses
import functools
import numbers
import re
import types
import typing
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union

from feddwa.errors import InputError, require

T = TypeVar("T")

LARGEST = 1_000_000  # upper bound of a plain `int`
NUMBER = {
    int: re.compile(r"[+-]?[0-9]+"),
    float: re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE),
}


@dataclass(frozen=True)
class AtMost:
    """The largest value of a whole number, as a mark on its type."""

    value: int


@dataclass(frozen=True)
class Option:
    """A field's appearance on the command line, as a mark on its type. The default is --FIELD VALUE."""

    metavar: str = ""  # name of the value, in help and errors
    short: str = ""  # a second name, such as -o
    flag: str = ""  # the name, if not --FIELD
    positional: bool = False  # an argument without dashes
    repeated: bool = False  # each occurrence adds one item to a tuple
    instead_of: str = ""  # the field that it replaces: only one of both may be given
    hidden: bool = False  # not on the command line at all


@dataclass(frozen=True)
class Tunable:
    """The values of a hyper-parameter that `feddwa tune` tries, as a mark on its type: a range, or a list."""

    low: float | None = None
    high: float | None = None
    log: bool = False  # whether to draw uniformly on a log scale
    choices: tuple[bool | int | float | str, ...] = ()  # in place of a range

    def __str__(self) -> str:
        if self.choices:
            return ",".join(str(each) for each in self.choices)
        return f"{self.low:g}..{self.high:g}{':log' * self.log}"


Repeats = Annotated[int, AtMost(10_000)]  # repetitions within a round: epochs, steps


def fields_of(cls: type) -> dict[str, tuple[Any, Any]]:
    """Name -> (type with its marks, default) of every hyper-parameter of a dataclass."""
    return _fields_of(cls)


@functools.cache
def _fields_of(cls: type) -> dict[str, tuple[Any, Any]]:
    """The same, cached per class: it takes a third of a millisecond, and a table calls it thousands of times."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: (hints[f.name], f.default) for f in dataclasses.fields(cls) if f.init}


def build(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Make `cls(**values)`; `what` ("algorithm feddwa") is named in errors. Values may be strings of a command line."""
    known = fields_of(cls)
    for key in values:
        if key not in known:
            valid = ", ".join(known) or "none"
            raise InputError(f"--param {key}: {what} has no such parameter; valid: {valid}")
    return cls(
        **{key: typed(f"--param {key}", parse(value, known[key][0]), known[key][0]) for key, value in values.items()}
    )


def parse(value: Any, kind: Any) -> Any:
    """The value of type `kind` that a string spells; anything else unchanged.

    Numbers are written in plain digits: Python's own `int(" 1_0 ")` accepts too much.
    """
    kind, optional, _ = parts_of(kind)
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(parse(item, item_of(kind)) for item in value)
    if not isinstance(value, str):
        return value
    if optional and value.lower() == "none":
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    with contextlib.suppress(ValueError):  # more digits than Python reads
        return kind(value) if kind in NUMBER and NUMBER[kind].fullmatch(value) else value
    return value


def typed(field: str, value: Any, kind: Any) -> Any:
    """`value` if it is of type `kind` (bool, int, float, str, Literal, tuple[X, ...], X | None); otherwise raises
    InputError.

    A number may also be one of the words of `float | Literal["auto"]`.

    Integers are valid for float fields, and NumPy numbers count as numbers. An integer is at most its type's bound; a
    string is one line that a file can hold.
    """
    plain, optional, largest = parts_of(kind)
    if (optional and value is None) or (isinstance(value, str) and value in words_of(kind)):
        return value
    require(_is(value, plain), field, value, in_words(kind))
    if plain is int:
        require(value <= largest, field, value, f"at most {largest:,}")
    if plain is float and isinstance(value, numbers.Integral):
        require(abs(int(value)) < 10**300, field, value, "a number that a float can hold")
    if plain is str:
        require(is_line(value), field, value, "text without control characters")
    if typing.get_origin(plain) is tuple:
        return tuple(typed(field, item, item_of(plain)) for item in value)
    return plain(value) if plain in (int, float) else value


def assigned(entry: str, owners: Mapping[str, type]) -> tuple[str, str, str]:
    """(owner, key, value) of a --param entry; owners: label -> class with the fields that it may set."""
    name, equals, value = entry.partition("=")
    require(bool(equals and name), "--param", entry, "of the form KEY=VALUE")
    owner, dot, key = name.rpartition(".")
    if dot and owner not in owners:
        raise InputError(f"--param {entry}: {owner} is not part of this run; valid: {', '.join(owners)}")
    known = {name: list(fields_of(cls)) for name, cls in owners.items()}
    holders = [owner] if dot else [name for name, keys in known.items() if key in keys]
    if len(holders) > 1:
        raise InputError(f"--param {entry}: {' and '.join(holders)} both have it; write {holders[0]}.{key}=...")
    if not holders or key not in known[holders[0]]:
        valid = "; ".join(f"{name}: {', '.join(keys) or 'none'}" for name, keys in known.items())
        raise InputError(f"--param {key}: no such hyper-parameter; valid for {valid}")
    return holders[0], key, value


def shares(option: str, text: str, check: Callable[[str], None]) -> dict[str, float]:
    """Name -> share, from 0 to 1, of "NAME=SHARE,..."; check: raises for an unknown name."""
    found: dict[str, float] = {}
    for entry in text.split(",") if text else []:
        name, _, value = (part.strip() for part in (entry if "=" in entry else f"{entry}=").rpartition("="))
        check(name)
        share = typed(f"{option} {name}", parse(value, float), float)
        require(0 <= share <= 1, f"{option} {name}", share, "from 0 to 1")
        require(name not in found, f"{option} {name}", text, "given once")
        found[name] = share
    return found


def check(values: Any) -> None:
    """Raise InputError unless every field of a dataclass has a value of its type, within the bounds of the type."""
    for name, (kind, _) in fields_of(type(values)).items():
        typed(f"--param {name}", getattr(values, name), kind)


def is_line(text: str) -> bool:
    """Whether a text is one line of valid Unicode characters."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text)


def in_words(kind: Any) -> str:
    """A description of the valid values of a type, for errors."""
    plain, _, _ = parts_of(kind)
    if typing.get_origin(plain) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(plain)))}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if typing.get_origin(plain) is tuple:
        return f"a list of {'strings' if parts_of(item_of(plain))[0] is str else 'whole numbers'}"
    return words[plain] + "".join(f" or {word}" for word in words_of(kind))


def _is(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(_is(item, parts_of(item_of(kind))[0]) for item in value)
    number = {int: numbers.Integral, float: numbers.Real}.get(kind)
    return isinstance(value, kind) if number is None else isinstance(value, number) and not isinstance(value, bool)


@functools.cache
def parts_of(kind: Any) -> tuple[Any, bool, int]:
    """(X, whether None is valid, largest integer) of X, `X | None` and either with marks."""
    optional, largest = False, LARGEST
    while typing.get_origin(kind) in (Annotated, Union, types.UnionType):
        if typing.get_origin(kind) is Annotated:
            largest = next((mark.value for mark in kind.__metadata__ if isinstance(mark, AtMost)), largest)
            kind = kind.__origin__
        else:
            kind, optional = next(each for each in typing.get_args(kind) if each is not type(None)), True
    return kind, optional, largest


def tunable_of(kind: Any) -> Tunable | None:
    """The search space of a hyper-parameter of this type; None if it is not searched."""
    return next((mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Tunable)), None)


def item_of(kind: Any) -> Any:
    """X of `tuple[X, ...]`, with its marks."""
    return typing.get_args(kind)[0]


def check_alternatives(where: str, given: Mapping[str, Any], kind: type) -> None:
    """Raise if both a field and its replacement have values; where: prefix of the options in errors."""
    for name, (type_, _) in fields_of(kind).items():
        other = mark_of(type_).instead_of
        if other and name in given and other in given:
            raise InputError(f"{where}{name} replaces {other}; give one of them")


def replaced(values: Any) -> list[str]:
    """Fields of a dataclass whose replacements have values."""
    marks = {name: mark_of(kind).instead_of for name, (kind, _) in fields_of(type(values)).items()}
    return [own for name, own in marks.items() if own and getattr(values, name) is not None]


def mark_of(kind: Any) -> Option:
    """The command-line appearance of a field of this type."""
    return next((mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Option)), Option())


def words_of(kind: Any) -> tuple[str, ...]:
    """The words allowed beside a number in `float | Literal["auto"] | None`."""
    while typing.get_origin(kind) is Annotated:
        kind = kind.__origin__
    parts = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else ()
    return tuple(word for part in parts[1:] if typing.get_origin(part) is Literal for word in typing.get_args(part))
