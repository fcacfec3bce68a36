"""From a cell to its results. All training of reproductions goes through `run_stack`."""

import dataclasses
import functools
import json
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddwa import checkpoint, experiment
from feddwa.build import choose_device
from feddwa.config import RunConfig
from feddwa.data import partition as partitions
from feddwa.data import sources
from feddwa.data.dataset import Dataset
from feddwa.data.task import Task
from feddwa.paper.specs import Row
from feddwa.paper.store import Record, code_version, settings
from feddwa.results import runs

Observer = Callable[[dict[str, Any]], None]
# Rounds. On a GPU none: a stack is done in minutes there, and the state of fifteen runs of a hundred clients is 36 GB.
CHECKPOINT_EVERY = {"cpu": 25, "cuda": 0}
KEPT_ROUNDS = (1, 2, 5, 10)  # whose weights are kept, besides the last
PAIRWISE = ("feddwa", "feddwa_plus", "fedfomo", "l2c", "fedamp")  # methods whose weights are about pairs of clients
TOP = 5  # partners that are looked at, the client itself among them


@dataclass(frozen=True)
class Outcome:
    """What one seed of a cell came to."""

    seed: int
    lines: Sequence[Mapping[str, Any]]  # metrics.jsonl
    clients: Sequence[float]  # percent right of every client's last personalised model
    weights: Sequence[tuple[np.ndarray, np.ndarray]]  # a round: cohort (m,), P (m, m)
    groups: np.ndarray | None  # (N,) the true group of each client, where there are any
    summary: Mapping[str, Any]  # summary.json


def run_stack(
    configs: Sequence[RunConfig],
    task_of: Callable[[RunConfig], Task],
    work_of: Callable[[RunConfig], Path],
    observe: Observer = lambda line: None,
) -> Iterator[tuple[RunConfig, Outcome]]:
    """Train seeds of a cell, or of several that train alike, as one stack of rows: outcomes in the order of configs.

    `task_of` gives a run's data, `work_of` the run directory in which it is at work, removed when it is done. A run
    that was interrupted continues from its last checkpoint, where there are any.
    """
    every = CHECKPOINT_EVERY[choose_device(configs[0].device).type]
    runs_of = [dataclasses.replace(config, checkpoint_every=every, out=str(work_of(config))) for config in configs]
    begun = [own for own in runs_of if checkpoint.latest(Path(str(own.out)) / runs.CHECKPOINTS) is not None]
    for own in runs_of:
        if own not in begun:
            shutil.rmtree(str(own.out), ignore_errors=True)
    results = experiment.run_tasks(runs_of, [task_of(config) for config in configs], observe, begun)
    for config, own, result in zip(configs, runs_of, results, strict=True):
        work = Path(str(own.out))
        final = json.loads((work / "clients.jsonl").read_text(encoding="utf-8").splitlines()[-1])["before"]
        weights = list(result.weights)  # from the files that are removed now
        shutil.rmtree(work)
        outcome = Outcome(own.seed, result.metrics, final, weights, result.partition.groups, result.summary)
        yield config, outcome


@functools.lru_cache(maxsize=1)
def dataset(name: str, data_dir: str | None) -> Dataset:
    """The dataset of the cells that are run now, loaded once: they come in the order of datasets."""
    return sources.load(name, data_dir)


def task(config: RunConfig) -> Task:
    """The data of a run, divided as its seed has it: the same task for all methods of a column."""
    division = config.partition, tuple(config.partition_parameters().items()), config.clients
    return _task(config.dataset, config.data_dir, *division, config.seed)


@functools.lru_cache(maxsize=8)
def _task(
    name: str,
    data_dir: str | None,
    scheme: str,
    parameters: tuple[tuple[str, str], ...],
    clients: int | None,
    seed: int,
) -> Task:
    data = dataset(name, data_dir)
    return Task(data, partitions.make(scheme, dict(parameters), data, clients or max(1, data.owners), seed))


def record_of(config: RunConfig, outcome: Outcome, jobs: int = 1) -> Record:
    """An outcome as it is stored. Accuracies are percent.

    jobs              stacks of runs that the command had at work at once
    seconds           the run's share of what its stack took, and of the device where there were several; longer where
                      other programs used the device, too
    series.paper      participants, weighted by test samples, before local training: what the paper's code logs
    series.all        all clients, unweighted, before local training; one longer: the models that the run delivers
    series.after      participants, weighted, after local training
    clients           every client's accuracy at the end
    partners, mass    of every round, where there are groups: share of the top-5 partners, and of the weight, inside
    partners_by_affinity  the same share by the affinity that a method learns besides its weights (FedFomo)
    weights           P in thousandths after some rounds
    preferred         of every client the others of largest affinity after these rounds, best first
    """
    lines, summary = outcome.lines, outcome.summary
    record = {
        "seed": outcome.seed,
        "config": settings(config),
        "code": code_version(),
        "hardware": hardware(summary["device"]),
        "dtype": config.dtype,
        "jobs": jobs,
        "seconds": round(summary["seconds"] / summary.get("lockstep", 1) / jobs, 2),
        "bytes_down": summary["bytes_down_per_client_round"],
        "bytes_up": summary["bytes_up_per_client_round"],
        "flops": summary["flops_per_client_round"],
        "server_flops": summary["server_flops_per_round"],
        "series": {
            "paper": [line["before"]["participants_weighted"] for line in lines[:-1]],
            "all": [line["before"]["all"] for line in lines],
            "after": [line["after"]["participants_weighted"] for line in lines[:-1]],
        },
        "clients": list(outcome.clients),
    }
    if outcome.groups is None:
        return record
    groups = [(weights, outcome.groups[cohort]) for cohort, weights in outcome.weights]
    record["partners"] = [round(partner_share(weights, own), 4) for weights, own in groups]
    record["mass"] = [round(group_mass(weights, own), 4) for weights, own in groups]
    preferred = [line["preferred"] for line in lines if "preferred" in line]
    if preferred:
        ranked = zip(map(rank_matrix, preferred), groups, strict=True)
        record["partners_by_affinity"] = [round(partner_share(matrix, own), 4) for matrix, (_, own) in ranked]
    if config.algorithm in PAIRWISE and config.participation == 1:
        record["groups"] = outcome.groups.tolist()
        kept = [number for number in (*KEPT_ROUNDS, len(groups)) if number <= len(groups)]
        record["weights"] = {
            str(number): np.rint(1000 * outcome.weights[number - 1][1]).astype(int).tolist() for number in kept
        }
        if preferred:
            record["preferred"] = {str(number): preferred[number - 1] for number in kept}
    return record


def kept_weights(record: Record, number: int) -> np.ndarray:
    """P (N, N) after a round whose weights a record keeps."""
    return np.array(record["weights"][str(number)]) / 1000


def kept_preferences(record: Record, number: int) -> np.ndarray:
    """(N, N) that ranks others by the affinity of a round whose preferences a record keeps."""
    return rank_matrix(record["preferred"][str(number)])


def rank_matrix(preferred: Sequence[Sequence[int]]) -> np.ndarray:
    """(m, m) that ranks others as lists of preferred ones do: the larger, the earlier in client i's list; else 0."""
    matrix = np.zeros((len(preferred), len(preferred)))
    for i, others in enumerate(preferred):
        matrix[i, others] = np.arange(len(others), 0, -1)
    return matrix


def partner_series(records: Iterable[Record], row: Row) -> list[list[float]]:
    """Of every record the share of partners inside a client's group by round, as the row has partners found."""
    key = "partners_by_affinity" if row.by_affinity else "partners"
    return [record[key] for record in records if key in record]


def partner_share(weights: np.ndarray, groups: np.ndarray, top: int = TOP) -> float:
    """Mean over clients of the share of its top partners that belong to its group.

    The client itself counts, and the others with the largest positive weights. With fewer of
    these the missing partners count as outside; in a group smaller than `top` only so many are looked for.
    """
    inside = []
    for i, row in enumerate(weights):
        wanted = min(top, int((groups == groups[i]).sum()))
        others = np.where(np.arange(len(row)) == i, -np.inf, row)
        best = np.argsort(-others, kind="stable")[: wanted - 1]
        friends = (others[best] > 0) & (groups[best] == groups[i])
        inside.append((1 + friends.sum()) / wanted)
    return float(np.mean(inside))


def group_mass(weights: np.ndarray, groups: np.ndarray) -> float:
    """Mean over clients of the weight that stays inside the client's group."""
    return float((weights * (groups[:, None] == groups)).sum(1).mean())


def hardware(device: str) -> str:
    """The machine in a line."""
    return (
        f"{device}, torch {torch.__version__}"
        if device != "cpu"
        else f"{platform.machine()}, torch {torch.__version__}"
    )
