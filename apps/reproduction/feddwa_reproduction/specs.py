"""The grid language: experiments from the entries of a TOML file.

Files: experiments.toml (the paper's tables and figures), beyond.toml (docs/beyond.md, docs/field.md, docs/natural.md),
protocols/NAME.toml (benchmarks of other libraries, --protocol), and a user's own (--spec).
"""

import dataclasses
import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddwa.algorithms import ALGORITHMS, title_of
from feddwa.errors import InputError, require, unknown
from feddwa.groups import expanded, groups
from feddwa.plugins import is_reference, located
from feddwa_reproduction.grid import COMPUTED, OPTIONS, Column, Experiment, Row

HERE = Path(__file__).parent
KINDS = (
    "table", "grid", "sweep", "curves", "similarity", "spread", "heatmaps", *COMPUTED,
    "accuracy", "paired", "less-first-row", "equal-bytes", "equal-flops", "in-group", "unequal", "partners",
    "protocol",
)  # fmt: skip
PLAIN = ("title", "axis", "keep_weights", "gains", "budget", "source", "measure", "reported")  # fields of an Experiment
LISTS = ("beside", "claims", "remarks")  # likewise, of several strings
KEYS = (
    "kind",
    "like",
    "columns",
    "rows",
    "without",
    "labels",
    "dagger",
    "also",
    "seeds",
    "published",
    "passes",
    *PLAIN,
    *LISTS,
)  # of an entry
SHARED = ("settings", "seeds", "tuned", "titles")  # tables of a file that are not entries


@functools.cache
def paper() -> dict[str, Experiment]:
    """The paper's tables and figures by name, in its order."""
    return read_spec(HERE / "experiments.toml")


@functools.cache
def beyond() -> dict[str, Experiment]:
    """The tables of docs/beyond.md, docs/field.md and docs/natural.md by name."""
    return read_spec(HERE / "beyond.toml")


def experiments() -> dict[str, Experiment]:
    """All experiments of both files."""
    return {**paper(), **beyond()}


def experiment(name: str) -> Experiment:
    """An experiment by name; InputError if there is none."""
    known = experiments()
    if name not in known:
        raise unknown("reproduce", name, known)
    return known[name]


@functools.cache
def protocols() -> dict[str, Experiment]:
    """Benchmarks of other libraries by name, one file each."""
    return {path.stem: protocol(path.stem) for path in sorted((HERE / "protocols").glob("*.toml"))}


def protocol(name: str, columns: Sequence[str] = (), methods: Sequence[str] = ()) -> Experiment:
    """One of them; columns, methods: further ones, DATASET/SETTING with any dataset and a setting of it."""
    path = HERE / "protocols" / f"{name}.toml"
    if not path.is_file():
        raise unknown("--protocol", name, [each.stem for each in sorted(path.parent.glob("*.toml"))])
    return read_spec(path, columns, methods, "--protocol")[name]


def read_spec(
    path: Path, columns: Sequence[str] = (), rows: Sequence[str] = (), told: str = ""
) -> dict[str, Experiment]:
    """The entries of a file by name; columns, rows: further ones of each; told: what errors call it.

    [settings.NAME]   options of RunConfig; `text`, `label`; `of.DATASET` = further options of the partition
    [seeds]           column -> seeds, a number or a list; "*" = other columns
    [tuned]           column -> method -> hyper-parameters
    [titles]          dataset -> how tables call it

    Rows may be groups of methods, as `--algorithms` takes them, `without` some; `dagger` marks what the paper does not
    compare. An entry that is `like` another one has what that has, and its own keys besides. Keys that are options of a
    run, such as `rounds`, hold for all its runs. [NAME.published] has a source's numbers: a row, or a method as the
    source calls it -> a number for each column. References to files, of methods and in settings, are relative to the
    file's folder.
    """
    where = told or f"--spec {path}"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None
    shared = {name: document.pop(name, {}) for name in SHARED}
    shared["settings"] = {name: _beside(path, table) for name, table in shared["settings"].items()}
    found = {}
    for name in document:
        table = _whole(document, name, where)
        named, left = expanded(table.get("rows", table.get("labels", ())))[0], table.get("without", ())
        table["rows"] = [_beside(path, {"": row})[""] for row in named if row not in left]
        further = [column for column in columns if column not in table.get("columns", ())]
        table["also"] = {**dict.fromkeys(further, ""), **table.get("also", {})}
        here = {word for row in table["rows"] for word in (row, row.split()[0])}
        table["rows"] += [row for row in rows if row not in here]
        found[name] = _experiment(name, table, shared, f"{where}: [{name}]")
    return found


def _whole(document: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """An entry merged with the one named by its `like`."""
    table, others = document[name], {key: value for key, value in document.items() if key != name}
    if "like" not in table:
        return dict(table)
    if table["like"] not in others:
        raise unknown(f"{where}: [{name}] like", table["like"], others)
    return {**_whole(others, table["like"], where), **table}


def _beside(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with file references made absolute, relative to the folder of `path`."""
    found = {}
    for key, value in table.items():
        first, *rest = value.split(" ") if isinstance(value, str) else [""]
        reference = is_reference(first) and ".py:" in first
        found[key] = " ".join([located(str(path.resolve().parent / first)), *rest]) if reference else value
    return found


def _experiment(name: str, table: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> Experiment:
    kind, printed, labels = table.get("kind", "table"), _by_row(table.get("published", {})), table.get("labels", {})
    if kind not in KINDS:
        raise unknown(f"{where} kind", kind, KINDS)
    for key in table:
        if key not in KEYS and key not in OPTIONS:
            raise unknown(f"{where} key", key, [*KEYS, *OPTIONS])
    others = [name for name in printed if kind == "protocol" and name.split()[0] not in ALGORITHMS]
    rows = list(dict.fromkeys([*table["rows"], *(name for name in printed if name not in others)]))
    given = {**table, "rows": rows} if rows else {key: value for key, value in table.items() if key != "rows"}
    for key in ("title",) if kind in COMPUTED else ("title", "columns", "rows"):
        require(key in given, where, sorted(given), f"a table with {key}")
    grid = {
        (column, row): number
        for row, numbers in printed.items()
        for column, number in zip(table["columns"], numbers, strict=True)
    }
    own = {column: column for column in table.get("columns", ())}
    columns = (
        dataclasses.replace(_column(column, shared, where), numbers=numbers, seeds=_seeds(column, table, shared))
        for column, numbers in {**own, **table.get("also", {})}.items()
    )
    plain: dict[str, Any] = {key: tuple(table.get(key, ())) for key in LISTS}
    plain |= {key: table[key] for key in PLAIN if key in table}
    plain["options"] = {key: table[key] for key in table if key in OPTIONS}
    plain["rows"] = tuple(_row(row, labels, where, table.get("dagger", False)) for row in rows)
    plain["others"] = tuple(Row(name, name) for name in others)
    return Experiment(name, kind=kind, columns=tuple(columns), published=grid, **plain)


def _by_row(published: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """The numbers by row; where a source's name of a method is the title of one that is here, that is the row."""
    rows = {ALGORITHMS[name].title.lower(): name for name in ALGORITHMS}
    return {rows.get(name.lower(), name): numbers for name, numbers in published.items()}


def _row(name: str, labels: Mapping[str, str], where: str, dagger: bool) -> Row:
    row = Row(name)
    for value in row.values:
        require("=" in value, f"{where} rows", name, f"METHOD KEY=VALUE ..., which {value!r} is not")
    mark = ["†"] if dagger and row.method not in groups()["@paper"] else []
    return Row(name, labels.get(name) or " ".join([title_of(row.method), *mark, *row.values]))


def _column(name: str, shared: Mapping[str, Any], where: str) -> Column:
    dataset, _, setting = name.partition("/")
    title = shared["titles"].get(dataset, dataset)
    if not setting:  # of a table of costs: the network alone counts
        return Column(name, {"dataset": dataset}, title=title)
    if setting not in shared["settings"]:
        raise unknown(f"{where} columns", name, [f"DATASET/{known}" for known in shared["settings"]])
    table = dict(shared["settings"][setting])
    text, special, shown = table.pop("text", ""), table.pop("of", {}), table.pop("label", setting)
    options = {"dataset": dataset, **table, "param": (*table.pop("param", ()), *special.get(dataset, ()))}
    return Column(name, options, text, shown, title, tuned=shared["tuned"].get(name, {}))


def _seeds(column: str, table: Mapping[str, Any], shared: Mapping[str, Any]) -> tuple[int, ...]:
    """The entry's own seeds, else the column's."""
    given = table.get("seeds", shared["seeds"].get(column, shared["seeds"].get("*", 3)))
    return tuple(given) if isinstance(given, list) else tuple(range(given))


def paper_passes() -> dict[str, float]:
    """Method -> passes over the data that explain the paper's FLOPs."""
    return dict(tomllib.loads((HERE / "experiments.toml").read_text(encoding="utf-8"))["flops"]["passes"])


def methods() -> dict[str, str]:
    """The paper's fourteen methods, in its order: name -> title."""
    return {row.method: title_of(row.method) for row in paper()["table1"].rows}
