"""A dataclass of options as an argparse parser: help from its docstrings, and one clear line where a value is wrong."""

import argparse
import dataclasses
import functools
import shutil
import textwrap
import typing
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from feddwa import params
from feddwa.built_in import fields_text
from feddwa.config_file import from_toml
from feddwa.data.options import DataOptions
from feddwa.errors import InputError
from feddwa.options.adapter import AdapterOptions
from feddwa.options.evaluation import EvaluationOptions
from feddwa.options.federation import FederationOptions
from feddwa.options.privacy import PrivacyOptions
from feddwa.options.robustness import RobustnessOptions
from feddwa.options.tracking import TrackingOptions
from feddwa.options.training import TrainingOptions
from feddwa.params import Option
from feddwa.tune.options import TuningOptions

Options = TypeVar("Options")

WIDEST, INDENT = 100, 24  # of a help screen, and of the text about an option
PLACES = {
    "out": "PATH", "data_dir": "DIR", "results": "DIR", "directory": "DIR", "spec": "FILE.toml", "config": "FILE.toml",
}  # fmt: skip
GROUPS: dict[str, type] = {  # of their own in the help
    "search": TuningOptions, "training": TrainingOptions, "adapter": AdapterOptions, "robustness": RobustnessOptions,
    "privacy": PrivacyOptions, "evaluation": EvaluationOptions, "tracking": TrackingOptions,
    "federation": FederationOptions, "own data": DataOptions,
}  # fmt: skip
CONFIG = "TOML file that sets options by name; those on the command line prevail."


class Argument(NamedTuple):
    """A field of a dataclass on the command line."""

    field: str
    type: Any  # with its marks
    default: Any  # dataclasses.MISSING where there is none
    mark: Option
    text: str  # for help

    @property
    def plain(self) -> Any:
        """The type without marks and without `| None`."""
        return params.parts_of(self.type)[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are valid, where these are few."""
        return typing.get_args(self.plain) if typing.get_origin(self.plain) is Literal else ()

    @property
    def metavar(self) -> str:
        """What a value is called."""
        usual = {int: "N", float: "X"}.get(self.plain, "NAME")
        return self.mark.metavar or "|".join(self.choices) or PLACES.get(self.field, usual)

    @property
    def label(self) -> str:
        """As errors call it: --batch-size, or DIR."""
        if self.mark.positional:
            return self.field.upper() if self.choices else self.metavar
        return self.mark.flag or f"--{self.field.replace('_', '-')}"

    @property
    def help(self) -> str:
        """The text with the default behind it, where that says something; argparse formats it with %."""
        nothing = (dataclasses.MISSING, None, False, "", ())
        value = " ".join(map(str, self.default)) if isinstance(self.default, tuple) else self.default
        told = "" if any(self.default is each for each in nothing) else f" [{value}]"
        told = f" [yes; no: --no-{self.label[2:]}]" if self.default is True else told
        return (self.text + told).replace("%", "%%")

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is dataclasses.MISSING

    def read(self, given: Any) -> Any:
        """The parsed value, of the option's type and within its bounds."""
        value = given if self.plain is str else params.parse(given, self.type)
        return params.typed(self.label, value, self.type)

    def absent(self) -> Any:
        """No words, where any number of them may be given; raises where one must be."""
        if typing.get_origin(self.plain) is tuple:
            return ()
        raise InputError(f"{self.metavar.replace('|', ', ')}: missing; {self.text.rstrip('.')}")


class _Once(argparse.Action):
    """Stores a value, or `const` for a flag. Given twice, an option is refused: one of the two would not count."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if hasattr(namespace, self.dest):
            raise InputError(f"{option}: given more than once; leave all but one out")
        setattr(namespace, self.dest, values if self.const is None else self.const)


def arguments_of(kind: type) -> list[Argument]:
    """What a command takes, in the order of the fields of its options; of options about a run also --config."""
    texts, found = fields_text(kind), []
    for name, (type_, default) in params.fields_of(kind).items():
        found.append(Argument(name, type_, default, params.mark_of(type_), texts[name]))
    if "dataset" in texts:
        found.append(Argument("config", str, None, Option(), CONFIG))
    return [argument for argument in found if not argument.mark.hidden]


def add_arguments(parser: argparse.ArgumentParser, kind: type) -> dict[str, argparse.Action]:
    """Give a parser what a command takes: field -> what argparse made of it. What is not given has no value."""
    found = {}
    groups = {title: parser.add_argument_group(title) for title, own in GROUPS.items() if issubclass(kind, own)}
    places = {field: group for title, group in groups.items() for field in params.fields_of(GROUPS[title])}
    for argument in arguments_of(kind):
        place = places.get(argument.field, parser)
        add = functools.partial(place.add_argument, default=argparse.SUPPRESS)
        settings: dict[str, Any] = {"metavar": argument.metavar}
        settings |= {} if argument.mark.positional else {"action": _Once}
        if argument.plain is bool:
            settings = {"action": _Once, "nargs": 0, "const": True}
            no = f"--no-{argument.label[2:]}"  # takes back what a file says; help would only be longer by it
            add(no, dest=argument.field, action=_Once, nargs=0, const=False, help=argparse.SUPPRESS)
        elif argument.mark.repeated:
            settings["action"] = "append"
        elif typing.get_origin(argument.plain) is tuple:
            settings["nargs"] = "*"
        elif argument.mark.positional:
            settings["nargs"] = "?"  # a word that is missing is our complaint
        names = [argument.field] if argument.mark.positional else [argument.mark.short, argument.label]
        settings |= {} if argument.mark.positional else {"dest": argument.field}
        found[argument.field] = add(*filter(None, names), help=argument.help, **settings)
    return found


def make_parser(command: str, kind: type, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of a command; its help has the docstring of its options and examples."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    words = [argument.metavar for argument in arguments_of(kind) if argument.mark.positional]
    shown = "\n".join(f"  feddwa {command} {example}" for example in examples)
    parser = argparse.ArgumentParser(
        usage=" ".join(["feddwa", command, *words, "[OPTIONS]"]),
        description=textwrap.fill(" ".join((kind.__doc__ or "").split()), width) + f"\n\n{shown}",
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, width=width, max_help_position=INDENT),
        allow_abbrev=False,
        exit_on_error=False,
    )
    add_arguments(parser, kind)
    return parser


def parse(command: str, kind: type[Options], arguments: Sequence[str], examples: Sequence[str] = ()) -> Options:
    """Options from the command line over those from --config FILE.toml over the defaults."""
    known = arguments_of(kind)
    try:
        found, unknown = make_parser(command, kind, examples).parse_known_intermixed_args(arguments)
        if unknown:
            labels = [each.label for each in known if not each.mark.positional]
            valid = ", ".join(labels) or f"none, only {' '.join(each.label for each in known)}"
            raise InputError(f"{unknown[0].partition('=')[0]}: unknown option; valid: {valid}")
        given = {each.field: each.read(vars(found)[each.field]) for each in known if each.field in found}
        given |= {each.field: each.absent() for each in known if each.required and each.field not in found}
        params.check_alternatives("--", given, kind)
    except (argparse.ArgumentError, InputError) as error:
        complaint = error if isinstance(error, InputError) else _complaint(error, known)
        raise InputError(f"{complaint}; see feddwa {command} --help") from None
    file = given.pop("config", None)
    if file is None:
        return kind(**given)
    stored: Any = from_toml(file, kind)
    repeated = [each.field for each in known if each.mark.repeated]
    merged = {field: _merged(getattr(stored, field), given.get(field, ())) for field in repeated}
    pairs = [(each.field, each.mark.instead_of) for each in known if each.mark.instead_of]
    outdone = [other for pair in pairs for own, other in (pair, pair[::-1]) if own in given]  # what the file says of it
    usual = {each.field: each.default for each in known if each.field in outdone}
    options: Options = dataclasses.replace(stored, **{**usual, **given, **merged})
    return options


def _complaint(error: argparse.ArgumentError, known: Sequence[Argument]) -> str:
    """What argparse has against an option, and what would be valid."""
    name = next(name for name in (error.argument_name or "").split("/") if name.startswith("--"))
    argument = next((each for each in known if each.label == name), None)
    if argument is None or argument.plain is bool:  # --no-quiet, --quiet
        return f"{name}: takes no value"
    valid = "the path of a TOML file" if argument.field == "config" else params.in_words(argument.type)
    return f"{name}: no value, must be {valid}"


def _merged(stored: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """KEY=VALUE entries of a file, without those that the command line gives, and then these."""
    names = [entry.partition("=")[0] for entry in given]
    return (*(entry for entry in stored if not any(_same(entry.partition("=")[0], name) for name in names)), *given)


def _same(left: str, right: str) -> bool:
    """Whether OWNER.KEY and KEY, or two of either form, are about one hyper-parameter."""
    (owner, _, key), (other, _, word) = left.rpartition("."), right.rpartition(".")
    return key == word and (owner == other or not owner or not other)
