"""Run the missing cells of a table or figure: `reproduce("table1", ...)`."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.results.store import Store
from feddwa_reproduction import run
from feddwa_reproduction.cells import Cell, Progress, Schedule, Tell, Watch, run_cells, unwatched
from feddwa_reproduction.grid import Experiment, Scale, unique_cells
from feddwa_reproduction.specs import experiment, experiments


def default_results(scale: Scale) -> Path:
    """The default folder of results; smoke tests have their own."""
    return Path("results") if scale == "paper" else Path("runs/smoke")


def plan(chosen: Experiment, store: Store, scale: Scale = "paper") -> list[Cell]:
    """The cells of an experiment in running order, with their missing seeds.

    A cell keeps weights if any experiment that shares it needs them.
    """
    cells = unique_cells(((chosen, column, row) for column, row in chosen.cells()), scale)
    keeping = (each for each in (chosen, *experiments().values()) if each.keep_weights)
    kept = unique_cells(((each, column, row) for each in keeping for column, row in each.cells()), scale)
    return [
        Cell(
            f"{column.name} {row.name}",
            config,
            column.seeds,
            store.missing(config, column.seeds, chosen.series(row)),
            config in kept,
            chosen.series(row),
            chosen.untuned(column, row) if scale == "paper" else "",
        )
        for config, (_, column, row) in cells.items()
    ]


def estimate(cell: Cell, cells: Sequence[Cell], store: Store) -> float | None:
    """Estimated seconds of a cell's missing seeds, from the same method on the same data; None without results."""
    alike = [other.config for other in cells if _costs_the_same(other.config, cell.config)]
    known = [record.seconds for config in alike for record in store.all(config).values()]
    return median(known) * len(cell.missing) if known else None


def _costs_the_same(a: RunConfig, b: RunConfig) -> bool:
    same = ("algorithm", "dataset", "clients", "participation", "rounds")
    return all(getattr(a, key) == getattr(b, key) for key in same)


def reproduce(
    name: str | Experiment,
    *,
    columns: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int | None = None,
    results: Path | None = None,
    scale: Scale = "paper",
    data_dir: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    jobs: int = 1,
    time_limit: float | None = None,
    tell: Tell = print,
    watch: Watch = unwatched,
) -> Progress:
    """Run every cell of an experiment without a result; each is stored as soon as it is done.

    A cell that fails does not stop the others. Columns without data, and methods with a hyper-parameter that has not
    been measured for a column, are skipped with a message; asking for them by name is an error. No cell begins after
    `time_limit` seconds. `jobs` stacks of cells run in parallel.
    """
    deadline = None if time_limit is None else time.time() + time_limit
    chosen = (name if isinstance(name, Experiment) else experiment(name)).select(columns, methods, seeds, scale)
    if not chosen.trains:
        raise InputError(f"reproduce {chosen.name}: is computed without training; use the command line")
    store = Store(results or default_results(scale))
    store.merge()  # finished runs of an interrupted command
    every = plan(chosen, store, scale)
    cells = _tuned(every, methods, tell)
    absent = _absent(cells, data_dir)
    if columns and absent:
        raise next(iter(absent.values()))
    for dataset, error in absent.items():
        tell(f"{dataset}: not at hand, its columns are skipped ({error})")
    cells = [cell for cell in cells if cell.config.dataset not in absent]
    schedule = Schedule(store.folder, {"data_dir": data_dir, "device": device, "dtype": dtype}, jobs, deadline)
    try:
        progress = run_cells(cells, schedule, tell, watch)
    finally:
        store.merge()
    progress.found = sum(len(cell.seeds) - len(cell.missing) for cell in every)
    progress.left += sum(len(cell.missing) for cell in every) - sum(len(cell.missing) for cell in cells)
    progress.without_data = [f"{dataset}: {error}" for dataset, error in absent.items()]
    return progress


def _tuned(cells: Sequence[Cell], methods: Sequence[str], tell: Tell) -> list[Cell]:
    """Drop cells with an unmeasured hyper-parameter, and say what must be measured."""
    for cell in cells:
        if cell.untuned and cell.missing:
            if cell.config.algorithm in methods:
                raise InputError(f"--methods {cell.config.algorithm}: {cell.untuned}")
            tell(f"{cell.name}: left out: {cell.untuned}")
    return [cell for cell in cells if not cell.untuned]


def _absent(cells: Sequence[Cell], data_dir: str | None) -> dict[str, InputError]:
    """Datasets that missing cells need and that are not available, with the error."""
    absent: dict[str, InputError] = {}
    for dataset in dict.fromkeys(cell.config.dataset for cell in cells if cell.missing):
        try:
            run.dataset(dataset, data_dir)
        except InputError as error:
            absent[dataset] = error
    return absent
