"""Objects in place of names: converts the objects passed to `feddwa.run` into names for a configuration.

A run directory names objects so that other processes find them: code by a reference, parameters and data by the path of
a copy in the cache, named by its content. If nothing is written, objects without a name are held in HERE during the
run, and their reference points there.
"""

import copy
import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from feddwa import models, params
from feddwa.data import sources
from feddwa.data.options import DataOptions
from feddwa.data.task import fingerprint
from feddwa.engine.network import trainable
from feddwa.errors import InputError, require
from feddwa.plugins import (
    ALGORITHMS,
    DATASETS,
    HELD,
    LOSSES,
    METRICS,
    MODELS,
    PARTITIONS,
    Registry,
    Unfit,
    accepted,
    label,
)

HERE = SimpleNamespace()  # n1, n2, ...: objects of this process's current runs
_numbers = itertools.count(1)


@contextmanager
def named(options: Mapping[str, Any], written: bool) -> Iterator[dict[str, Any]]:
    """Options with names in place of objects, and the objects' fields as --param.

    written: whether a run directory will hold the names; otherwise they are valid inside the context only.
    """
    names = _Names(written)
    options = {name: os.fspath(each) if isinstance(each, os.PathLike) else each for name, each in options.items()}
    found, param = dict(options), []
    try:
        for registry in (ALGORITHMS, PARTITIONS):
            value = options.get(registry.kind)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):  # an instance: pass on its fields
                found[registry.kind] = names.of(registry, type(value))
                own = {name: getattr(value, name) for name in params.fields_of(type(value))}
                param += [f"{label(found[registry.kind])}.{name}={text}" for name, text in own.items()]
            elif not _is_name(value):
                found[registry.kind] = names.of(registry, value)
        for key, name_of in (("model", names.of_model), ("loss", names.of_loss)):
            if not _is_name(options.get(key)):
                found[key] = name_of(options[key])
        if not _is_name(options.get("dataset")):  # read once, here
            how = {key: found.pop(key) for key in list(found) if key in params.fields_of(DataOptions)}
            found["dataset"] = names.of_data(options["dataset"], DataOptions(**how))
        if isinstance(options.get("model"), nn.Module) and "dtype" not in options:
            found["dtype"] = _dtype_of(options["model"])
        if "metrics" in options:
            found["metrics"] = tuple(names.of_metrics(options["metrics"]))
        yield {**found, "param": (*param, *options.get("param", ()))} if param else found
    finally:
        names.forget()


def shown(name: str | None) -> str | None:
    """A display name: for objects in HERE, the object's own name."""
    return label(name) if name is not None and name.startswith(HELD) else name


class _Names:
    """Names of the objects of one run."""

    def __init__(self, written: bool) -> None:
        self._written = written
        self._held: list[str] = []

    def of(self, registry: Registry, value: Any) -> str:
        """The name of a class or function: built in, a reference, or a reference into HERE if nothing is written."""
        if self._written or any(value is known for known in registry.builtin.values()):
            return registry.name_of(value)
        return self._hold(value, getattr(value, "__name__", type(value).__name__))

    def of_model(self, value: Any) -> str:
        """A module with its parameters, or a class or function that makes one."""
        if not isinstance(value, nn.Module):
            require(
                callable(value), "model", type(value).__name__, "a name, an nn.Module, or a function that makes one"
            )
            return self.of(MODELS, value)
        kind = type(value)
        if not self._written:
            return self._hold(lambda: copy.deepcopy(value), kind.__name__)
        name = MODELS.name_of(kind)
        try:
            accepted(kind, ("shape", "classes"))
            why = "takes layers as arguments" if isinstance(value, nn.Sequential | nn.ModuleList) else ""
        except Unfit as error:
            why = str(error)
        if why:
            raise InputError(
                f"model: a run directory cannot rebuild this {kind.__name__}, whose class {why}; give a function "
                "of a module or script that makes it (model=make_net), or out=False, which writes nothing"
            )
        return f"{name}@{models.store(value)}"

    def of_data(self, value: Any, options: DataOptions) -> str:
        """Data, as the path of a copy in the cache; or a function that returns a dataset."""
        if callable(value):
            return self.of(DATASETS, value)
        options.check_options()
        dataset = sources.as_dataset(value, options)
        if not self._written:
            return self._hold(lambda: dataset, dataset.name)
        return str(sources.store(dataset, fingerprint(dataset)))

    def of_loss(self, value: Any) -> str:
        """A function of outputs and targets, or a class that makes one."""
        require(callable(value), "loss", type(value).__name__, "a name or a function of (outputs, targets)")
        return self.of(LOSSES, value)

    def of_metrics(self, value: Any) -> Iterator[str]:
        """NAME or NAME=REFERENCE of every metric in a mapping or a list."""
        several = isinstance(value, Mapping) or (isinstance(value, Iterable) and not isinstance(value, str))
        require(several, "metrics", value, "a mapping from names to functions, or a list of names")
        for key, each in value.items() if isinstance(value, Mapping) else ((None, each) for each in value):
            require(isinstance(each, str) or callable(each), "metrics", each, "a name or a function")
            function = each if isinstance(each, str) else self.of(METRICS, each)
            require(
                key is None or bool(re.fullmatch(r"[\w-]+", str(key))), "metrics", key, "a name of letters and digits"
            )
            yield function if key is None or key == function else f"{key}={function}"

    def _hold(self, value: Any, name: str) -> str:
        """Hold an object until `forget`; returns its reference."""
        place, plain = f"n{next(_numbers)}", re.sub(r"\W", "", name) or "it"
        setattr(HERE, place, SimpleNamespace(**{plain: value}))
        self._held.append(place)
        return f"{HELD}{place}.{plain}"

    def forget(self) -> None:
        """Release the held objects."""
        for place in self._held:
            delattr(HERE, place)


def _is_name(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _dtype_of(model: nn.Module) -> str:
    """The run's dtype for a module: that of its trainable parameters, if runs support it."""
    kind = next((value.dtype for value in trainable(model).values()), torch.float32)
    return {torch.float64: "float64", torch.bfloat16: "bfloat16"}.get(kind, "float32")
