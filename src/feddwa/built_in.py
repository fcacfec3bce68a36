"""The package's named components, read from its source, so that lists, help and errors do not import torch.

A class describes itself by its docstring, constants (`title = "FedProx"`) and fields with docstrings. `Entry` holds
them. `entry_of` builds the same from an imported class or function.
"""

import ast
import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from feddwa import params
from feddwa.data.catalogue import DATASETS
from feddwa.data.entry import DatasetInfo
from feddwa.params import Tunable

PACKAGE = Path(__file__).parent
PERSONAL = ("order", "year")  # constants that subclasses do not inherit


class Parameter(NamedTuple):
    """A field of a dataclass."""

    type: str  # as in the source
    default: Any
    text: str  # its docstring, in one line
    search: str = ""  # values that `feddwa tune` tries, in the syntax of --space; "" if none


@dataclass(frozen=True)
class Entry:
    """Source information about a named component."""

    attribute: str  # name of the class or function in its module
    facts: Mapping[str, Any]  # "summary" and the class's constants, including inherited ones
    doc: str = ""  # docstring of the class or function
    module_doc: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def entries(kind: str) -> dict[str, Entry]:
    """Name -> entry of all built-in components of a kind: "algorithm", "dataset", "model", "partition" and so on."""
    readers: dict[str, Callable[[], dict[str, Entry]]] = {
        "algorithm": _algorithms, "dataset": _datasets, "model": _models,
        "partition": functools.partial(_of_table, "data/partition.py", "PARTITIONS", "data/schemes"),
        "attack": functools.partial(_of_table, "attacks/__init__.py", "ATTACKS", "attacks"),
        "defence": functools.partial(_of_table, "defences/__init__.py", "DEFENCES", "defences"),
        "loss": functools.partial(_functions, "LOSSES"), "metric": functools.partial(_functions, "METRICS"),
    }  # fmt: skip
    return readers[kind]()


def entry_of(value: Any) -> Entry:
    """The entry of an imported class or function from any package. Title and summary are not inherited."""
    doc, own = inspect.getdoc(value) or "", dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    texts = fields_text(value) if own else {}
    kinds = params.fields_of(value) if own else {}
    parameters = {
        each.name: Parameter(
            _type(each), each.default, texts.get(each.name, ""), str(params.tunable_of(kinds[each.name][0]) or "")
        )
        for each in own
        if each.name in kinds
    }
    lineage = [vars(each) for each in reversed(getattr(value, "__mro__", ()))]
    said = {name: each for known in lineage for name, each in known.items() if isinstance(each, str | int | float)}
    facts = {name: each for name, each in said.items() if not name.startswith("_") and name not in parameters}
    usual = {"title": value.__name__, "summary": doc.partition("\n")[0]}
    facts |= {name: vars(value).get(name, text) for name, text in usual.items()}
    facts = {name: each for name, each in facts.items() if name not in PERSONAL or name in vars(value)}
    return Entry(value.__name__, facts, doc, getattr(inspect.getmodule(value), "__doc__", None) or "", parameters)


def _type(field: "dataclasses.Field[Any]") -> str:
    """The type as in the source, without marks for the search."""
    if not isinstance(field.type, str) and params.tunable_of(field.type) is not None:
        return inspect.formatannotation(field.type.__origin__)
    return field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)


def fields_text(kind: type) -> dict[str, str]:
    """Name -> one-line docstring of every field of a dataclass; "" if it has none."""
    return {name: parameter.text for name, parameter in _parameters(_sources_of(kind)).items()}


@functools.cache
def _algorithms() -> dict[str, Entry]:
    """Files of algorithms/ with a class that has a `title`, by file name; in the order of the paper's tables."""
    files = sorted((PACKAGE / "algorithms").glob("*.py"))
    known = {node.name: node for file in files for node in _classes(file)}
    titled = [(file, node) for file in files for node in _classes(file) if "title" in _constants([node])]
    places = {file.stem: (_constants([node]).get("order", math.inf), file.stem) for file, node in titled}
    found = {file.stem: _entry(_lineage(node, known), ast.get_docstring(_tree(file)) or "") for file, node in titled}
    return {name: found[name] for name in sorted(found, key=places.__getitem__)}


@functools.cache
def _of_table(module: str, table: str, folder: str) -> dict[str, Entry]:
    """The classes in a module's table; folder: holds their files."""
    files = sorted((PACKAGE / folder).glob("*.py"))
    known = {node.name: node for file in files for node in _classes(file)}
    named = _table(PACKAGE / module, table)
    return {name: _entry(_lineage(known[_id(value)], known), "") for name, value in named.items()}


@functools.cache
def _models() -> dict[str, Entry]:
    """Entries Model(function, "which samples it takes", ...) of a table; the functions are in neighbouring files."""
    folder = PACKAGE / "models"
    trees = [_tree(file) for file in sorted(folder.glob("*.py"))]
    functions = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = {}
    for name, value in _table(folder / "registry.py", "MODELS").items():
        assert isinstance(value, ast.Call)
        builder, takes = functions[_id(value.args[0])], ast.literal_eval(value.args[1])
        doc = ast.get_docstring(builder) or ""
        known = _arguments(builder, doc)
        told = "\n".join(line for line in doc.splitlines() if line.partition(":")[0] not in known).strip()
        found[name] = Entry(builder.name, {"summary": f"takes {takes}"}, told, parameters=known)
    return found


@functools.cache
def _functions(table: str) -> dict[str, Entry]:
    """Losses or metrics: a module's functions in a table."""
    file = PACKAGE / "scoring.py"
    docs = {node.name: ast.get_docstring(node) or "" for node in _tree(file).body if isinstance(node, ast.FunctionDef)}
    names = {name: _id(value) for name, value in _table(file, table).items()}
    known = {name: docs.get(own, f"torch.nn.functional.{own}.") for name, own in names.items()}
    return {name: Entry(names[name], {"summary": doc.partition("\n")[0]}, doc) for name, doc in known.items()}


def _arguments(builder: ast.FunctionDef, doc: str) -> dict[str, Parameter]:
    """The arguments for --model-arg: those with a default or a line "NAME: meaning" in the docstring."""
    given = builder.args.args
    without = [None] * (len(given) - len(builder.args.defaults))
    texts = {name: text.strip() for name, colon, text in (line.partition(":") for line in doc.splitlines()) if colon}
    return {
        each.arg: Parameter(ast.unparse(each.annotation or each), _default(value), texts.get(each.arg, ""))
        for each, value in zip(given, [*without, *builder.args.defaults], strict=True)
        if value is not None or each.arg in texts
    }


def _default(value: ast.expr | None) -> Any:
    return None if value is None else ast.literal_eval(value)


def _datasets() -> dict[str, Entry]:
    """The catalogue, whose import is cheap."""
    return {name: Entry("", _dataset_facts(info)) for name, info in DATASETS.items()}


def _dataset_facts(info: DatasetInfo) -> dict[str, Any]:
    own, usual = ("summary", "shape", "classes", "rows"), ("model", "rounds", "batch_size", "lr", "partition")
    facts = {key: getattr(info, key) for key in own}
    return facts | {f"default {key}": getattr(info.defaults, key) for key in usual}


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _classes(file: Path) -> list[ast.ClassDef]:
    return [node for node in _tree(file).body if isinstance(node, ast.ClassDef)]


def _sources_of(kind: type) -> list[ast.ClassDef]:
    """The source of a class preceded by its base classes; classes without a source file are left out."""
    files = {each: getattr(sys.modules.get(each.__module__), "__file__", None) for each in reversed(kind.__mro__)}
    known = ((each, _classes(Path(file))) for each, file in files.items() if file and file.endswith(".py"))
    return [node for each, nodes in known for node in nodes if node.name == each.__name__]


def _lineage(node: ast.ClassDef, known: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """A class preceded by its base classes, as far as they are known by name."""
    bases = [known[_id(base)] for base in node.bases if _id(base) in known]
    return [each for base in bases for each in _lineage(base, known)] + [node]


def _entry(lineage: Sequence[ast.ClassDef], module_doc: str) -> Entry:
    doc, own = ast.get_docstring(lineage[-1]) or "", _constants(lineage[-1:])
    known = {"summary": doc.partition("\n")[0], **_constants(lineage)}
    facts = {key: value for key, value in known.items() if key not in PERSONAL or key in own}
    return Entry(lineage[-1].name, facts, doc, module_doc, _parameters(lineage))


def _constants(lineage: Sequence[ast.ClassDef]) -> dict[str, Any]:
    """NAME = LITERAL, also several at once, and NAME: ClassVar[...] = LITERAL of all classes; later ones override."""
    found: dict[str, Any] = {}
    for statement in (statement for node in lineage for statement in node.body):
        if isinstance(statement, ast.Assign) and _is_literal(statement.value):
            value = ast.literal_eval(statement.value)
            for target in statement.targets:
                several = target.elts if isinstance(target, ast.Tuple) else None
                found |= {_id(target): value} if several is None else zip(map(_id, several), value, strict=True)
        elif isinstance(statement, ast.AnnAssign) and _is_class_variable(statement) and _is_literal(statement.value):
            assert statement.value is not None
            found[_id(statement.target)] = ast.literal_eval(statement.value)
    return found


def _parameters(lineage: Sequence[ast.ClassDef]) -> dict[str, Parameter]:
    """The fields of all classes, in the order of a dataclass."""
    return {name: parameter for node in lineage for name, parameter in _own_parameters(node)}


def _own_parameters(node: ast.ClassDef) -> Iterator[tuple[str, Parameter]]:
    for statement, below in pairwise([*node.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and not _is_class_variable(statement):
            value = statement.value
            default = ast.literal_eval(value) if value and _is_literal(value) else value and ast.unparse(value)
            text = ast.get_docstring(ast.Module([below], [])) or ""
            kind, search = _annotation(statement.annotation)
            yield _id(statement.target), Parameter(ast.unparse(kind), default, " ".join(text.split()), search)


def _annotation(kind: ast.expr) -> tuple[ast.expr, str]:
    """(type, search): both from Annotated[TYPE, Tunable(...)]; other types unchanged."""
    if isinstance(kind, ast.Subscript) and _id(kind.value) == "Annotated" and isinstance(kind.slice, ast.Tuple):
        plain, *marks = kind.slice.elts
        for mark in marks:
            if isinstance(mark, ast.Call) and _id(mark.func) == "Tunable":
                given = {str(each.arg): ast.literal_eval(each.value) for each in mark.keywords}
                return plain, str(Tunable(*map(ast.literal_eval, mark.args), **given))
    return kind, ""


def _id(node: ast.expr) -> str:
    """The name in a name expression; "" for any other expression."""
    return node.id if isinstance(node, ast.Name) else ""


def _is_class_variable(statement: ast.AnnAssign) -> bool:
    kind = statement.annotation
    return _id(kind.value if isinstance(kind, ast.Subscript) else kind) == "ClassVar"


def _is_literal(value: ast.expr | None) -> bool:
    try:
        return value is not None and ast.literal_eval(value) is not ...
    except ValueError:
        return False


def _table(file: Path, name: str) -> dict[str, ast.expr]:
    """Key -> value of a module's dictionary NAME = {"key": value, ...}; keys that are not literals are left out."""
    for statement in _tree(file).body:
        if isinstance(statement, ast.AnnAssign) and _id(statement.target) == name:
            assert isinstance(statement.value, ast.Dict)
            pairs = zip(statement.value.keys, statement.value.values, strict=True)
            return {ast.literal_eval(key): value for key, value in pairs if key is not None}
    raise LookupError(f"{file}: no table {name}")
