"""The entry point of the partition schemes: build from parameters, draw, validate."""

import dataclasses
import inspect
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from feddwa.data.catalogue import defaults_of
from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Reads, Scheme
from feddwa.data.schemes.class_blocks import ClassBlocks
from feddwa.data.schemes.dirichlet import Dirichlet
from feddwa.data.schemes.dirichlet_clients import DirichletClients
from feddwa.data.schemes.groups import Groups
from feddwa.data.schemes.pathological import Pathological
from feddwa.data.schemes.plain import Iid, Natural
from feddwa.data.schemes.shift import LabelPermutation, Rotations
from feddwa.errors import InputError, counted, require
from feddwa.params import build
from feddwa.plugins import PARTITIONS as REGISTRY
from feddwa.plugins import Unfit, check_arguments, check_defaults, label

__all__ = ["PARTITIONS", "Partition", "Scheme", "adopt", "check", "held_out", "make", "make_scheme"]

PARTITIONS: dict[str, type[Scheme]] = {
    "pathological": Pathological,
    "groups": Groups,
    "dirichlet": Dirichlet,
    "class-blocks": ClassBlocks,
    "dirichlet-clients": DirichletClients,
    "iid": Iid,
    "rotations": Rotations,
    "label-permutation": LabelPermutation,
    "natural": Natural,
}
ARGUMENTS = ("labels", "train_count", "clients", "rng")  # of a scheme, or of a function used as one


def adopt(scheme: Any) -> type[Scheme]:
    """A scheme as a class whose fields are its hyper-parameters; raises Unfit if it cannot be one."""
    if inspect.isfunction(scheme):
        return _class_of(scheme)
    if not (inspect.isclass(scheme) and dataclasses.is_dataclass(scheme)):
        valid = f"a function of ({', '.join(ARGUMENTS)}) or a frozen dataclass that can be called so"
        raise Unfit(f"is a {type(scheme).__name__}, must be {valid}")
    if getattr(scheme, "reads", None) not in get_args(Reads):
        raise Unfit(f"has no `reads`, what of the data it depends on; must be one of {', '.join(get_args(Reads))}")
    check_defaults(scheme)
    check_arguments(scheme.__call__, ("self", *ARGUMENTS), "__call__")
    return scheme if issubclass(scheme, Scheme) else type(scheme.__name__, (scheme, Scheme), {})


def _class_of(function: Any) -> type[Scheme]:
    """The class of a function (labels, train_count, clients, rng, KEY: TYPE = DEFAULT, ...), whose other arguments are
    fields.
    """
    check_arguments(function, ARGUMENTS, function.__name__)
    further = list(inspect.signature(function).parameters.values())[len(ARGUMENTS) :]
    for each in further:
        if each.default is each.empty or each.annotation is each.empty:
            raise Unfit(f"its argument {each.name} must have a type and a default, such as {each.name}: float = 1.0")

    def call(self: Any, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        return function(labels, train_count, clients, rng, **vars(self))  # type: ignore[no-any-return]

    fields = [
        (each.name, inspect.get_annotations(function, eval_str=True)[each.name], each.default) for each in further
    ]
    members = {"reads": "nothing", "__call__": call, "__doc__": function.__doc__}
    return dataclasses.make_dataclass(function.__name__, fields, bases=(Scheme,), namespace=members, frozen=True)


def make_scheme(name: str, params: Mapping[str, Any], dataset: str) -> Scheme:
    """The scheme `name` with the given hyper-parameters; defaults are the dataset's or the scheme's."""
    kind, what = REGISTRY.find(name), f"partition {label(name)}"
    usual = defaults_of(dataset).schemes.get(name, {})
    scheme: Scheme = build(kind, {**usual, **params}, what)
    scheme.check_variant(build(kind, usual, what))
    return scheme


def make(name: str, params: Mapping[str, Any], dataset: Dataset, clients: int, seed: int) -> Partition:
    """Divide `dataset` among `clients` by the scheme `name` with its hyper-parameters; same seed, same partition."""
    scheme, most = make_scheme(name, params, dataset.name), len(dataset.y) // 2
    require(clients >= 1, "--clients", clients, "at least 1")
    require(seed >= 0, "--seed", seed, "at least 0")
    if clients > most:
        raise InputError(
            f"--clients: {clients} are too many for {len(dataset.y)} samples: each needs one to train and one to test; "
            f"take at most {most}"
        )
    column = _column(name, scheme, dataset)
    scheme.check(dataset, clients)
    rng = np.random.default_rng([seed, zlib.crc32(b"partition")])
    partition = scheme(column, dataset.train_count, clients, rng)
    made = f"{type(partition).__name__} of {getattr(partition, 'train', None) and len(partition.train)} clients"
    right = isinstance(partition, Partition) and len(partition.train) == len(partition.test) == clients
    require(right, f"--partition {name}", made, f"a function that returns a Partition of {clients} clients")
    if scheme.reads == "owners":
        names = dataset.client_names[:clients]
        partition = dataclasses.replace(partition, client_names=names, groups=groups_of(names))
    check(partition, dataset)
    return partition


def held_out(partition: Partition, count: int, seed: int) -> Partition:
    """The partition with `count` clients, drawn by the seed, held out as newcomers; unchanged for 0."""
    if not count:
        return partition
    rng = np.random.default_rng([seed, zlib.crc32(b"holdout")])
    return partition.hold_out(np.sort(rng.permutation(len(partition.train))[:count]))


def groups_of(names: Sequence[str]) -> np.ndarray | None:
    """(N,) the group of each client if all names are GROUP/NAME, such as "hamlet/HAMLET"; otherwise None."""
    if not names or not all("/" in name for name in names):
        return None
    groups: np.ndarray = np.unique([name.rpartition("/")[0] for name in names], return_inverse=True)[1]
    return groups


def default_for(dataset: Dataset) -> str:
    """The default partition of own data: by owner, or an even one without owners.

    Never one that changes what clients see, as `rotations` does, which is for experiments on known data. Files with a
    single owner are probably a mistake and refused.
    """
    if len(dataset.client_names) == 1:
        raise InputError(
            f"--dataset {dataset.name}: all samples belong to one client, {dataset.client_names[0]}; name the column "
            "or give the folders that tell clients apart, or take --partition iid (at random) or natural (this one)"
        )
    return "iid" if dataset.client is None else "natural"


def _column(name: str, scheme: Scheme, dataset: Dataset) -> np.ndarray:
    """The column by which the scheme divides, labels or owners; raises InputError if the data lack it."""
    if scheme.reads == "owners":
        if dataset.client is None:
            raise InputError(f"--partition {name}: dataset {dataset.name} has no client column")
        return dataset.client
    if scheme.reads == "labels" and (not dataset.classes or dataset.y.ndim != 1):
        valid = ", ".join(other for other, kind in PARTITIONS.items() if kind.reads != "labels")
        raise InputError(f"--partition {name}: {dataset.name} has no class labels; valid: {valid}")
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
            owned = len(lists) == dataset.owners == len(partition.client_names)
            hint = "--min-samples 2 leaves such clients out" if owned else "take fewer --clients, or other parameters"
            raise InputError(
                f"--partition: client {client} has no {part} sample where {counted(len(dataset.y), 'sample')} of "
                f"{dataset.name} are divided among {len(lists)}; {hint}"
            )
    rows = np.concatenate([*partition.train, *partition.test])
    if rows.min() < 0 or rows.max() >= len(dataset.y) or np.bincount(rows).max() > 1:
        raise InputError(f"partition of {dataset.name}: a row is given twice or does not exist")
