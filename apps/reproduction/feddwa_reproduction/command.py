"""`feddwa reproduce`: run what is missing of a table or figure, and show it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from feddwa.errors import InputError, require, unknown
from feddwa.params import AtMost, Option

if TYPE_CHECKING:
    from rich.console import Console

    from feddwa.results.store import Store
    from feddwa_reproduction.grid import Experiment
    from feddwa_reproduction.table import Table


WIDE = 180  # characters, where nobody looks
NO_RESULTS = (
    "No published results here: they stand in the folder `results` of the source repository, which the package leaves "
    "out; --results DIR names a copy of it. What is run now is kept in results/."
)
EXTRAS = {
    "clusterfl-norms": "How long updates are, which ClusterFL's tolerances depend on",
    "docs": "The pages with all of them, from the results that there are",
}


@dataclass(frozen=True)
class ReproduceConfig:
    """Run what is missing of a table or figure, and show it: the paper's, with its numbers, and those beyond it."""

    what: Annotated[str, Option(metavar="[NAME]", positional=True)] = ""
    """Name from `feddwa reproduce --list`; `docs` writes the pages from the results that there are."""
    protocol: str | None = None
    """Another library's benchmark: a name from `feddwa reproduce --list`. Any columns of its settings, any methods."""
    spec: str | None = None
    """A TOML file with tables of your own, like examples/extend/table.toml; results: runs/<its name>."""
    list: bool = False
    """List the tables and figures."""
    columns: tuple[str, ...] = ()
    """Only these, e.g. cifar10/pathological; of a protocol any dataset: emnist-letters/dirichlet."""
    methods: tuple[str, ...] = ()
    """Only these."""
    seeds: Annotated[int, AtMost(1000)] | None = None
    """Runs of each cell; default: the table's own seeds: three as in the paper, ten in cifar10/pathological."""
    scale: Literal["paper", "smoke"] = "paper"
    """paper, or smoke: two rounds on digits, to see that everything runs."""
    results: str | None = None
    """Folder of results; default: results, or runs/smoke. What is there is not run again."""
    data_dir: str | None = None
    """Folder with dataset files; default: the environment variable FEDDWA_DATA."""
    device: str = "auto"
    """auto, cpu or cuda."""
    dtype: Literal["float32", "tf32", "float64"] = "float32"
    """As in `feddwa run`; published results say which."""
    jobs: Annotated[int, AtMost(256)] = 1
    """Cells at work at once, each in a process of its own: a GPU is not left waiting while one is loaded or tested."""
    time_limit: float | None = None
    """Begin no further run after so many seconds."""
    dry_run: bool = False
    """Only say what is there, what is missing and how long it may take."""
    out: str | None = None
    """Where figures go; default: runs/figures, or docs for `docs`."""


def reproduce_command(config: ReproduceConfig) -> int:
    """`feddwa reproduce`."""
    from feddwa.results.store import Store
    from feddwa_reproduction.reproduce import default_results, plan, reproduce

    console = _console()
    known = _known(config)
    if config.protocol is not None and config.what != "clusterfl-norms":
        require(not config.what, "NAME", config.what, "left out, or clusterfl-norms, with --protocol")
        config = dataclasses.replace(config, what=config.protocol)
    if config.list or not config.what:
        _list(console, known, {} if config.spec or config.protocol else EXTRAS)
        return 0
    require(config.jobs >= 1, "--jobs", config.jobs, "at least 1")
    limit = config.time_limit
    require(limit is None or 0 <= limit < float("inf"), "--time-limit", limit, "a finite number, 0 or more")
    usual = default_results(config.scale) if config.spec is None else Path("runs") / Path(config.spec).stem
    store = Store(Path(config.results) if config.results else usual)
    if config.what not in known and config.spec is not None:
        raise unknown(f"reproduce --spec {config.spec}", config.what, known)
    if config.what == "docs":
        return _docs(console, config, store)
    if config.what == "clusterfl-norms":
        return _norms(console, config, known)
    if config.what not in known:
        raise unknown("reproduce", config.what, [*known, *EXTRAS])
    chosen = known[config.what].select(config.columns, config.methods, config.seeds, config.scale)
    if config.results is None and config.spec is None and config.scale == "paper" and not store.folder.is_dir():
        console.print(NO_RESULTS, highlight=False, soft_wrap=True)
    if config.dry_run:
        _dry_run(console, config, chosen, store)
        return 0
    failed: list[str] = []
    if chosen.trains:
        from feddwa.report.progress import jobs

        cells = plan(chosen, store, config.scale)
        with jobs(console, sum(bool(cell.missing) for cell in cells), "cells", ends=False) as job:
            progress = reproduce(
                known[config.what], columns=config.columns, methods=config.methods, seeds=config.seeds,
                results=store.folder, scale=config.scale, data_dir=config.data_dir, device=config.device,
                dtype=config.dtype, jobs=config.jobs, time_limit=config.time_limit, watch=job,
                tell=lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False),
            )  # fmt: skip
        failed = progress.failed
        if progress.without_data and not progress.found and not progress.made:
            raise InputError(f"reproduce {config.what}: none of its data are at hand: {progress.without_data[0]}")
    _show(console, config, chosen, Store(store.folder))  # with what has been made now
    return 1 if failed else 0


def _known(config: ReproduceConfig) -> "Mapping[str, Experiment]":
    """The tables and figures that can be asked for."""
    from feddwa_reproduction import specs

    if config.protocol is not None:
        require(config.spec is None, "--spec", config.spec, "left out with --protocol")
        return {config.protocol: specs.protocol(config.protocol, config.columns, config.methods)}
    return specs.experiments() if config.spec is None else specs.read_spec(Path(config.spec))


def _console() -> "Console":
    """As wide as the tables want, unless a terminal says otherwise."""
    from feddwa.report.terminal import make_console

    console = make_console()
    return console if console.is_terminal else make_console(width=WIDE)


def _list(console: "Console", known: "Mapping[str, Experiment]", extras: "Mapping[str, str]") -> None:
    """The tables; with what else there is the protocols, too."""
    from feddwa_reproduction import specs

    protocols = {f"--protocol {name}": each for name, each in specs.protocols().items()} if extras else {}
    for name, each in {**known, **protocols}.items():
        runs = sum(len(column.seeds) for column, _ in each.cells())
        size = f"{len(each.cells())} cells, {runs} runs" if each.trains else "computed in seconds"
        console.print(f"{name:<22}  {each.title} ({size})", highlight=False, soft_wrap=True)
    for name, text in extras.items():
        console.print(f"{name:<22}  {text}", highlight=False)


def _dry_run(console: "Console", config: ReproduceConfig, chosen: "Experiment", store: "Store") -> None:
    """A line per cell: what is there, what is missing, how long that may take."""
    from feddwa_reproduction.reproduce import estimate, plan

    if not chosen.trains:
        console.print(f"{chosen.name}: computed, nothing to run", highlight=False)
        return
    cells = plan(chosen, store, config.scale)
    total, unknown = 0.0, 0
    for cell in cells:
        seconds = estimate(cell, cells, store) if cell.missing else 0.0
        total, unknown = total + (seconds or 0), unknown + (seconds is None) * len(cell.missing)
        time = "" if not cell.missing else "  time unknown" if seconds is None else f"  about {seconds:.0f} s"
        state = "done" if not cell.missing else f"{len(cell.seeds) - len(cell.missing)} of {len(cell.seeds)} seeds done"
        first = f"  {cell.untuned}" if cell.untuned and cell.missing else ""
        console.print(f"{cell.name:<60}  {state}{time}{first}", highlight=False, soft_wrap=True)
    missing, wanted = sum(len(cell.missing) for cell in cells), sum(len(cell.seeds) for cell in cells)
    console.print(
        f"{missing} of {wanted} runs missing; about {total:.0f} s where the time is known, "
        f"{unknown} runs of unknown time",
        highlight=False,
    )


def _show(console: "Console", config: ReproduceConfig, chosen: "Experiment", store: "Store") -> None:
    """The tables, what to keep in mind, and the figures' paths."""
    from feddwa_reproduction.figures import draw
    from feddwa_reproduction.summary import summarise
    from feddwa_reproduction.tables import findings, tables_of

    if chosen.trains and config.scale == "smoke":
        console.print("Smoke scale: two rounds on digits, whatever the columns say. No results.", highlight=False)
        chosen = dataclasses.replace(chosen, published={}, others=())  # nothing to compare with
    run = [
        column
        for column in chosen.columns
        if any(summarise(chosen, column, row, store, config.scale) for row in chosen.rows)
    ]
    shown = dataclasses.replace(chosen, columns=tuple(run)) if chosen.trains else chosen
    for table in tables_of(shown, store, config.scale):
        _print(console, table)
    if missing := [column.name for column in chosen.columns if chosen.trains and column not in run]:
        console.print(f"Not run here: {', '.join(missing)}", highlight=False)
    for text in findings(shown, store, config.scale) if config.scale == "paper" else ():
        console.print(text, highlight=False)
    for claim in chosen.claims:
        console.print(f"The paper: {claim}", highlight=False)
    for remark in chosen.remarks:
        console.print(f"- {remark}", highlight=False)
    for path in draw(chosen, store, Path(config.out or "runs/figures"), config.scale):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _print(console: "Console", table: "Table") -> None:
    """A table, without its last columns where the terminal is too narrow for them."""
    from rich.measure import Measurement
    from rich.table import Table as RichTable
    from rich.text import Text

    for kept in range(len(table.header), 0, -1):
        dropped = len(table.header) - kept
        note = table.note + (f" A wider terminal shows {dropped} columns more." if dropped else "")
        drawn = RichTable(title=table.title, caption=note or None)
        for number, name in enumerate(table.header[:kept]):
            drawn.add_column(name, justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*(Text(cell[:-1], style="bold") if cell.endswith("*") else cell for cell in row[:kept]))
        if (
            kept <= 3
            or Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum <= console.width
        ):
            break
    console.print(drawn)


def _norms(console: "Console", config: ReproduceConfig, known: "Mapping[str, Experiment]") -> int:
    """The norms of updates in the columns that have ClusterFL, and the tolerance that follows."""
    from feddwa_reproduction.grid import Row
    from feddwa_reproduction.run import column_norms

    own = Row("clusterfl")
    with_it = [each for each in known.values() if each.trains and own.name in {row.name for row in each.rows}]
    columns = {column.name: (each, column) for each in with_it for column in each.columns}
    for name in config.columns or list(columns):
        if name not in columns:
            raise unknown("--columns", name, columns)
        each, column = columns[name]
        run = each.config(column, own, config.scale)
        norms = column_norms(dataclasses.replace(run, data_dir=config.data_dir, device=config.device))
        shown = [number for number in (1, 2, 10, 20, 30) if number <= len(norms.mean)]
        pairs = ", ".join(f"{norms.mean[n - 1]:.2f} and {norms.largest[n - 1]:.2f} in round {n}" for n in shown)
        console.print(f"{name}: mean and largest {pairs}; eps2={norms.eps2}", highlight=False, soft_wrap=True)
    return 0


def _docs(console: "Console", config: ReproduceConfig, store: "Store") -> int:
    from feddwa_reproduction.page import write_pages

    for path in write_pages(store, Path(config.out or "docs")):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return 0
