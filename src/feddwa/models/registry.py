"""Networks by name: those of this package, own code by reference, and those of torchvision, timm and transformers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import nn

from feddwa import plugins
from feddwa.data.inputs import Inputs, Shape
from feddwa.errors import InputError, one_line, require
from feddwa.models import arguments, weights
from feddwa.models.arguments import GIVEN, Argument, arguments_of
from feddwa.models.field import conv_dropout, fedavg_cnn, har_cnn, lenet5
from feddwa.models.paper import cifar_cnn, emnist_cnn, emnist_small, resnet8, resnet8_gkt
from feddwa.models.small import cnn, cnn1d, digits_cnn, linear, mlp
from feddwa.models.tokens import char_lstm, char_transformer, transformer
from feddwa.plugins import Unfit


@dataclass(frozen=True)
class Model:
    """A network by name: its builder and the samples it accepts."""

    build: Callable[..., nn.Module]  # receives those of `shape`, `classes`, `inputs`, `vocabulary` that it accepts
    takes: str  # description of the accepted samples, for errors and lists
    fits: Callable[[Inputs], bool]
    further: Mapping[str, Argument] | None = None  # arguments missing from its signature
    weights: str = ""  # file of initial parameters

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """Name -> argument for --model-arg."""
        return arguments_of(self.build) if self.further is None else self.further

    def values(self, entries: Sequence[str], name: str) -> dict[str, Any]:
        """--model-arg as values; InputError for an unknown, mistyped or missing one."""
        others = self.further is None and arguments.takes_any(self.build)
        found = arguments.read(entries, self.arguments, plugins.label(name), others)
        for key, each in self.arguments.items():
            if each.required and key not in found and key not in GIVEN:
                raise InputError(f"--model {name}: needs the argument {key}; give --model-arg {key}=...")
        return found


def _exactly(*wanted: int) -> Callable[[Inputs], bool]:
    return lambda inputs: inputs.shape == wanted


def _is_colour(inputs: Inputs) -> bool:
    return _is_image(inputs) and inputs.shape[0] == 3


def _is_image(inputs: Inputs) -> bool:
    return inputs.kind == "image" and min(inputs.shape[1:]) >= 8


def _is_large_image(inputs: Inputs) -> bool:
    return inputs.kind == "image" and min(inputs.shape[1:]) >= 16


def _is_numbers(inputs: Inputs) -> bool:
    return inputs.kind not in ("tokens", "several") and len(inputs.shape) > 0 and prod(inputs.shape) > 0


def _is_series(inputs: Inputs) -> bool:
    return inputs.kind == "series" and min(inputs.shape) > 0


def _is_long_series(inputs: Inputs) -> bool:
    return _is_series(inputs) and inputs.shape[1] >= 28


def _is_tokens(inputs: Inputs) -> bool:
    return inputs.kind == "tokens" and len(inputs.shape) == 1


MODELS: dict[str, Model] = {
    "cifar-cnn": Model(cifar_cnn, "samples of shape (3, 32, 32)", _exactly(3, 32, 32)),
    "emnist-cnn": Model(emnist_cnn, "samples of shape (1, 28, 28)", _exactly(1, 28, 28)),
    "emnist-small": Model(emnist_small, "samples of shape (1, 28, 28)", _exactly(1, 28, 28)),
    "resnet8": Model(resnet8, "colour images (3, H, W) of at least 8x8", _is_colour),
    "resnet8-gkt": Model(resnet8_gkt, "colour images (3, H, W) of at least 8x8", _is_colour),
    "fedavg-cnn": Model(fedavg_cnn, "images (C, H, W) of at least 16x16", _is_large_image),
    "lenet5": Model(lenet5, "images (C, H, W) of at least 16x16", _is_large_image),
    "conv-dropout": Model(conv_dropout, "images (C, H, W) of at least 8x8", _is_image),
    "har-cnn": Model(har_cnn, "series (channels, length) of at least 28 steps", _is_long_series),
    "digits-mlp": Model(mlp, "samples of shape (1, 8, 8)", _exactly(1, 8, 8)),
    "digits-cnn": Model(digits_cnn, "samples of shape (1, 8, 8)", _exactly(1, 8, 8)),
    "cnn": Model(cnn, "images (C, H, W) of at least 8x8", _is_image),
    "cnn1d": Model(cnn1d, "series (channels, length)", _is_series),
    "transformer": Model(transformer, "token ids (length,)", _is_tokens),
    "char-lstm": Model(char_lstm, "token ids (length,)", _is_tokens),
    "char-transformer": Model(char_transformer, "token ids (length,)", _is_tokens),
    "mlp": Model(mlp, "samples of any shape but ()", _is_numbers),
    "linear": Model(linear, "samples of any shape but ()", _is_numbers),
}


def adopt(build: Any) -> Model:
    """A class or function from outside the package as a model."""
    if not callable(build) or isinstance(build, nn.Module):
        raise Unfit("must be an nn.Module, or a class or function that makes one")
    plugins.signature(build)
    return Model(build, "the samples that its code takes", lambda inputs: True)


def from_library(library: str, name: str) -> Model:
    """The model LIBRARY:NAME of an installed package."""
    from feddwa.models import libraries

    found, known = libraries.find(library, name)
    return Model(found, f"the samples that {library} says", lambda inputs: True, known)


def find(name: str, entries: Sequence[str] = ()) -> Model:
    """The model of NAME, REFERENCE or LIBRARY:NAME, optionally with @FILE for its initial parameters.

    entries: --model-arg, checked.
    """
    plain, at, file = name.partition("@")
    model: Model = plugins.MODELS.find(plain)
    if at:
        weights.check(plain, file)
        model = replace(model, weights=file)
    model.values(entries, name)
    return model


def make(name: str, inputs: Inputs | Shape, classes: int, entries: Sequence[str] = ()) -> nn.Module:
    """Build the network `name`; inputs: the samples, or their shape; entries: --model-arg KEY=VALUE."""
    model = find(name, entries)
    inputs = inputs if isinstance(inputs, Inputs) else Inputs.of(inputs)
    require(classes >= 1, "--model classes", classes, "at least 1")
    if not model.fits(inputs):
        fitting = ", ".join(key for key, other in MODELS.items() if other.fits(inputs))
        told = inputs.shape if inputs.kind not in ("tokens", "several") else inputs
        raise InputError(f"--model {name}: takes {model.takes}, got {told}; models that fit: {fitting or 'none'}")
    module = _module(_build(model, name, inputs, classes, model.values(entries, name)))
    return weights.load(module, name, model.weights) if model.weights else module


def _build(model: Model, name: str, inputs: Inputs, classes: int, values: Mapping[str, Any]) -> Any:
    """The network from a constructor with the data's shape and the given arguments; its errors in one line."""
    offered = {"shape": inputs.shape, "classes": classes, "inputs": inputs, "vocabulary": inputs.vocabulary}
    size = values.get("vocabulary", inputs.vocabulary)
    require(size >= inputs.vocabulary, "--model-arg vocabulary", size, f"at least {inputs.vocabulary}, as in the data")
    names = plugins.signature(model.build).parameters
    try:
        return model.build(**{key: value for key, value in offered.items() if key in names} | dict(values))
    except InputError as error:
        raise InputError(f"--model {name}: {error}" if "--model" not in str(error) else str(error)) from None
    except Exception as error:  # constructors raise exceptions of any type
        why = f"{type(error).__name__}: {one_line(str(error).strip() or 'no message')}"
        raise InputError(f"--model {name}: cannot be made for {inputs} and {classes} classes: {why}") from error


def _module(made: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise InputError(f"--model: its function returned a {type(made).__name__}, must return an nn.Module")
    return made
