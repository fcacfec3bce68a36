"""From a cell to its published results. All training of reproductions goes through `run_stack`."""

import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from feddwa import checkpoint, experiment
from feddwa.attacks.attackers import Attackers, Shares
from feddwa.build import choose_device
from feddwa.calibrate import Norms, update_norms
from feddwa.config import RunConfig
from feddwa.data import partition as partitions
from feddwa.data import sources
from feddwa.data.dataset import Dataset
from feddwa.data.task import Task
from feddwa.options.evaluation import held_out
from feddwa.results import content, runs, weights
from feddwa.results.content import Content

Observer = Callable[[dict[str, Any]], None]
# Rounds; none on a GPU: a stack takes minutes there, and the state of fifteen runs of 100 clients is 36 GB.
CHECKPOINT_EVERY = {"cpu": 25, "cuda": 0}
KEPT_ROUNDS = (1, 2, 5, 10)  # rounds whose weights are published, besides the last


def run_stack(
    configs: Sequence[RunConfig],
    task_of: Callable[[RunConfig], Task],
    work_of: Callable[[RunConfig], Path],
    observe: Observer = lambda line: None,
) -> Iterator[tuple[RunConfig, Path]]:
    """Train seeds of one or several stackable cells as one stack of rows.

    Yields every configuration with the directory of its finished run, and removes the directory afterwards.
    task_of: a run's data; work_of: its directory. An interrupted run continues from its last checkpoint, if any.
    """
    every = CHECKPOINT_EVERY[choose_device(configs[0].device).type]
    kept: dict[str, Any] = {"checkpoint_every": every, "save_models": False}
    runs_of = [dataclasses.replace(config, **kept, out=str(work_of(config))) for config in configs]
    begun = [own for own in runs_of if _has_begun(Path(str(own.out)))]
    for own in runs_of:
        if own not in begun:
            shutil.rmtree(str(own.out), ignore_errors=True)
    experiment.run_tasks(runs_of, [task_of(config) for config in configs], [observe], begun)
    for config in configs:
        yield config, work_of(config)
        shutil.rmtree(work_of(config))


def _has_begun(work: Path) -> bool:
    """Whether a directory has a finished run or a checkpoint to continue from."""
    return (work / runs.RECORD).exists() or checkpoint.latest(work / runs.CHECKPOINTS) is not None


def publish(config: RunConfig, work: Path, jobs: int = 1, keep_weights: bool = False, series: str = "") -> Content:
    """A finished run in the published form.

    jobs: stacks that ran in parallel and shared the device's time; keep_weights: whether to publish P of some rounds
    (full participation only); series: a further series to publish.
    """
    record = runs.read_record(work)
    assert record is not None  # the run is finished
    costs = record["costs"]
    record["costs"] = {**costs, "seconds": round(costs["seconds"] / jobs, 2), "jobs": jobs}
    kept: list[weights.Weights] = []
    if keep_weights and config.participation == 1:
        stored = weights.read(work)
        wanted = {*KEPT_ROUNDS, *stored.rounds[-1:]}
        kept = [stored[place] for place, number in enumerate(stored.rounds) if number in wanted]
    return content.published(record, config, kept, runs.read_lines(work / runs.METRICS), series)


@functools.lru_cache(maxsize=1)
def dataset(name: str, data_dir: str | None) -> Dataset:
    """A dataset, kept until another one is needed: cells are run dataset by dataset."""
    return sources.load(name, data_dir)


def task(config: RunConfig) -> Task:
    """The data of a run, divided by its seed: the same task for all methods of a column."""
    division = config.partition, tuple(config.partition_parameters().items()), config.clients, config.holdout_clients
    return _task(config.dataset, config.data_dir, *division, config.seed, config.make_attacks())


@functools.lru_cache(maxsize=8)
def _task(
    name: str,
    data_dir: str | None,
    scheme: str,
    parameters: tuple[tuple[str, str], ...],
    clients: int | None,
    holdout_clients: float,
    seed: int,
    attacks: Shares,
) -> Task:
    data = dataset(name, data_dir)
    clients = clients or max(1, data.owners)
    partition = partitions.make(scheme, dict(parameters), data, clients, seed)
    partition = partitions.held_out(partition, held_out(holdout_clients, clients), seed)
    return Task(data, partition, Attackers(seed, len(partition.train), attacks).poison)


def column_norms(config: RunConfig) -> Norms:
    """Update norms for ClusterFL's tolerance in a column: seed 0, the method's default warm-up."""
    division = tuple(entry for entry in config.param if entry.startswith(f"{config.partition}."))
    config = dataclasses.replace(config, algorithm="clusterfl", seed=0, param=division).resolved()
    return update_norms(config, task(config))
