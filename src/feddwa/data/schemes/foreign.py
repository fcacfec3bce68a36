"""Partitions from outside the package: a dataclass like those of the package, or a plain function."""

import dataclasses
import inspect
from typing import Any, get_args

import numpy as np

from feddwa.data.schemes.base import Partition, Reads, Scheme
from feddwa.plugins import Unfit, check_arguments

ARGUMENTS = ("labels", "train_count", "clients", "rng")


def adopt(scheme: Any) -> type[Scheme]:
    """A scheme as a class whose fields are its hyper-parameters; raises Unfit where it cannot be one."""
    if inspect.isfunction(scheme):
        return _class_of(scheme)
    if not (inspect.isclass(scheme) and dataclasses.is_dataclass(scheme)):
        valid = f"a function of ({', '.join(ARGUMENTS)}) or a frozen dataclass that can be called so"
        raise Unfit(f"is a {type(scheme).__name__}, must be {valid}")
    if getattr(scheme, "reads", None) not in get_args(Reads):
        raise Unfit(f"has no `reads`, what of the data it depends on; must be one of {', '.join(get_args(Reads))}")
    for field in dataclasses.fields(scheme):
        if field.default is dataclasses.MISSING:
            raise Unfit(f"its field {field.name} has no default; every hyper-parameter must have one")
    check_arguments(scheme.__call__, ("self", *ARGUMENTS), "__call__")
    return scheme if issubclass(scheme, Scheme) else type(scheme.__name__, (scheme, Scheme), {})


def _class_of(function: Any) -> type[Scheme]:
    """A function (labels, train_count, clients, rng, KEY: TYPE = DEFAULT, ...): the further arguments are fields."""
    check_arguments(function, ARGUMENTS, function.__name__)
    further = list(inspect.signature(function).parameters.values())[len(ARGUMENTS) :]
    for each in further:
        if each.default is each.empty or each.annotation is each.empty:
            raise Unfit(f"its argument {each.name} must have a type and a default, such as {each.name}: float = 1.0")

    def call(self: Any, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        return function(labels, train_count, clients, rng, **vars(self))  # type: ignore[no-any-return]

    fields = [
        (each.name, inspect.get_annotations(function, eval_str=True)[each.name], each.default) for each in further
    ]
    members = {"reads": "nothing", "__call__": call, "__doc__": function.__doc__}
    return dataclasses.make_dataclass(function.__name__, fields, bases=(Scheme,), namespace=members, frozen=True)
