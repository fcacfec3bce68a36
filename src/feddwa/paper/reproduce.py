"""Run what is missing of a table or figure: `reproduce("table1", ...)`."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.paper import run
from feddwa.paper.specs import Column, Experiment, Row, Scale, experiment, unique_cells
from feddwa.paper.store import Store

Tell = Callable[[str], None]
Watch = Callable[[str, int], AbstractContextManager[run.Observer]]  # (what, rounds) -> who is shown the rounds

SMOKE_SEEDS = (0,)


@dataclass(frozen=True)
class Cell:
    """A run of the plan."""

    config: RunConfig
    column: Column
    row: Row
    missing: tuple[int, ...]  # seeds

    def __str__(self) -> str:
        return f"{self.column.name} {self.row.name}"

    @property
    def kind(self) -> RunConfig:
        """Cells of one kind differ in what costs nothing, so that they are trained as one stack."""
        costless = ALGORITHMS[self.config.algorithm].costless
        own = (entry for entry in self.config.param if _parameter(entry) not in costless)
        return dataclasses.replace(self.config, param=tuple(own))


def _parameter(entry: str) -> str:
    """Its name, of NAME.KEY=VALUE."""
    return entry.partition("=")[0].rpartition(".")[2]


@dataclass
class Progress:
    """What became of a plan, in cells times seeds."""

    found: int = 0  # were there already
    made: int = 0
    left: int = 0  # no time for them
    failed: list[str] = field(default_factory=list)  # and why
    without_data: list[str] = field(default_factory=list)  # columns, and why


def default_results(scale: Scale) -> Path:
    """Where results are kept: the published ones are never mixed with those of a smoke test."""
    return Path("results") if scale == "paper" else Path("runs/smoke")


def default_seeds(chosen: Experiment, scale: Scale) -> tuple[int, ...]:
    """0, 1, 2 where the paper averages three runs."""
    return tuple(range(chosen.seeds)) if scale == "paper" else SMOKE_SEEDS


def plan(chosen: Experiment, seeds: Sequence[int], store: Store, scale: Scale = "paper") -> list[Cell]:
    """The cells of an experiment in the order in which they are run, with the seeds that each still lacks."""
    cells = unique_cells(((chosen, column, row) for column, row in chosen.cells()), scale)
    return [
        Cell(config, column, row, tuple(store.missing(config, seeds))) for config, (_, column, row) in cells.items()
    ]


def estimate(cell: Cell, cells: Sequence[Cell], store: Store) -> float | None:
    """Seconds that a cell's missing seeds will take: what the same method took on these data, if it was run there."""
    alike = [other.config for other in cells if _costs_the_same(other.config, cell.config)]
    known = [record["seconds"] for config in alike for record in store.all(config).values()]
    return median(known) * len(cell.missing) if known else None


def _costs_the_same(a: RunConfig, b: RunConfig) -> bool:
    same = ("algorithm", "dataset", "clients", "participation", "rounds")
    return all(getattr(a, key) == getattr(b, key) for key in same)


def reproduce(
    name: str,
    *,
    columns: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    results: Path | None = None,
    scale: Scale = "paper",
    data_dir: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    time_limit: float | None = None,
    tell: Tell = print,
    watch: Watch = lambda what, rounds: nullcontext(lambda line: None),
) -> Progress:
    """Run every cell of an experiment that is not there yet; each is stored as soon as it is done.

    No cell is begun once `time_limit` seconds have passed. Columns whose data are not at hand are left out, and told,
    unless they were asked for by name. A cell that fails does not stop the others.
    """
    start, chosen = time.monotonic(), experiment(name).select(columns, methods)
    if not chosen.trains:
        raise InputError(f"reproduce {name}: is computed, there is nothing to train; use the command line")
    store = Store(results or default_results(scale))
    seeds = default_seeds(chosen, scale) if seeds is None else tuple(seeds)
    cells = plan(chosen, seeds, store, scale)
    progress = Progress(found=sum(len(seeds) - len(cell.missing) for cell in cells))
    absent: dict[str, str] = {}  # dataset -> why
    for stack in _stacks(cells):
        wanted, dataset = sum(len(cell.missing) for cell in stack), stack[0].config.dataset
        if dataset in absent or (time_limit is not None and time.monotonic() - start > time_limit):
            progress.left += wanted
            continue
        try:
            run.dataset(dataset, data_dir)
        except InputError as error:
            if columns:
                raise
            absent[dataset] = str(error)
            tell(f"{dataset}: not at hand, its columns are left out ({error})")
            progress.left += wanted
            continue
        here = {"data_dir": data_dir, "device": device, "dtype": dtype}
        _run(stack, here, store, progress, (start, time_limit), tell, watch)
    progress.without_data = [f"{dataset}: {why}" for dataset, why in absent.items()]
    return progress


def _stacks(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that lack something, those of one kind together, in the order of the first of each kind."""
    stacks: dict[RunConfig, list[Cell]] = {}
    for cell in cells:
        if cell.missing:
            stacks.setdefault(cell.kind, []).append(cell)
    return list(stacks.values())


def _run(
    stack: Sequence[Cell],
    here: Mapping[str, Any],
    store: Store,
    progress: Progress,
    clock: tuple[float, float | None],
    tell: Tell,
    watch: Watch,
) -> None:
    """Cells of one kind, all their missing seeds; stops between two of them when time is up."""
    start, limit = clock
    runs = {dataclasses.replace(cell.config, **here, seed=seed): cell for cell in stack for seed in cell.missing}
    done, name = 0, str(stack[0]) + (f" and {len(stack) - 1} more" if len(stack) > 1 else "")
    try:
        with watch(f"{name} ({len(runs)} seeds)", stack[0].config.rounds or 0) as observe:
            for config, outcome in run.run_stack(list(runs), run.task, store.work, observe):
                path = store.save(config, run.record_of(config, outcome))
                done += 1
                accuracy = outcome.lines[-1]["before"]["all"]
                tell(f"{runs[config]}, seed {outcome.seed}: {accuracy:.2f} %, {path.name}")
                if limit is not None and time.monotonic() - start > limit:
                    break
    except (InputError, RuntimeError) as error:
        progress.failed.append(f"{name}: {error}")
        tell(f"{name}: failed: {error}")
    progress.made += done
    progress.left += len(runs) - done
