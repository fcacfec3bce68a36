"""Run what is missing of a table or figure: `reproduce("table1", ...)`."""

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
    """Where results are kept: the published ones are never mixed with those of a smoke test."""
    return Path("results") if scale == "paper" else Path("runs/smoke")


def plan(chosen: Experiment, store: Store, scale: Scale = "paper") -> list[Cell]:
    """The cells of an experiment in the order in which they are run, with the seeds that each still lacks.

    A cell keeps weights where any experiment that it is part of needs them.
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
    """Seconds that a cell's missing seeds will take: what the same method took on these data, if it was run there."""
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
    """Run every cell of an experiment that is not there yet; each is stored as soon as it is done.

    No cell is begun once `time_limit` seconds have passed. Columns whose data are not at hand, and methods with a
    hyper-parameter that was not measured for a column, are left out, and told, unless they were asked for by name. A
    cell that fails does not stop the others. With `jobs`, so many stacks of cells
    are at work at once.
    """
    deadline = None if time_limit is None else time.time() + time_limit
    chosen = (name if isinstance(name, Experiment) else experiment(name)).select(columns, methods, seeds, scale)
    if not chosen.trains:
        raise InputError(f"reproduce {chosen.name}: is computed, there is nothing to train; use the command line")
    store = Store(results or default_results(scale))
    store.merge()  # what an interrupted command has left
    every = plan(chosen, store, scale)
    cells = _tuned(every, methods, tell)
    absent = _absent(cells, data_dir)
    if columns and absent:
        raise next(iter(absent.values()))
    for dataset, error in absent.items():
        tell(f"{dataset}: not at hand, its columns are left out ({error})")
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
    """The cells all of whose hyper-parameters are known; of the others it is told what has to be measured first."""
    for cell in cells:
        if cell.untuned and cell.missing:
            if cell.config.algorithm in methods:
                raise InputError(f"--methods {cell.config.algorithm}: {cell.untuned}")
            tell(f"{cell.name}: left out: {cell.untuned}")
    return [cell for cell in cells if not cell.untuned]


def _absent(cells: Sequence[Cell], data_dir: str | None) -> dict[str, InputError]:
    """The datasets that something is missing of and that are not at hand, and why."""
    absent: dict[str, InputError] = {}
    for dataset in dict.fromkeys(cell.config.dataset for cell in cells if cell.missing):
        try:
            run.dataset(dataset, data_dir)
        except InputError as error:
            absent[dataset] = error
    return absent
