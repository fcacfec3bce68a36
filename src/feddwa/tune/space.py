"""Search spaces of `feddwa tune`, declared with a method's hyper-parameters or given by --space.

A key is a hyper-parameter of the method (`params.Tunable` marks those searched by default) or an option of local
training: the rate `lr` is searched for every method, others (`epochs`, `batch_size`, ...) by --space.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from feddwa import params
from feddwa.config import RunConfig
from feddwa.errors import InputError, require
from feddwa.params import Tunable
from feddwa.plugins import ALGORITHMS, label

Config = TypeVar("Config", bound=RunConfig)
Value = bool | int | float | str

FOUND = "search.json"  # of a finished search, in the folder of its method

RATE = Tunable(1e-3, 1.0, log=True)
# Options allowed in --space: those of training, not of data, device or evaluation.
RECIPE = (
    "lr", "epochs", "batch_size", "local_steps", "participation", "batchnorm", "optimizer", "momentum", "nesterov",
    "weight_decay", "lr_schedule", "lr_decay", "lr_step", "warmup", "clip_grad",
)  # fmt: skip


@dataclass(frozen=True)
class Dimension:
    """One searched number or word."""

    key: str  # "lr", or the method's "mu"
    tried: Tunable
    whole: bool = False  # whether it is an integer
    default: Value | None = None  # value if not given; None if that is outside the range

    def holds(self, value: Any) -> bool:
        """Whether a value can be drawn."""
        if self.tried.choices:
            return value in self.tried.choices
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (self.tried.low or 0.0) <= value <= (self.tried.high or 0.0)

    def levels(self, count: int) -> list[Value]:
        """`count` values from one end to the other; all choices if there are choices."""
        if self.tried.choices:
            return list(self.tried.choices)
        low, high = self.ends
        if self.whole:
            steps = min(count, int(high - low) + 1)
            return sorted({round(low + (high - low) * step / max(1, steps - 1)) for step in range(steps)})
        places = [step / max(1, count - 1) for step in range(count)]
        if self.tried.log:
            return [math.exp(math.log(low) + place * math.log(high / low)) for place in places]
        return [low + place * (high - low) for place in places]

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the range."""
        return self.tried.low or 0.0, self.tried.high or 0.0


Space = tuple[Dimension, ...]


def space_of(config: RunConfig, given: Sequence[str] = ()) -> Space:
    """The space of a configuration's method: the rate, the method's declarations, and the given entries, which
    override.

    given: KEY=LOW..HIGH[:log] or KEY=a,b,c; KEY may be METHOD.KEY. Entries of other methods are ignored.
    """
    kind, name = ALGORITHMS.find(config.algorithm), label(config.algorithm)
    own = params.fields_of(kind)
    tried = {"lr": RATE, **{key: mark for key, (type_, _) in own.items() if (mark := params.tunable_of(type_))}}
    for entry in given:
        owner, key, text = _split(entry)
        if owner in ("", name) and (key in own or (key in RECIPE and not owner)):
            tried[key] = _read(entry, text, _type_of(key, own))
    space = tuple(
        Dimension(key, mark, params.parts_of(_type_of(key, own))[0] is int, _default(config, key, own))
        for key, mark in tried.items()
    )
    return tuple(
        each if each.default is not None and each.holds(each.default) else dataclasses.replace(each, default=None)
        for each in space
    )


def check_space(configs: Iterable[RunConfig], given: Sequence[str]) -> None:
    """Raise InputError unless every entry names a parameter of some method, with valid values."""
    configs = list(configs)
    methods = {label(each.algorithm): params.fields_of(ALGORITHMS.find(each.algorithm)) for each in configs}
    recipe = [key for key in RECIPE if key in params.fields_of(RunConfig)]
    for entry in given:
        owner, key, _ = _split(entry)
        require(not owner or owner in methods, "--space", entry, f"of one of {', '.join(methods)}, or without a name")
        takers = [name for name, own in methods.items() if owner in ("", name) and key in own]
        if not takers and (owner or key not in recipe):
            valid = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in methods.items())
            raise InputError(f"--space {entry}: no such hyper-parameter; valid: {', '.join(recipe)}; {valid}")
    for config in configs:
        for dimension in space_of(config, given):
            _check_ends(config, dimension)


def applied(config: Config, values: Mapping[str, Value]) -> Config:
    """A configuration with values of its space filled in."""
    name, own = label(config.algorithm), params.fields_of(ALGORITHMS.find(config.algorithm))
    recipe = {key: value for key, value in values.items() if key not in own}
    mine = {key: value for key, value in values.items() if key in own}
    kept = [entry for entry in config.param if not _is_of(entry, name, mine)]
    entries = (*kept, *(f"{name}.{key}={value}" for key, value in mine.items()))
    return dataclasses.replace(config, param=entries, **recipe)  # type: ignore[arg-type]  # checked by `resolved`


def best_in(folder: Path, config: Config) -> Config:
    """A configuration with the best values of the search of its method in a folder."""
    try:
        found = json.loads((folder / FOUND).read_text(encoding="utf-8"))
        return applied(config, found["best"]["values"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"--tuned {folder.parent}: has no finished search of {folder.name} ({error})") from None


def in_words(values: Mapping[str, Value]) -> str:
    """Hyper-parameters as text, with three digits."""
    digits = ((key, f"{value:.3g}" if isinstance(value, float) else value) for key, value in values.items())
    return ", ".join(f"{key} {value}" for key, value in digits)


def grid(space: Space, most: int) -> dict[str, list[Value]]:
    """Levels of every dimension, at most `most` points in all: adds one level to one dimension after another."""
    counts = dict.fromkeys((each.key for each in space), 1)
    levels = {each.key: each.levels(1) for each in space}
    for count in itertools.count(2):
        grown = False
        for each in space:
            more = {**levels, each.key: each.levels(count)}
            if len(more[each.key]) > len(levels[each.key]) and math.prod(map(len, more.values())) <= most:
                levels, grown, counts[each.key] = more, True, count
        if not grown:
            return levels
    raise AssertionError


def _split(entry: str) -> tuple[str, str, str]:
    """(method or "", key, text) of an entry of --space."""
    name, equals, text = entry.partition("=")
    require(bool(equals and name and text), "--space", entry, "of the form KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=a,b")
    owner, _, key = name.rpartition(".")
    return owner, key, text


def _read(entry: str, text: str, kind: Any) -> Tunable:
    """The search space in an entry of --space."""
    plain = params.parts_of(kind)[0]
    low, dots, high = text.partition("..")
    if not dots:
        values = tuple(params.typed(f"--space {entry}", params.parse(each, kind), kind) for each in text.split(","))
        require(len(set(values)) == len(values), "--space", entry, "values that differ")
        return Tunable(choices=values)
    require(plain in (int, float), "--space", entry, f"of values separated by commas, each {params.in_words(kind)}")
    high, _, scale = high.partition(":")
    require(scale in ("", "log"), "--space", entry, "of the form KEY=LOW..HIGH or KEY=LOW..HIGH:log")
    ends = [params.typed(f"--space {entry}", params.parse(each, plain), plain) for each in (low, high)]
    require(
        all(map(math.isfinite, ends)) and ends[0] < ends[1],
        "--space",
        entry,
        "a range of finite numbers, LOW below HIGH",
    )
    require(scale == "" or ends[0] > 0, "--space", entry, "above 0, because of its logarithm")
    return Tunable(ends[0], ends[1], bool(scale))


def _check_ends(config: RunConfig, dimension: Dimension) -> None:
    """Raise InputError unless both ends of a range, or all choices, are valid separately."""
    values = dimension.tried.choices or [int(end) if dimension.whole else end for end in dimension.ends]
    for value in values:
        try:
            applied(config, {dimension.key: value}).checked().make_algorithm()
        except InputError as error:
            raise InputError(f"--space {dimension.key}={dimension.tried}: {error}") from None


def _type_of(key: str, own: Mapping[str, tuple[Any, Any]]) -> Any:
    """The type of a hyper-parameter or option."""
    return own[key][0] if key in own else params.fields_of(RunConfig)[key][0]


def _default(config: RunConfig, key: str, own: Mapping[str, tuple[Any, Any]]) -> Value | None:
    """A configuration's value: from --param, else the method's default."""
    if key not in own:
        found: Value | None = getattr(config, key)
        return found
    value: Value | None = vars(config.make_algorithm())[key]
    return value


def _is_of(entry: str, name: str, keys: Mapping[str, Value]) -> bool:
    """Whether a --param entry sets one of the method's keys."""
    owner, _, key = entry.partition("=")[0].rpartition(".")
    return owner in ("", name) and key in keys
