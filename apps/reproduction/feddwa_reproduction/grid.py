"""A table or figure as a grid of runs.

Its columns are data ("cifar10/pathological"), its rows are methods with hyper-parameters and options of a run ("feddwa
top_k=3", "fedrod clients=100"). Where they meet is a cell, one configuration that is run with several seeds.
Experiments share cells.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from feddwa.config import WHERE_AND_HOW, RunConfig
from feddwa.errors import require, unknown
from feddwa.options.evaluation import EvaluationOptions
from feddwa.options.robustness import NO_DEFENCE
from feddwa.params import fields_of, parse
from feddwa.plugins import ALGORITHMS, label

Scale = Literal["paper", "smoke"]

COMPUTED = ("communication", "flops", "toy")  # kinds of entries that are computed in seconds, without a run
DATASET_ORDER = ("cifar10", "tiny-imagenet-32", "emnist-letters", "emnist", "cifar100", "cinic10")  # of running
FIRST = ("feddwa_plus", "feddwa", "local", "fedavg", "fedavg_ft")  # run first: they answer the main questions
SMOKE_ROUNDS, SMOKE_CLIENTS = 2, 8
SMOKE_PARAMS = {"dirichlet": ("alpha=1.0", "min_samples=10"), "class-blocks": ("classes_per_client=5",)}
AFTER = "after.participants_weighted"  # the series that a row with @after measures
_RUN = {"algorithm", "dataset", "partition", "param", "seed", "dtype"}  # given by column, row and command line
_NO_OPTIONS = {*WHERE_AND_HOW, *_RUN} - {*fields_of(EvaluationOptions)}
OPTIONS = {name: kind for name, (kind, _) in fields_of(RunConfig).items() if name not in _NO_OPTIONS}  # of a row


@dataclass(frozen=True)
class Column:
    """A dataset and how it is divided among clients."""

    name: str  # "dataset/setting"
    options: Mapping[str, Any] = field(hash=False)  # of RunConfig
    text: str = ""
    label: str = ""  # the setting's name in tables
    title: str = ""  # the dataset's name in tables
    numbers: str = ""  # the paper's column with the numbers to compare with
    seeds: tuple[int, ...] = (0, 1, 2)  # of every cell
    tuned: Mapping[str, Sequence[str]] = field(
        default_factory=dict, hash=False
    )  # method -> hyper-parameters set for it

    @property
    def dataset(self) -> str:
        """The dataset at paper scale."""
        return self.name.partition("/")[0]

    @property
    def setting(self) -> str:
        """The division of the data."""
        return self.name.partition("/")[2]


@dataclass(frozen=True)
class Row:
    """A method with hyper-parameters and run options, and the series that is measured."""

    name: str  # "method key=value ... @series"
    label: str = ""

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return self.name.split()[0]

    @property
    def values(self) -> tuple[str, ...]:
        """KEY=VALUE of everything that differs from the defaults."""
        return tuple(word for word in self.name.split()[1:] if not word.startswith("@"))

    @property
    def after(self) -> bool:
        """Whether the models after local training are measured."""
        return self.name.endswith("@after")

    @property
    def by_affinity(self) -> bool:
        """Whether partners are ranked by learned affinity instead of by weight."""
        return self.name.endswith("@affinity")

    def split(self) -> tuple[dict[str, Any], list[str]]:
        """(options of the run, hyper-parameters of the method as KEY=VALUE)."""
        own = fields_of(ALGORITHMS.find(self.method))
        pairs = [value.split("=", 1) for value in self.values]
        options = {key: parse(value, OPTIONS[key]) for key, value in pairs if key in OPTIONS and key not in own}
        return options, [f"{key}={value}" for key, value in pairs if key not in options]


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str
    title: str
    kind: str = "table"
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of all its runs; a column and a row can override them
    axis: str = ""  # of a sweep: the hyper-parameter that the rows vary
    keep_weights: bool = False  # whether results keep P of some rounds (full participation only)
    gains: bool = False  # whether the first row's gain over Local is shown below the accuracies
    beside: tuple[str, ...] = ()  # of paired differences: further rows to compare the first one with
    budget: str = ""  # at equal cost: the row whose total cost is the budget
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (column, row) -> the source's number
    source: str = "the paper"  # of the published numbers
    others: tuple[Row, ...] = ()  # methods with published numbers that this package lacks
    measure: str = "before.participants_weighted"  # the series that is compared with the published numbers
    reported: Literal["best", "last"] = "best"  # the round of that series
    claims: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether it needs training runs; other kinds are computed in seconds."""
        return self.kind not in COMPUTED

    @property
    def rounds(self) -> int | None:
        """Rounds of a run; None: the dataset's default."""
        return self.options.get("rounds")

    def series(self, row: Row) -> str:
        """The series of a row's results that is measured."""
        return AFTER if row.after else self.measure

    @property
    def lines(self) -> list[Row]:
        """Rows and others: first those without published numbers, then in the source's order."""
        order = [name for _, name in self.published]
        return sorted((*self.rows, *self.others), key=lambda row: order.index(row.name) if row.name in order else -1)

    def number(self, column: Column, row: Row) -> float | None:
        """The published number of a cell, or None."""
        return self.published.get((column.numbers, row.name))

    def config(self, column: Column, row: Row, scale: Scale = "paper") -> RunConfig:
        """The configuration of a cell without seed and machine."""
        own, values = row.split()
        options = {"defence": NO_DEFENCE, **self.options, **column.options, **own, "algorithm": row.method}
        division = [f"{label(options['partition'])}.{entry}" for entry in options.get("param", ())]
        entries = (*column.tuned.get(row.method, ()), *values)
        options["param"] = (*division, *(f"{label(row.method)}.{entry}" for entry in entries))
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
        }
        config = RunConfig(**plain)
        known = config.checked()
        for name in ("model", "batch_size", "lr"):  # own data would decide them when they are read, too late for a cell
            require(getattr(known, name) is not None, f"{column.name}: {name}", "nothing", "given for own data")
        return _small(config) if scale == "smoke" else config

    def untuned(self, column: Column, row: Row) -> str:
        """What must be measured before a cell can be run, and how; "" if nothing.

        ClusterFL's default eps2 is the original's, for another network: with it the method is FedAvg.
        """
        known = (*column.tuned.get(row.method, ()), *row.values)
        if row.method != "clusterfl" or any(entry.startswith("eps2=") for entry in known):
            return ""
        return (
            f"{column.name} has no eps2 for ClusterFL; measure it by `feddwa reproduce clusterfl-norms"
            f"{f' --protocol {self.name}' if self.kind == 'protocol' else ''} --columns {column.name}` and write it "
            "under [tuned] in the table's TOML file"
        )

    def select(
        self,
        columns: Sequence[str] = (),
        methods: Sequence[str] = (),
        seeds: int | None = None,
        scale: Scale = "paper",
    ) -> "Experiment":
        """The part with these columns and methods or rows (all if none is named) and this number of seeds.

        seeds: None takes the columns' own, at smoke scale one.
        """
        require(seeds is None or seeds >= 1, "--seeds", seeds, "at least 1")
        count = seeds or (1 if scale == "smoke" else None)
        for option, chosen, known in (
            ("--columns", columns, [column.name for column in self.columns]),
            ("--methods", methods, list(dict.fromkeys(row.method for row in self.rows))),
        ):
            for name in chosen:
                if name not in known and name not in {row.name for row in self.rows}:
                    raise unknown(option, name, known)
        return dataclasses.replace(
            self,
            columns=tuple(
                dataclasses.replace(column, seeds=_first_seeds(column.seeds, count))
                for column in self.columns
                if not columns or column.name in columns
            ),
            rows=tuple(row for row in self.rows if not methods or {row.method, row.name} & set(methods)),
        )

    def cells(self) -> list[tuple[Column, Row]]:
        """All cells in running order: by dataset, the most important methods first."""
        return sorted(((column, row) for column in self.columns for row in self.rows), key=_rank)


def _first_seeds(seeds: tuple[int, ...], count: int | None) -> tuple[int, ...]:
    """The first `count` seeds, continued by counting upwards if there are fewer."""
    return tuple(itertools.islice(itertools.chain(seeds, itertools.count(seeds[-1] + 1)), count or len(seeds)))


def _rank(cell: tuple[Column, Row]) -> tuple[int, int]:
    """Rank by dataset, then by the methods in FIRST. The sort is stable, so the rest keeps its order."""
    column, row = cell
    order = [*DATASET_ORDER, column.dataset]
    return order.index(column.dataset), FIRST.index(row.method) if row.method in FIRST else len(FIRST)


def _small(config: RunConfig) -> RunConfig:
    """The smoke version: digits, few clients and rounds. It shows that everything runs and nothing about methods.

    Digits have no owners, so a natural partition becomes `iid`.
    """
    scheme = "iid" if config.partition == "natural" else config.partition or ""
    large = ("pathological.", "groups.groups=5", *(f"{name}." for name in SMOKE_PARAMS))
    param = [entry for entry in config.param if not entry.startswith(large)]
    param += [f"{scheme}.{entry}" for entry in SMOKE_PARAMS.get(scheme, ())]
    return dataclasses.replace(
        config, dataset="digits", model=None, model_arg=(), partition=scheme or None, rounds=SMOKE_ROUNDS,
        clients=SMOKE_CLIENTS, param=tuple(param),
        participation=0.5 if config.participation < 1 else 1.0, batch_size=20,
    )  # fmt: skip


def unique_cells(
    chosen: Iterable[tuple[Experiment, Column, Row]], scale: Scale = "paper"
) -> dict[RunConfig, tuple[Experiment, Column, Row]]:
    """The runs of several cells, each once; at smoke scale whole columns coincide."""
    found: dict[RunConfig, tuple[Experiment, Column, Row]] = {}
    for experiment, column, row in chosen:
        found.setdefault(experiment.config(column, row, scale).resolved(), (experiment, column, row))
    return found
