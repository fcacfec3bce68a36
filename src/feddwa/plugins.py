"""Algorithms, networks, partitions, datasets, attacks and defences by name, from any package or file.

    fedavg                   a name of this package
    ditto                    a name that an installed package has registered under an entry point (`feddwa.algorithms`)
    mypkg.mymodule:Ditto     a reference: an attribute of a module on Python's path or in the current folder
    path/to/file.py:Ditto    a reference: an attribute of a file
    timm:resnet18            a network of an installed library (torchvision, timm, hf)

References are accepted wherever names are: options, TOML files, Python. A run stores them in config.toml, so that every
reader of the run directory finds the same code.
"""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from feddwa.built_in import entries
from feddwa.errors import InputError, one_line, shown, unknown

T = TypeVar("T")
LIBRARIES = ("torchvision", "timm", "hf")  # with networks by name, see feddwa.models.libraries
HUB = "hf:"  # prefix of the name of a Hugging Face repository
REFERENCE = re.compile(r"(?!hf:)(?P<place>.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*(\.[^\W\d]\w*)*)")


HELD = "feddwa.objects:HERE."  # prefix of references to objects without a name


class Unfit(ValueError):
    """The reason why an object cannot be used: "is a function, must be ..."."""


@dataclass(frozen=True)
class Registry:
    """All names and references of one kind.

    Names come from the source of this package and from the metadata of installed ones; `find` imports code.
    """

    kind: str  # "algorithm" for the option --algorithm and the entry points feddwa.algorithms
    home: str  # module with the built-in ones in ALGORITHMS, and `adopt`, which converts an object
    several: str = ""  # the plural, if it is not `kind` with an s

    @property
    def plural(self) -> str:
        """The plural of `kind`, as in the entry-point group `feddwa.algorithms`."""
        return self.several or f"{self.kind}s"

    @property
    def builtin(self) -> Mapping[str, Any]:
        """Name -> object, of this package."""
        found: Mapping[str, Any] = getattr(importlib.import_module(self.home), self.plural.upper())
        return found

    def check(self, name: str, option: str = "") -> None:
        """Raise InputError unless `name` is known or has the form of a reference; option: default --KIND."""
        if not self.knows(name):
            libraries = [f"{library}:NAME" for library in LIBRARIES if self.kind == "model"]
            reference = f"a reference such as mypkg.mymodule:{self.kind.title()}"
            raise unknown(option or f"--{self.kind}", name, [*self, *libraries, reference])

    def find(self, name: str, option: str = "") -> Any:
        """The object for a name or reference; InputError names `option` (default: --KIND) and the problem."""
        self.check(name, option)
        if name in entries(self.kind):
            return self.builtin[name]
        try:
            if self.kind == "model" and (library := library_of(name)):
                return importlib.import_module(self.home).from_library(library, name.removeprefix(f"{library}:"))
            return importlib.import_module(self.home).adopt(resolve(self.plugins().get(name, name)))
        except Unfit as error:
            told = label(name) if name.startswith(HELD) else name
            raise InputError(f"{option or f'--{self.kind}'} {told}: {error}") from error.__cause__

    def plugins(self) -> dict[str, str]:
        """Name -> reference registered by installed packages; names of this package take precedence."""
        from importlib.metadata import entry_points  # a slow import

        found = {entry.name: entry.value for entry in entry_points(group=f"feddwa.{self.plural}")}
        return {name: found[name] for name in sorted(found) if name not in entries(self.kind)}

    def knows(self, name: str) -> bool:
        """Whether it is a known name, or has the form of a reference."""
        library = self.kind == "model" and library_of(name)
        return bool(library) or name in entries(self.kind) or is_reference(name) or name in self.plugins()

    def name_of(self, value: object) -> str:
        """The name of a built-in object, or a reference to any other."""
        names = (name for name, known in self.builtin.items() if known is value)
        return next(names, "") or reference_to(value, self.kind)

    def __iter__(self) -> Iterator[str]:
        """All names: those of this package, then those of plug-ins."""
        yield from entries(self.kind)
        yield from self.plugins()


ALGORITHMS = Registry("algorithm", "feddwa.algorithms")  # classes
DATASETS = Registry("dataset", "feddwa.data.sources")  # entries of the catalogue, and functions of `data_dir`
MODELS = Registry("model", "feddwa.models")
PARTITIONS = Registry("partition", "feddwa.data.partition")  # classes
LOSSES = Registry("loss", "feddwa.scoring", "losses")  # functions of outputs and targets
METRICS = Registry("metric", "feddwa.scoring")
ATTACKS = Registry("attack", "feddwa.attacks")  # classes
DEFENCES = Registry("defence", "feddwa.defences")


def check_dataset(name: str) -> None:
    """Raise InputError unless a dataset's name is known, has the form of a reference, or is an existing path."""
    if not (DATASETS.knows(name) or name.startswith(HUB) or (name and os.path.exists(name))):
        valid = f"{', '.join(DATASETS)}, or a path"
        raise InputError(f"--dataset: unknown name {shown(name)}, and no such file or folder; valid: {valid}")


def metric_of(entry: str) -> tuple[str, str]:
    """(display name, name or reference of the function) of NAME, REFERENCE or NAME=REFERENCE."""
    name, equals, function = entry.partition("=")
    return (name, function) if equals and re.fullmatch(r"[\w-]+", name) else (label(entry), entry)


def by_owners(partition: str) -> bool:
    """Whether a partition divides data by their owners, who determine the number of clients."""
    known = entries("partition")
    reads = known[partition].facts["reads"] if partition in known else PARTITIONS.find(partition).reads
    return bool(reads == "owners")


def library_of(name: str) -> str:
    """The library of a network LIBRARY:NAME; "" for any other name."""
    return next((library for library in LIBRARIES if name.startswith(f"{library}:") and name[len(library) + 1 :]), "")


def is_reference(name: str) -> bool:
    """Whether a name has the form MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE."""
    return REFERENCE.fullmatch(name) is not None


def is_foreign(name: str) -> bool:
    """Whether a name refers to code or weights outside this package: a reference, LIBRARY:NAME or NAME@FILE."""
    return is_reference(name) or library_of(name) != "" or "@" in name


def label(name: str) -> str:
    """A name, or the attribute of a reference, for tables, folders and --param."""
    name = name.partition("@")[0]
    if library := library_of(name):
        return Path(name.removeprefix(f"{library}:")).name
    found = REFERENCE.fullmatch(name)
    return name if found is None else found["attribute"].rpartition(".")[2]


def located(name: str) -> str:
    """A reference with the absolute path of its file, valid in any folder; other names unchanged."""
    library, found = library_of(name), REFERENCE.fullmatch(name)
    if library and os.path.exists(path := name.removeprefix(f"{library}:")) and library == "hf":
        return f"{library}:{os.path.abspath(path)}"
    if library or found is None or not found["place"].endswith(".py"):
        return name
    return f"{os.path.abspath(found['place'])}:{found['attribute']}"


def resolve(reference: str) -> Any:
    """The object of a reference. Its module is imported once."""
    found = REFERENCE.fullmatch(reference)
    assert found is not None
    place = found["place"]
    value: Any = _from_file(os.path.abspath(place)) if place.endswith(".py") else _from_path(place)
    for part in found["attribute"].split("."):
        if not hasattr(value, part):
            own = [name for name, each in vars(value).items() if getattr(each, "__module__", "") == value.__name__]
            raise Unfit(f"{place} has no {part}; it has {', '.join(own) or 'nothing of its own'}")
        value = getattr(value, part)
    return value


def reference_to(value: Any, kind: str) -> str:
    """The reference of a class or function; InputError if no other process would find it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__name__)
    source = getattr(sys.modules.get(module or ""), "__file__", None)
    if "<" in name or (module == "__main__" and not source) or not _leads_to(value, module, name):
        valid = "at the top level of a module or script, so that the run directory can name it"
        told = f"{name.replace('<locals>.', '')} must be a class or a function {valid}"
        raise InputError(f"{kind}: {told}; or take out=False, which writes nothing")
    from_file = module == "__main__" or str(module).startswith(_FILES)
    return f"{os.path.abspath(source)}:{name}" if from_file and source else f"{module}:{name}"


def _leads_to(value: Any, module: str | None, name: str) -> bool:
    """Whether the attribute MODULE:NAME is this object."""
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def dataclass_of(base: type[T], found: Any) -> type[T]:
    """A class from outside the package as a frozen dataclass of a base; raises Unfit if it cannot be one."""
    kind: type[T] = found
    if not (isinstance(found, type) and issubclass(found, base) and dataclasses.is_dataclass(found)):
        name = f"{base.__module__.removesuffix('.base')}.{base.__name__}"
        raise Unfit(f"must be a frozen dataclass that inherits from {name}")
    check_defaults(found)
    return kind


def check_defaults(kind: Any) -> None:
    """Raise Unfit if a field of a dataclass has no default."""
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING:
            raise Unfit(f"its field {field.name} has no default; every hyper-parameter must have one")


def check_arguments(function: Callable[..., Any], names: tuple[str, ...], what: str) -> None:
    """Raise Unfit unless a function accepts these positional arguments."""
    try:
        signature(function).bind(*names)
    except TypeError:
        raise Unfit(f"{what}{signature(function)} must take ({', '.join(names)})") from None


def accepted(function: Callable[..., Any], offered: tuple[str, ...]) -> tuple[str, ...]:
    """The offered keyword arguments that a function accepts; raises Unfit if it needs others."""
    known = signature(function).parameters
    lacking = [name for name, each in known.items() if _required(each) and name not in offered]
    if lacking:
        raise Unfit(f"needs the argument {lacking[0]}; without a default it may have: {', '.join(offered)}")
    return tuple(name for name in offered if name in known)


def _required(argument: inspect.Parameter) -> bool:
    variable = argument.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return argument.default is inspect.Parameter.empty and not variable


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """The arguments of a function or class; raises Unfit if Python does not know them."""
    try:
        return inspect.signature(function)
    except ValueError:
        raise Unfit("has no signature that Python knows; wrap it in a function") from None


_FILES = "feddwa_file_"  # prefix of the names of modules loaded from a file


def _from_file(path: str) -> ModuleType:
    """The module in a file; the running script is not loaded a second time."""
    main = sys.modules.get("__main__")
    if main is not None and os.path.abspath(getattr(main, "__file__", None) or "") == path:
        return main
    name = _FILES + re.sub(r"\W", "_", Path(path).stem) + f"_{zlib.crc32(path.encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    if not os.path.isfile(path):
        raise Unfit(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        _guarded(functools.partial(spec.loader.exec_module, module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_path(name: str) -> ModuleType:
    """The module of a name, also in the current folder, which the `feddwa` command does not search otherwise."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return _guarded(functools.partial(importlib.import_module, name), name)  # type: ignore[no-any-return]
    finally:
        sys.path.remove(here)


def _guarded(load: Callable[[], Any], name: str = "") -> Any:
    """The result of a module's code; any exception becomes one line with its place in the code."""
    try:
        return load()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise Unfit(f"there is no module {error.name} on Python's path or in {os.getcwd()}") from None
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
        raise Unfit(f"importing it failed: {type(error).__name__}: {one_line(error)}{place}") from error
