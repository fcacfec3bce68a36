"""The clients of a node, and their data.

Node config (`flower-supernode --node-config`):

    data="/srv/site-1.csv"             own data: a path as for `--dataset`; one client, or one per owner in the data
    partition-id=0 num-partitions=3    or, for experiments, a block of the clients of the run's dataset and partition
    data-dir="/srv/datasets"           folder of the named datasets
    dataset="/srv/own.npz"             the only path that a run may name as its dataset
    references="lab.methods:Ditto"     code that a run may name by reference, separated by commas
    device="cpu"                       overrides the run's device

A run gives names and numbers only. A node reads no path and imports no code except those in its own configuration.
"""

import dataclasses
import functools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddwa.build import load_task, with_targets
from feddwa.data import own
from feddwa.data.dataset import Dataset
from feddwa.data.federated import FederatedData, Split
from feddwa.data.schemes.plain import Natural
from feddwa.data.task import Task
from feddwa.errors import InputError
from feddwa.flower.settings import FlowerConfig
from feddwa.plugins import DATASETS, is_foreign, metric_of

Values = tuple[tuple[str, Any], ...]  # a node config as a hashable value, for caches


class Refusal(InputError):
    """A request that the node refuses. The server reads the text, so it must not contain paths or data."""


@dataclass(frozen=True)
class Site:
    """The clients and data of a node, before the server has given it rows."""

    task: Task
    first: int  # number of its first client in the run's partition; -1: own data, which may get any rows
    clients: int  # number of its clients

    @property
    def numbers(self) -> Tensor:
        """(k,) its clients' numbers in its task."""
        return torch.arange(self.clients) + max(self.first, 0)


def admit(config: FlowerConfig, node: Values) -> None:
    """Refuse references to code that the node config does not name, before any of it is imported."""
    allowed = [text.strip() for text in str(dict(node).get("references", "")).split(",")]
    names = [
        (option, getattr(config, option) or "") for option in ("algorithm", "model", "partition", "dataset", "loss")
    ]
    for option, name in [*names, *(("metrics", metric_of(entry)[1]) for entry in config.metrics)]:
        if is_foreign(name) and name not in allowed:
            raise Refusal(f"{option}: a reference that the node config does not name under `references`")


@functools.lru_cache(maxsize=64)
def load_site(config: FlowerConfig, node: Values) -> Site:
    """The site of a node in a run. node: its node config. Raises Refusal where that is wrong."""
    values = dict(node)
    if "data" in values:
        task = _own_task(str(values["data"]), config)
        return Site(task, -1, task.clients)
    if "partition-id" not in values or "num-partitions" not in values:
        raise Refusal("node config: must have data, or partition-id and num-partitions")
    allowed = os.path.abspath(str(values["dataset"])) if "dataset" in values else None
    if not DATASETS.knows(config.dataset) and os.path.abspath(config.dataset) != allowed:
        raise Refusal("dataset: a run names a dataset; the paths of own data stand in the node config")
    task = load_task(dataclasses.replace(config, data_dir=values.get("data-dir")))
    place, parts = int(values["partition-id"]), int(values["num-partitions"])
    if not 0 <= place < parts <= task.clients:
        raise Refusal(f"node config: partition {place} of {parts}, for {task.clients} clients")
    block = np.array_split(np.arange(task.clients), parts)[place]
    return Site(task, int(block[0]), len(block))


def _own_task(path: str, config: FlowerConfig) -> Task:
    """The task of own data, read as the run says: one client, or one per owner that the data name."""
    dataset = own.load_own(path, config)
    if config.class_names:  # labels that the run names are classes, however few samples the node has of each
        dataset = _numbered(dataset, config.class_names)
        config = dataclasses.replace(config, loss=config.loss or "cross-entropy")
    dataset = with_targets(config, dataset)
    owner = np.zeros(len(dataset.y), dtype=np.int64) if dataset.client is None else dataset.client
    partition = Natural()(owner, dataset.train_count, max(1, dataset.owners), np.random.default_rng())
    return Task(dataset, dataclasses.replace(partition, client_names=dataset.client_names))


def _numbered(dataset: Dataset, names: tuple[str, ...]) -> Dataset:
    """The same data with labels renumbered by the run's class names; the data need not contain every class."""
    if not dataset.class_names:
        raise Refusal("classes: the run names some, and the data's targets are numbers or tokens")
    foreign = [name for name in dataset.class_names if name not in names]
    if foreign:
        raise Refusal(f"classes: the data have {len(foreign)} that the run does not name")
    numbers = np.array([names.index(name) for name in dataset.class_names], dtype=np.int64)
    return dataclasses.replace(dataset, y=numbers[dataset.y], classes=len(names), class_names=names)


def place(data: FederatedData, numbers: Tensor, rows: Tensor, clients: int) -> FederatedData:
    """The data with client numbers[i] moved to rows[i], in a federation of `clients`; all other rows are empty.

    numbers, rows: (k,).
    """
    splits = {}
    for name, split in data.splits.items():
        index = split.index.new_zeros(clients, split.index.shape[1])
        index[rows] = split.index[numbers]
        sizes = split.sizes.new_zeros(clients)
        sizes[rows] = split.sizes[numbers]
        splits[name] = Split(index, sizes)
    names = [str(row) for row in range(clients)]
    if data.client_names:
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
            names[row] = data.client_names[number]
    return dataclasses.replace(data, splits=splits, client_names=tuple(names))
