"""Options from the command line and a TOML file, and one clear line where they are wrong."""

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from feddwa.cli.help import help_text, options_of
from feddwa.config import from_toml
from feddwa.errors import InputError, shown
from feddwa.params import fields_of, in_words, typed

Options = TypeVar("Options")
CONFIG_NOTE = "--config FILE.toml sets options by name; those given here prevail."


def parse(command: str, kind: type[Options], arguments: list[str], examples: Sequence[str] = ()) -> Options:
    """Options from the command line over those from --config FILE.toml over the defaults."""
    settings: dict[str, Any] = {}
    about_a_run = "dataset" in fields_of(kind)
    if {"-h", "--help"} & set(arguments):
        print(help_text(command, kind, examples, CONFIG_NOTE if about_a_run else ""), end="")
        raise SystemExit(0)
    stored: tuple[str, ...] = ()
    if about_a_run:
        file, arguments = _config_file(arguments)
        default: Any = kind() if file is None else from_toml(file, kind)
        stored = default.param
        settings["default"] = dataclasses.replace(default, param=())
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            options: Any = tyro.cli(kind, prog=f"feddwa {command}", args=arguments, **settings)
    except SystemExit:
        complaint = _complaint(errors.getvalue(), kind, arguments)
        raise InputError(f"{complaint}; see feddwa {command} --help") from None
    if stored:
        options = dataclasses.replace(options, param=_merged(stored, options.param))
    _check(kind, options)
    return options  # type: ignore[no-any-return]


def _check(kind: type, options: Any) -> None:
    """Raise unless every value is of its type and within the bounds of the type."""
    names = {option.field: option.name.split(", ")[-1] for option in options_of(kind)}
    for field, (type_, _) in fields_of(kind).items():
        typed(names.get(field, field), getattr(options, field), type_)


def _merged(stored: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """--param entries of a file, without those that the command line gives, and then these."""
    names = [entry.partition("=")[0] for entry in given]
    return (*(entry for entry in stored if not any(_same(entry.partition("=")[0], name) for name in names)), *given)


def _same(left: str, right: str) -> bool:
    """Whether OWNER.KEY and KEY, or two of either form, are about one hyper-parameter."""
    (owner, _, key), (other, _, word) = left.rpartition("."), right.rpartition(".")
    return key == word and (owner == other or not owner or not other)


def _config_file(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of --config, and the other arguments."""
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--config":
            rest = arguments[place + 1 :]
            if not equals and (not rest or rest[0].startswith("--")):
                raise InputError("--config: no value, must be the path of a TOML file")
            return (value, arguments[:place] + rest) if equals else (rest[0], arguments[:place] + rest[1:])
    return None, arguments


def _complaint(box: str, kind: type, arguments: list[str]) -> str:
    """What a framed error of the option parser says, in one line, with what would be valid."""
    options = {f"--{field.replace('_', '-')}": type_ for field, (type_, _) in fields_of(kind).items()}
    lines = [line.strip("│╭╮╰╯─- ") for line in box.splitlines()]
    text = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines[1:])))
    about = re.match(
        r"Error parsing (--[\w-]+)|Missing value for argument '(--[\w-]+)|Unrecognized options: ([^ ,]+)", text
    )
    if about is None:
        return _about_words(text, kind)
    wrong, lacking, foreign = about.groups()
    if foreign:
        valid = [option.name for option in options_of(kind) if not option.positional]
        return f"{foreign}: unknown option; valid: {', '.join(valid)}"
    if lacking:
        return f"{lacking}: no value, must be {in_words(options[lacking])}"
    return f"{wrong}: got {shown(_value(wrong, arguments))}, must be {in_words(options[wrong])}"


def _about_words(text: str, kind: type) -> str:
    """A complaint about a word: there is none, or it is none of those that are valid."""
    words = [option for option in options_of(kind) if option.positional]
    choice = re.match(r"invalid choice ('.*?') for argument '(.*?)'. Expected one of \((.*?),?\)", text)
    if choice:
        given, name, valid = choice.groups()
        subject = f"{name}: " if name.startswith("--") else ""
        plain = valid.replace("'", "")
        return f"{subject}got {given}, must be one of {plain}"
    if text.startswith("Missing from") and words:
        return f"{words[0].name.replace('|', ', ')}: missing; {words[0].text}".rstrip(".")
    return text


def _value(option: str, arguments: list[str]) -> str:
    """What was given for an option, in either spelling: --rounds 3 or --rounds=3."""
    following = [new for old, new in itertools.pairwise(arguments) if old == option]
    return (following + [each.partition("=")[2] for each in arguments if each.startswith(f"{option}=")])[-1]
