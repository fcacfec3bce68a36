"""The one entry to the partition schemes: build from parameters, draw, validate."""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from feddwa import plugins
from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Scheme
from feddwa.data.schemes.dirichlet import Dirichlet
from feddwa.data.schemes.foreign import adopt
from feddwa.data.schemes.groups import Groups
from feddwa.data.schemes.natural import Natural
from feddwa.data.schemes.pathological import Pathological
from feddwa.data.schemes.shift import Iid, LabelPermutation, Rotations
from feddwa.errors import InputError, require
from feddwa.params import build

__all__ = ["PARTITIONS", "Partition", "Scheme", "adopt", "check", "make"]

PARTITIONS: dict[str, type[Scheme]] = {
    "pathological": Pathological,
    "groups": Groups,
    "dirichlet": Dirichlet,
    "iid": Iid,
    "rotations": Rotations,
    "label-permutation": LabelPermutation,
    "natural": Natural,
}

# The paper's class counts. EMNIST is not in the authors' code, so there the paper's text is all there is to follow.
PAPER_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "pathological": {
        "emnist": {"variant": "classes", "classes_per_client": 4},
        "cifar10": {"classes_per_client": 2},
        "cinic10": {"classes_per_client": 2},
        "cifar100": {"classes_per_client": 6},
        "tiny-imagenet": {"classes_per_client": 10},
        "tiny-imagenet-32": {"classes_per_client": 10},
    },
    "groups": {
        "cifar10": {"dominant_classes": 3},
        "cinic10": {"dominant_classes": 3},
        "cifar100": {"dominant_classes": 20},
        "tiny-imagenet": {"dominant_classes": 40},
        "tiny-imagenet-32": {"dominant_classes": 40},
    },
}

# Hyper-parameters that one variant of a scheme has and the other does not look at.
VARIANT_OF: dict[str, dict[str, str]] = {
    "pathological": {"shards_per_client": "shards", "classes_per_client": "classes", "amounts": "classes"},
    "groups": {"dominant_classes": "classes"},
}


def make(name: str, params: Mapping[str, Any], dataset: Dataset, clients: int, seed: int) -> Partition:
    """Divide `dataset` among `clients` by the scheme `name` with its hyper-parameters; same seed, same partition."""
    kind = plugins.PARTITIONS.find(name)
    require(clients >= 1, "--clients", clients, "at least 1")
    require(seed >= 0, "--seed", seed, "at least 0")
    enough = f"at most {len(dataset.y) // 2}: each needs a sample to train and one to test; take fewer clients"
    require(2 * clients <= len(dataset.y), "--clients", clients, enough)
    defaults = PAPER_DEFAULTS.get(name, {}).get(dataset.name, {})
    usual, scheme = (build(kind, values, f"partition {name}") for values in (defaults, {**defaults, **params}))
    for key, variant in VARIANT_OF.get(name, {}).items():
        if vars(scheme)["variant"] != variant and vars(scheme)[key] != vars(usual)[key]:
            raise InputError(f"--param {key}: only variant={variant} has it; give --param variant={variant} as well")
    rng = np.random.default_rng([seed, zlib.crc32(b"partition")])
    column = _column(name, scheme, dataset)
    most = len(dataset.y) // 2
    require(clients <= most, "--clients", clients, f"at most {most:,}: each needs a sample to train and one to test")
    partition = scheme(column, dataset.train_count, clients, rng)
    made = f"{type(partition).__name__} of {getattr(partition, 'train', None) and len(partition.train)} clients"
    right = isinstance(partition, Partition) and len(partition.train) == len(partition.test) == clients
    require(right, f"--partition {name}", made, f"a function that returns a Partition of {clients} clients")
    if scheme.reads == "owners":
        partition = replace(partition, client_names=dataset.client_names[:clients])
    check(partition, dataset)
    return partition


def default_for(dataset: Dataset) -> str:
    """The partition of own data that nobody has named one for: their owners', or where they have none an even one.

    Never one that changes what clients see, as `rotations` does: that is for trying methods out on known data.
    """
    return "iid" if dataset.client is None else "natural"


def _column(name: str, scheme: Scheme, dataset: Dataset) -> np.ndarray:
    """What the scheme divides by: the labels, or the owners; with an error where the data do not have it."""
    if scheme.reads == "owners":
        if dataset.client is None:
            raise InputError(f"--partition {name}: dataset {dataset.name} has no client column")
        return dataset.client
    if scheme.reads == "labels" and (not dataset.classes or dataset.y.ndim != 1):
        raise InputError(f"--partition {name}: {dataset.name} has no class labels; valid: iid, rotations, natural")
    square = len(dataset.shape) == 3 and dataset.shape[1] == dataset.shape[2]
    if scheme.reads == "images" and not square:
        raise InputError(f"--partition {name}: wants square images (C, H, H), {dataset.name} has shape {dataset.shape}")
    return dataset.y


def check(partition: Partition, dataset: Dataset) -> None:
    """Raise InputError unless no row is given twice and every client has at least one training and one test row."""
    for part, lists in (("training", partition.train), ("test", partition.test)):
        empty = [i for i, rows in enumerate(lists) if len(rows) == 0]
        if empty:
            client = partition.client_name(empty[0])
            raise InputError(
                f"--clients: got {len(lists)}, but client {client} has no {part} sample in this partition of "
                f"{dataset.name}; take fewer clients or other partition parameters"
            )
    rows = np.concatenate([*partition.train, *partition.test])
    if rows.min() < 0 or rows.max() >= len(dataset.y) or np.bincount(rows).max() > 1:
        raise InputError(f"partition of {dataset.name}: a row is given twice or does not exist")
