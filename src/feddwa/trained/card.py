"""model.json: the facts needed to use a run's models without its data."""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feddwa.data.inputs import Inputs
from feddwa.errors import InputError, shown

VERSION = 3
DTYPES = ("float32", "float64", "bfloat16", "float16")  # of parameters
BY_CLIENT = ("clients", "train_samples", "test_samples", "accuracy", "loss")  # fields with an entry per client


@dataclass(frozen=True)
class ModelCard:
    """Facts about a run's models; in an exported model's card, lists by client have one entry."""

    network: str  # as --model takes it, without the file behind @: all parameters are stored
    arguments: tuple[str, ...]  # constructor arguments, KEY=VALUE
    inputs: dict[str, Any]  # description of a sample: `feddwa.data.inputs.Inputs` as JSON
    samples: dict[str, str]  # type of raw samples: uint8 (pixels), float32 (features), int64 (tokens); input -> type
    outputs: int  # number of outputs: classes, or predicted numbers
    classes: int  # 0 if targets are not classes
    class_names: tuple[str, ...]
    dtype: str  # of parameters
    mean: tuple[float, ...]  # of the normalisation, per channel or feature; pixels are divided by 255 first
    std: tuple[float, ...]
    scale: Any  # the same in one step: the network's input is raw * scale + shift; nested lists, None = unchanged
    shift: Any
    form: dict[str, Any] | None  # how files become samples, if the data came from files
    algorithm: str
    evaluated: str  # the evaluated model, which is the stored one
    clients: tuple[str, ...]  # names
    train_samples: tuple[int, ...]  # by client
    test_samples: tuple[int, ...]
    accuracy: tuple[float | None, ...]  # percent, on the client's test samples
    loss: tuple[float | None, ...]
    layers: dict[str, str] | None  # hyper-parameters of an algorithm that adds layers to the network; None: none
    adapter: tuple[str, ...] | None  # --adapter-arg of the low-rank additions to its layers; None: none
    missing: str = ""  # reason why no models are stored, if so
    run: dict[str, Any] = field(default_factory=dict)  # origin of the run: `provenance`; {} for one model

    @property
    def sample(self) -> Inputs:
        """The description of a sample."""
        return Inputs.from_json(self.inputs)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Input -> its shape in one raw sample; a network's only input is named "0"."""
        return {name: part.shape for name, part in (self.sample.parts or {"0": self.sample}).items()}

    def client(self, name: str | int) -> int:
        """The number of a client from its name or number; a text that may be both is a name."""
        if isinstance(name, str) and name in self.clients:
            return self.clients.index(name)
        numbers_are_names = all(map(str.isdecimal, self.clients))  # held-out clients shift the positions
        by_place = isinstance(name, int) or (name.isdecimal() and not numbers_are_names)
        number = int(name) if by_place else -1
        if not 0 <= number < len(self.clients):
            few = self.clients if len(self.clients) <= 10 else (*self.clients[:9], f"... {len(self.clients)} in all")
            raise InputError(f"--client {shown(name)}: no such client; there are {', '.join(few)}")
        return number

    def of(self, client: int) -> "ModelCard":
        """The card of one client's model."""
        return self.only([client])

    def only(self, clients: Sequence[int]) -> "ModelCard":
        """The card of some clients' models."""
        own: dict[str, Any] = {name: tuple(getattr(self, name)[client] for client in clients) for name in BY_CLIENT}
        return dataclasses.replace(self, run={}, **own)

    def class_name(self, number: int) -> str:
        """The name of a class, or its number if it has none."""
        return self.class_names[number] if number < len(self.class_names) else str(number)

    def to_text(self) -> str:
        """The card as JSON, one key per line."""
        values = {"version": VERSION, **dataclasses.asdict(self)}
        lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in values.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"


def from_text(text: str | bytes, path: Path) -> ModelCard:
    """The card in a JSON text; path: the file named in errors."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is damaged: it is not JSON") from None
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise InputError(f"{path}: is not a model card of version {VERSION}, which this feddwa reads")
    kinds = typing.get_type_hints(ModelCard)
    for name, kind in kinds.items():
        if name not in values or not _is(values[name], kind):
            raise InputError(f"{path}: is damaged: {name} is missing or of another kind")
    found = {name: tuple(values[name]) if isinstance(values[name], list) else values[name] for name in kinds}
    lengths = {len(found[name]) for name in BY_CLIENT}
    if len(lengths) != 1:
        raise InputError(f"{path}: is damaged: its lists are not of the same clients")
    if values["dtype"] not in DTYPES:
        raise InputError(f"{path}: is damaged: dtype {shown(values['dtype'])}, must be one of {', '.join(DTYPES)}")
    for name in ("scale", "shift"):
        if not _is_numbers(values[name]):
            raise InputError(f"{path}: is damaged: {name} is not made of finite numbers")
    return ModelCard(**{**found, "scale": values["scale"], "shift": values["shift"]})


def _is_numbers(value: Any) -> bool:
    """Whether a value is None, a finite number or nested lists of finite numbers."""
    if isinstance(value, list):
        return all(map(_is_numbers, value))
    limit = 1e300  # larger integers are no float64
    return value is None or (isinstance(value, int | float) and -limit < value < limit)


def _is(value: Any, kind: Any) -> bool:
    """Whether a JSON value is valid for a field's type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, each) for each in inner)
    if origin is tuple:
        return isinstance(value, list) and all(_is(each, inner[0]) for each in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, origin or kind) and not (kind is int and isinstance(value, bool))


def percent(shares: Iterable[float]) -> tuple[float | None, ...]:
    """Shares as percent; None for NaN."""
    return tuple(100 * share if math.isfinite(share) else None for share in shares)


def finite(values: Iterable[float]) -> tuple[float | None, ...]:
    """Numbers that JSON can hold; None for the others."""
    return tuple(value if math.isfinite(value) else None for value in values)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in JSON's types."""
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found
