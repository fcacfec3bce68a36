"""The algorithms, one file each: a file in this folder that defines an `Algorithm` with a `title` registers its name.

`from feddwa.algorithms import FedProx` works for all of them.
"""

import importlib
import inspect
from dataclasses import is_dataclass
from typing import Any

from feddwa import plugins
from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.built_in import entries
from feddwa.plugins import Unfit, check_arguments, check_defaults

__all__ = ["ALGORITHMS", "Algorithm", "Info", "Problem", "title_of"]

METHODS = (
    "network",
    "setup",
    "download",
    "client",
    "server",
    "warnings",
    "grow",
    "deliver",
    "personal",
    "trained",
    "newcomer",
)


def adopt(kind: Any) -> type[Algorithm]:
    """Check a class from outside the package as an algorithm; raises Unfit if it cannot be one."""
    if not (inspect.isclass(kind) and issubclass(kind, Algorithm)):
        raise Unfit(f"is {_in_words(kind)}, must be a subclass of feddwa.Algorithm")
    if not is_dataclass(kind) or (vars(kind).get("__annotations__") and "__dataclass_fields__" not in vars(kind)):
        raise Unfit("has fields but is no dataclass; write @dataclass(frozen=True) above the class")
    check_defaults(kind)
    for method in METHODS:
        names = tuple(inspect.signature(getattr(Algorithm, method)).parameters)
        check_arguments(getattr(kind, method), names, method)
    return kind


def _in_words(value: Any) -> str:
    return f"the class {value.__name__}" if inspect.isclass(value) else f"a {type(value).__name__}"


ALGORITHMS: dict[str, type[Algorithm]] = {
    name: getattr(importlib.import_module(f"{__name__}.{name}"), entry.attribute)
    for name, entry in entries("algorithm").items()
}


def title_of(name: str) -> str:
    """Display name of an algorithm, in tables and figures, from its name or reference."""
    kind = plugins.ALGORITHMS.find(name)
    return str(vars(kind).get("title", kind.__name__))


def __getattr__(name: str) -> type[Algorithm]:
    for kind in ALGORITHMS.values():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
