"""The specifications: experiments.toml as dataclasses, and the runs that they ask for.

An experiment is a grid: its columns are data ("cifar10/pathological"), its rows are methods ("feddwa top_k=3"). Where
they meet is a cell, one configuration that is run with several seeds. Experiments share cells.
"""

import dataclasses
import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from feddwa.algorithms import title_of
from feddwa.config import RunConfig
from feddwa.errors import InputError, require, unknown
from feddwa.plugins import is_reference, label, located

Scale = Literal["paper", "smoke"]

DATASET_ORDER = ("cifar10", "tiny-imagenet-32", "emnist-letters", "emnist", "cifar100", "cinic10")  # of running
FIRST = ("feddwa", "local", "fedavg", "fedavg_ft")  # methods that are run first: they answer the main question
SMOKE_ROUNDS, SMOKE_CLIENTS = 2, 8


@dataclass(frozen=True)
class Column:
    """Data and who has them."""

    name: str  # "dataset/setting"
    text: str
    options: Mapping[str, Any] = field(hash=False)  # of RunConfig
    numbers: str = ""  # the column of the paper whose numbers stand beside ours
    seeds: int = 3  # runs of every cell, with seeds 0, 1, ...

    @property
    def dataset(self) -> str:
        """The dataset of the paper's scale."""
        return self.name.partition("/")[0]

    @property
    def setting(self) -> str:
        """Who has what."""
        return self.name.partition("/")[2]


@dataclass(frozen=True)
class Row:
    """A method with its hyper-parameters, and what of it is measured."""

    name: str  # "method key=value ... @series"
    label: str

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return self.name.split()[0]

    @property
    def param(self) -> tuple[str, ...]:
        """The hyper-parameters that differ from the method's defaults."""
        return tuple(word for word in self.name.split()[1:] if not word.startswith("@"))

    @property
    def series(self) -> str:
        """Which series of a result is measured: the paper's, or that after local training."""
        return "after" if self.name.endswith("@after") else "paper"

    @property
    def by_affinity(self) -> bool:
        """Whether partners are those of largest learned affinity, instead of largest weight."""
        return self.name.endswith("@affinity")


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    kind: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    rounds: int = 100
    axis: str = ""  # of a sweep: what the rows vary
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (column, row) -> the paper's number
    claims: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether it consists of runs; the others are computed in seconds."""
        return self.kind not in ("communication", "flops", "toy")

    def number(self, column: Column, row: Row) -> float | None:
        """The paper's number for a cell, where it prints one."""
        return self.paper.get((column.numbers, row.name))

    def config(self, column: Column, row: Row, scale: Scale = "paper") -> RunConfig:
        """The run of a cell, seed and machine left open."""
        own = tuned().get(column.name, {}).get(row.method, [])
        options = {"rounds": self.rounds, **column.options, "algorithm": row.method}
        division = [f"{label(options['partition'])}.{entry}" for entry in options.get("param", ())]
        options["param"] = (*division, *(f"{label(row.method)}.{entry}" for entry in (*own, *row.param)))
        config = RunConfig(**options)
        return _small(config) if scale == "smoke" else config

    def untuned(self, column: Column, row: Row) -> str:
        """What has to be measured before a cell can be run, and how; nothing where all is known.

        ClusterFL's default eps2 is the original's, for another network: with it the method is FedAvg.
        """
        own = tuned().get(column.name, {}).get(row.method, [])
        if row.method != "clusterfl" or any(entry.startswith("eps2=") for entry in (*own, *row.param)):
            return ""
        return (
            f"{column.name} has no eps2 for ClusterFL; measure it by `feddwa reproduce clusterfl-norms --columns "
            f"{column.name}` and write it under [tuned] in feddwa/paper/experiments.toml"
        )

    def select(
        self,
        columns: Sequence[str] = (),
        methods: Sequence[str] = (),
        seeds: int | None = None,
        scale: Scale = "paper",
    ) -> "Experiment":
        """The part with these columns and methods, all where none is named, and so many seeds.

        By default they are the columns' own, at smoke scale one.
        """
        require(seeds is None or seeds >= 1, "--seeds", seeds, "at least 1")
        seeds = seeds or (1 if scale == "smoke" else None)
        for option, chosen, known in (
            ("--columns", columns, [column.name for column in self.columns]),
            ("--methods", methods, list(dict.fromkeys(row.method for row in self.rows))),
        ):
            for name in chosen:
                if name not in known:
                    raise unknown(option, name, known)
        return dataclasses.replace(
            self,
            columns=tuple(
                dataclasses.replace(column, seeds=seeds or column.seeds)
                for column in self.columns
                if not columns or column.name in columns
            ),
            rows=tuple(row for row in self.rows if not methods or row.method in methods),
        )

    def cells(self) -> list[tuple[Column, Row]]:
        """All cells in the order in which they are run: data by data, what matters most first."""
        return sorted(((column, row) for column in self.columns for row in self.rows), key=_rank)


def _rank(cell: tuple[Column, Row]) -> tuple[int, int]:
    """By dataset; then the first methods, in all settings; the sort is stable, so the rest stays as written."""
    column, row = cell
    order = [*DATASET_ORDER, column.dataset]
    return order.index(column.dataset), FIRST.index(row.method) if row.method in FIRST else len(FIRST)


def _small(config: RunConfig) -> RunConfig:
    """The same on digits, with a few clients and rounds: it shows that everything runs, and nothing about methods."""
    param = [
        entry for entry in config.param if not entry.startswith(("pathological.", "dirichlet.", "groups.groups=5"))
    ]
    if config.partition == "dirichlet":
        param += ["dirichlet.alpha=1.0", "dirichlet.min_samples=10"]
    return dataclasses.replace(
        config, dataset="digits", rounds=SMOKE_ROUNDS, clients=SMOKE_CLIENTS, param=tuple(param),
        participation=0.5 if config.participation < 1 else 1.0, batch_size=20,
    )  # fmt: skip


@functools.cache
def _document() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("experiments.toml").read_text(encoding="utf-8"))


@functools.cache
def experiments() -> dict[str, Experiment]:
    """All tables and figures by name, in the paper's order."""
    document = _document()
    names = [name for name in document if name not in ("settings", "seeds", "tuned")]
    return {name: _experiment(name, document[name]) for name in names}


def read_spec(path: Path) -> dict[str, Experiment]:
    """The tables of a file in the form of experiments.toml, whose [settings] may also name a `dataset`.

    References to files, of methods and in settings, are relative to the file's folder.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--spec {path}: {error}") from None
    settings = {name: _beside(path, table) for name, table in document.pop("settings", {}).items()}
    for name, table in document.items():
        for key in ("title", "columns", "rows"):
            require(key in table, f"--spec {path}: [{name}]", sorted(table), f"a table with {key}")
        for column in table["columns"]:
            if column.partition("/")[2] not in settings:
                raise unknown(f"--spec {path}: [{name}] columns", column, [f"DATASET/{known}" for known in settings])
        table["rows"] = [_beside(path, {"": row})[""] for row in table["rows"]]
        table.setdefault("kind", "table")
    return {name: _experiment(name, table, settings) for name, table in document.items()}


def _beside(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """The same with every reference to a file of the folder of `path` named from the root on."""
    found = {}
    for key, value in table.items():
        first, *rest = value.split(" ") if isinstance(value, str) else [""]
        reference = is_reference(first) and ".py:" in first
        found[key] = " ".join([located(str(path.resolve().parent / first)), *rest]) if reference else value
    return found


def experiment(name: str) -> Experiment:
    """One of them, or a clear error."""
    known = experiments()
    if name not in known:
        raise unknown("reproduce", name, known)
    return known[name]


def _experiment(name: str, table: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Experiment:
    printed, labels = table.get("paper", {}), table.get("labels", {})
    names = list(labels) or [*table.get("rows", ()), *printed]
    grid = {
        (column, row): number
        for row, numbers in printed.items()
        for column, number in zip(table["columns"], numbers, strict=True)
    }
    own = {column: column for column in table.get("columns", ())}
    columns = (
        dataclasses.replace(_column(column, settings), numbers=numbers, seeds=table.get("seeds") or _seeds(column))
        for column, numbers in {**own, **table.get("also", {})}.items()
    )
    plain = {key: table[key] for key in ("title", "kind", "rounds", "axis") if key in table}
    return Experiment(
        name, columns=tuple(columns), rows=tuple(Row(row, labels.get(row) or _label(row)) for row in names),
        paper=grid, claims=tuple(table.get("claims", ())), remarks=tuple(table.get("remarks", ())), **plain,
    )  # fmt: skip


def _column(name: str, settings: Mapping[str, Any] | None = None) -> Column:
    dataset, _, setting = name.partition("/")
    if not setting:  # of a table of costs: the network alone counts
        return Column(name, "", {"dataset": dataset})
    table = dict((_document()["settings"] if settings is None else settings)[setting])
    text, special = table.pop("text", ""), table.pop("of", {})
    param = (*table.pop("param", ()), *special.get(dataset, ()))
    return Column(name, text, {"dataset": dataset, **table, "param": param})


def _seeds(column: str) -> int:
    seeds: dict[str, int] = _document()["seeds"]
    return seeds.get(column, seeds["*"])


def _label(row: str) -> str:
    method, *rest = row.split()
    return " ".join([title_of(method), *rest])


def tuned() -> dict[str, dict[str, list[str]]]:
    """Column -> method -> hyper-parameters that were set for it."""
    return dict(_document()["tuned"])


def paper_passes() -> dict[str, float]:
    """Method -> passes over the data that explain the paper's FLOPs."""
    return dict(_document()["flops"]["passes"])


def methods() -> dict[str, str]:
    """The paper's fourteen methods, in its order: name -> title."""
    return {row.method: title_of(row.method) for row in experiment("table1").rows}


def unique_cells(
    chosen: Iterable[tuple[Experiment, Column, Row]], scale: Scale = "paper"
) -> dict[RunConfig, tuple[Experiment, Column, Row]]:
    """The runs of several cells, each once; at smoke scale whole columns fall together."""
    found: dict[RunConfig, tuple[Experiment, Column, Row]] = {}
    for experiment, column, row in chosen:
        found.setdefault(experiment.config(column, row, scale).resolved(), (experiment, column, row))
    return found
