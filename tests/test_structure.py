"""The shape of the package: imports without cycles that point one way, and files that one can read."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

import feddwa
from feddwa.algorithms import METHODS, Problem
from feddwa.engine import Model, Stack
from feddwa.engine.network import descend
from feddwa.engine.numbers import Number
from feddwa.engine.rows import row

ROOT = Path(feddwa.__file__).parent
# Layers from the bottom up. A module imports from its own layer and from those below; nothing from above.
LAYERS = (
    {"errors", "storage", "params", "checkpoint", "ranks"},  # values, files: nothing of the field
    {"built_in", "groups", "plugins", "data", "models", "scoring", "options"},
    {"engine"},
    {"ledger", "mixing", "sketch", "updates", "batchnorm"},  # pure functions of messages and stacks
    {"algorithms", "attacks", "defences", "faults", "privacy"},
    {"contract", "sides", "shards", "row_location", "state", "federation", "personal"},  # the round
    {
        "recipe",
        "config",
        "config_file",
        "seeds",
        "result",
        "callbacks",
        "trackers",
        "results",
        "trained",
        "build",
        "fit",
        "rates",
        "objects",
        "experiment",
        "forecast",
        "entry",
        "workers",
        "calibrate",
        "tune",
    },
    {"datacheck", "doctor", "report", "flower", "cli", "__main__"},
)


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of all modules of the package; a package's own name is its __init__.py."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(name: str) -> dict[str, int]:
    """Modules of the package that a module imports, anywhere in its text -> the line.

    An import inside a function counts like one at the top: if it is there to dodge a cycle, the cycle is there. So do
    imports under TYPE_CHECKING, but for those of `feddwa/__init__.py`, which declare the names that it loads lazily.
    """
    if name == "feddwa":
        return {}
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(modules()[name].read_text(encoding="utf-8"))):
        for target in _targets(node):
            if target != name:
                found.setdefault(target, node.lineno)
    return found


def _targets(node: ast.AST) -> Iterator[str]:
    """`from package import module` is an import of that module; of any other name, one of the package."""
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        assert node.level == 0, "relative imports are not used here"
        inside = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (target if target in modules() else node.module for target in inside if node.module in modules())
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules())


def layer(name: str) -> int | None:
    """The number of a module's layer; None: the package's front door, which loads everything lazily."""
    parts = name.split(".")
    if len(parts) == 1:
        return None
    return next((number for number, layer in enumerate(LAYERS) if parts[1] in layer), None)


def cycle_through(start: str) -> list[str]:
    """The shortest way along imports from a module back to itself; [] if there is none."""
    ways, seen = [[start]], set()
    for way in ways:
        for target in imports(way[-1]):
            if target == start:
                return [*way, start]
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []


def test_no_module_imports_itself_by_way_of_others():
    cycles = {frozenset(cycle): cycle for name in modules() if (cycle := cycle_through(name))}
    assert not cycles, "; ".join(" -> ".join(cycle) for cycle in cycles.values())


def test_every_module_has_a_layer():
    lost = [name for name in modules() if name != "feddwa" and layer(name) is None]
    assert not lost, f"add to LAYERS: {lost}"


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_dependencies_point_one_way(number):
    upwards = [
        f"{name}:{line} imports {target}"
        for name in modules()
        if layer(name) == number
        for target, line in imports(name).items()
        if (layer(target) or 0) > number
    ]
    assert not upwards, "\n".join(upwards)


def test_what_is_fast_is_not_what_is_trained():
    """`engine/fast` holds implementations. Lockstep alone, which is an engine, knows the engine."""
    known = {f"feddwa.engine.{name}" for name in ("keys", "rows", "types")}
    lockstep = {f"feddwa.engine.fast.{name}" for name in ("lockstep", "requests", "worker")}
    for name in modules():
        if name.startswith("feddwa.engine.fast") and name not in lockstep:
            upwards = {t for t in imports(name) if t.startswith("feddwa.engine") and ".fast" not in t} - known
            assert not upwards, f"{name} imports {upwards}"


@pytest.mark.parametrize(("folder", "longest"), [(".", 300), ("algorithms", 140)])
def test_files_are_short_enough_to_be_read_from_top_to_bottom(folder, longest):
    lengths = {path.name: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert not {name: length for name, length in lengths.items() if length > longest}


def signatures(path: Path) -> dict[str, str]:
    """Method -> arguments and result with their types, of the classes in a file."""
    methods = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return {node.name: f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}" for node in methods if node.returns}


ALGORITHMS = sorted((ROOT / "algorithms").glob("*.py"))


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_algorithms_tell_messages_memory_and_server_state_apart_as_the_interface_does(path):
    """One structure, part -> name -> tensor, and three names for it: a reader sees which one a method handles."""
    interface, own = signatures(ROOT / "algorithms" / "base.py"), signatures(path)
    shared = {name: own[name] for name in METHODS if name in own}
    assert shared == {name: interface[name] for name in shared}


def test_a_model_is_a_type_of_its_own():
    """mypy, which `make lint` runs, refuses a stack where one client's model is asked for."""
    assert Model is not Stack
    assert get_type_hints(descend) == {"params": Model, "gradient": Model, "rate": Number, "return": Model}
    assert get_type_hints(row) == {"stack": Stack, "number": int, "return": Model}
    assert get_type_hints(Problem)["initial"] is Model


def test_the_check_sees_imports_of_every_kind():
    """In functions, under TYPE_CHECKING, of modules and of names."""
    text = "def f():\n    from feddwa.engine import keys, Trainer\nif TYPE_CHECKING:\n    import feddwa.mixing\n"
    found = [target for node in ast.walk(ast.parse(text)) for target in _targets(node)]
    assert sorted(found) == ["feddwa.engine", "feddwa.engine.keys", "feddwa.mixing"]
