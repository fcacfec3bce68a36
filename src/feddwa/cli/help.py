"""`feddwa COMMAND --help`: a screen that says what the command does, shows examples and lists its options."""

import dataclasses
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import tyro

WIDEST = 100


class Option(NamedTuple):
    """An option, or a word without dashes, of a command."""

    name: str  # as it is typed: --batch-size, or RUN
    value: str  # what follows it: N, or nothing
    text: str
    choices: tuple[str, ...]
    positional: bool
    field: str = ""  # of the options' dataclass


def options_of(kind: type) -> list[Option]:
    """What a command takes, in the order of its fields; words without dashes first."""
    hints, plain_hints = typing.get_type_hints(kind, include_extras=True), typing.get_type_hints(kind)
    texts, found = _texts(kind), []
    for field in dataclasses.fields(kind):
        marks = getattr(hints[field.name], "__metadata__", ())
        if tyro.conf.Suppress in marks:
            continue
        plain = _plain(plain_hints[field.name])
        choices = tuple(map(str, typing.get_args(plain))) if typing.get_origin(plain) is Literal else ()
        named = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None)
        value = "" if plain is bool else named or "|".join(choices) or _value(field.name, plain)
        positional = tyro.conf.Positional in marks
        short = [name for mark in marks for name in getattr(mark, "aliases", None) or ()]
        name = value if positional else ", ".join([*short, f"--{field.name.replace('_', '-')}"])
        text = texts[field.name] + _default(field)
        found.append(Option(name, "" if positional else value, text, choices, positional, field.name))
    return sorted(found, key=lambda option: not option.positional)


def help_text(command: str, kind: type, examples: Sequence[str] = (), note: str = "") -> str:
    """The whole screen."""
    options = options_of(kind)
    words = [option.name for option in options if option.positional]
    usage = " ".join(["usage: feddwa", command, *words, "[OPTIONS]"])
    shown = [*options, Option("-h, --help", "", "This text.", (), False)]
    heads = [f"  {option.name} {option.value}".rstrip() for option in shown]
    column = min(max(map(len, heads)) + 2, 30)
    width = min(WIDEST, shutil.get_terminal_size().columns)
    lines = [usage, "", *textwrap.wrap(" ".join(inspect.cleandoc(kind.__doc__ or "").split()), width)]
    lines += [*textwrap.wrap(note, width), "", *(f"  feddwa {command} {example}" for example in examples), ""]
    for head, option in zip(heads, shown, strict=True):
        text = textwrap.wrap(option.text, max(20, width - column))
        first = [] if len(head) > column - 2 else [f"{head:<{column}}{text.pop(0)}"]
        lines += (first or [head]) + [" " * column + line for line in text]
    return "\n".join(lines) + "\n"


def _texts(kind: type) -> dict[str, str]:
    """Field -> the string that stands under it in the source, of the class and those it is made from."""
    texts = dict.fromkeys((field.name for field in dataclasses.fields(kind)), "")
    for each in reversed([parent for parent in kind.__mro__ if dataclasses.is_dataclass(parent)]):
        source = textwrap.dedent(inspect.getsource(each))
        for name, text in re.findall(
            r'^    (\w+): (?:(?!^    \w).)*?^    """(.*?)"""', source, re.DOTALL | re.MULTILINE
        ):
            texts[name] = " ".join(text.split())
    return texts


def _plain(kind: Any) -> Any:
    """X of `X | None`."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return next(each for each in typing.get_args(kind) if each is not type(None))


def _value(name: str, kind: Any) -> str:
    """What a value is called."""
    places = {"out": "PATH", "data_dir": "DIR", "results": "DIR", "directory": "DIR", "param": "KEY=VALUE"}
    if name in places:
        return places[name]
    return {int: "N", float: "X", str: "NAME"}.get(kind, "NAME ...")


def _default(field: "dataclasses.Field[Any]") -> str:
    if any(field.default is nothing for nothing in (dataclasses.MISSING, None, False, "", ())):
        return ""
    value = " ".join(field.default) if isinstance(field.default, tuple) else field.default
    return f" [{value}]"
