"""Adapter for foreign partitioners: anything with the interface of flwr-datasets can divide our data."""

from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.partition import check
from feddwa.data.schemes.base import Partition, split_pooled
from feddwa.errors import InputError


class Partitioner(Protocol):
    """The used part of flwr-datasets' partitioner interface."""

    dataset: Any  # assigned once: a Hugging Face dataset

    @property
    def num_partitions(self) -> int:
        """Number of clients."""
        ...

    def load_partition(self, partition_id: int) -> Any:
        """The rows of one client, as a dataset."""
        ...


def from_partitioner(partitioner: Partitioner, dataset: Dataset, seed: int = 0, test_share: float = 0.2) -> Partition:
    """Divide `dataset` with a foreign partitioner, by the column "label", or "client" if the data have owners.

    It gets a table of row numbers and labels without pixels, which identifies each row afterwards. Training and test
    rows are pooled and each client's share is split anew: two draws would not give a client the same classes.
    """
    try:
        table = import_module("datasets").Dataset
    except ImportError:
        raise InputError("package datasets is not installed: pip install 'feddwa[hub]'") from None
    columns = {"row": np.arange(len(dataset.y)), "label": dataset.y}
    if dataset.client is not None:
        columns["client"] = dataset.client
    owner = np.full(len(dataset.y), -1)
    try:
        partitioner.dataset = table.from_dict(columns)
        clients = partitioner.num_partitions
        for i in range(clients):
            rows = np.asarray(partitioner.load_partition(i)["row"][:])
            if (owner[rows] >= 0).any():
                raise ValueError("it gives a row to two clients")
            owner[rows] = i
    except Exception as error:  # foreign code: whatever it objects to is about the request
        raise InputError(f"partitioner {type(partitioner).__name__}: {error}") from error
    partition = split_pooled(owner, clients, test_share, np.random.default_rng(seed))
    partition = replace(partition, client_names=owners_names(dataset, owner, clients))
    check(partition, dataset)
    return partition


def owners_names(dataset: Dataset, owner: np.ndarray, clients: int) -> tuple[str, ...]:
    """The owners' names if clients and owners correspond one to one, else ()."""
    if dataset.client is None or not dataset.client_names:
        return ()
    pairs = np.unique(np.stack([owner, dataset.client])[:, owner >= 0], axis=1)  # (2, pairs) client, its owner
    if pairs[0].tolist() != list(range(clients)) or len(set(pairs[1].tolist())) < clients:
        return ()
    return tuple(dataset.client_names[number] for number in pairs[1])
