"""The registry of a federation: which member holds which rows.

A member is a registered public key; in Flower's simulation, where nodes have no keys, it is a partition. A node's
description of itself decides only which *free* rows it is given when it joins. From then on the rows belong to its key:
no other key can claim them, and a node that leaves keeps them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, get_args

import torch
from flwr.app import RecordDict
from torch import Tensor
from torch.nn import functional as F

from feddwa import __version__
from feddwa.data.inputs import Inputs, Kind
from feddwa.flower import codec, layout
from feddwa.flower.codec import Malformed

LARGEST = 2**40  # samples of a client: above any real number, and sums over clients stay within int64
TENSORS = ("train", "test", "labels", "validation")  # of a registry, one row a client
MOST = 10_000  # clients of one node: the server holds a row for each


@dataclass(frozen=True)
class NodeDescription:
    """A node's validated description of itself."""

    first: int  # the first row that it asks for; -1: any
    clients: int  # k, the number of its clients
    total: int  # clients of the whole partition, of which the node has a block
    task: tuple[Any, ...]  # inputs of the network, layout of a target, number of classes, digest of their names
    train: Tensor  # (k,) training samples
    test: Tensor  # (k,) answers that test samples ask for: one each, or the tokens to predict
    labels: Tensor  # (k, C) label counts, 0 where they are not disclosed
    validation: Tensor  # (k,) the same of held-out training samples, 0 where the run has none

    @classmethod
    def of(cls, content: RecordDict, disclosed: bool, validated: bool = False) -> "NodeDescription":
        """Parse a reply to a query; raises Malformed.

        disclosed: whether label counts are expected; validated: whether numbers of held-out samples are.
        """
        facts, arrays = codec.settings(content, "facts"), codec.arrays(content, "sizes")
        if codec.setting(facts, "version", str) != __version__:
            raise Malformed("a node with another version of feddwa")
        first, clients, total = (codec.setting(facts, name, int) for name in ("first", "clients", "total"))
        inputs = _inputs(codec.setting(facts, "inputs", str))
        targets, names = (codec.setting(facts, name, str) for name in ("targets", "names"))
        classes = codec.setting(facts, "classes", int)
        layout.blank(targets, 1)
        in_place = first == -1 or 0 <= first <= total - clients
        if not 1 <= clients <= MOST or not in_place or not 0 <= classes <= 2**20:
            raise Malformed("a node that holds nothing, or too much")
        tensors = {name: codec.to_tensor(array) for name, array in arrays.items()}
        shapes = {"train": (clients,), "test": (clients,)} | ({"labels": (clients, classes)} if disclosed else {})
        shapes |= {"validation": (clients,)} if validated else {}
        for name, expected in shapes.items():
            value = tensors.get(name)
            if value is None or value.shape != expected or value.dtype != torch.int64:
                raise Malformed(f"sizes: no {name} of shape {expected}")
            if not bool(((value >= (name in ("train", "test"))) & (value < LARGEST)).all()):
                raise Malformed(f"sizes: {name} out of range")
        labels = tensors["labels"] if disclosed else torch.zeros(clients, classes, dtype=torch.int64)
        task = (inputs, targets, classes, names)
        held_out = tensors["validation"] if validated else torch.zeros(clients, dtype=torch.int64)
        return cls(first, clients, total, task, tensors["train"], tensors["test"], labels, held_out)


@dataclass
class Registry:
    """The rows of a federation, and which member holds each."""

    rows: dict[str, list[int]] = field(default_factory=dict)  # member -> its rows
    task: tuple[Any, ...] | None = None  # as in `NodeDescription`; None until the first node has joined
    train: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # (N,) training samples
    test: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # (N,) test samples
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))  # (N, C) label counts
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # (N,) held-out samples

    @property
    def clients(self) -> int:
        """N, including rows that no member holds yet."""
        return len(self.train)

    def rows_of(self, keys: Iterable[str]) -> list[int]:
        """All rows of the members `keys`, in ascending order."""
        return sorted(row for key in keys for row in self.rows[key])

    def admit(self, key: str, node: NodeDescription) -> None:
        """Register a member and give it rows; raises Malformed where its task differs or its rows are taken."""
        if self.task is None:
            self.task = node.task
        if node.task != self.task:
            raise Malformed("samples or classes unlike those of the others; --classes names the classes of all")
        if node.first < 0:
            rows = list(range(self.clients, self.clients + node.clients))
        else:
            rows = list(range(node.first, node.first + node.clients))
            if self.rows and node.total != self.clients:
                raise Malformed(f"a block of {node.total} clients in a federation of {self.clients}")
            if set(rows) & set(self.rows_of(self.rows)):
                raise Malformed("rows that another key holds")
        self._extend(max(node.total if node.first >= 0 else 0, rows[-1] + 1), node.task[2])
        self.rows[key], places = rows, torch.tensor(rows)
        self.train[places], self.test[places], self.labels[places] = node.train, node.test, node.labels
        self.validation[places] = node.validation

    def _extend(self, clients: int, classes: int) -> None:
        """Grow the tensors to `clients` rows; new rows are 0."""
        more = clients - self.clients
        if more > 0:
            self.labels = F.pad(self.labels.reshape(self.clients, classes), (0, 0, 0, more))
            self.train, self.test = F.pad(self.train, (0, more)), F.pad(self.test, (0, more))
            self.validation = F.pad(self.validation, (0, more))

    def tree(self) -> dict[str, Tensor]:
        """The tensors, for a checkpoint."""
        return {name: getattr(self, name) for name in TENSORS}

    def facts(self) -> dict[str, Any]:
        """Everything else, for a checkpoint."""
        task = None if self.task is None else (self.task[0].as_json(), *self.task[1:])
        return {"rows": self.rows, "task": task}

    @classmethod
    def restore(cls, tree: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Registry":
        """The registry that a checkpoint holds; tree, facts: what the methods of these names returned."""
        inputs, *others = facts["task"]
        task = Inputs.from_json(inputs), *others
        return cls(dict(facts["rows"]), task, *(tree[name] for name in TENSORS))


def _inputs(text: str) -> Inputs:
    """The inputs that a node says to have; raises Malformed where these are none that a network can be built for."""
    try:
        inputs = Inputs.from_json(json.loads(text))
        parts = [inputs, *inputs.parts.values()]
        numbers = [number for part in parts for number in (*part.shape, part.vocabulary + 1)]
        right = all(type(number) is int and number > 0 for number in numbers)
        right &= all(part.kind in get_args(Kind) and prod(part.shape) <= layout.LARGEST for part in parts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        right = False
    if not right:
        raise Malformed("inputs that no network has")
    return inputs
