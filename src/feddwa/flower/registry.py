"""The registry of a federation: which member holds which rows.

A member is a registered public key; in Flower's simulation, where nodes have no keys, it is a partition. A node's
description of itself decides only which *free* rows it is given when it joins. From then on the rows belong to its key:
no other key can claim them, and a node that leaves keeps them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, RecordDict
from torch import Tensor
from torch.nn import functional as F

from feddwa import __version__
from feddwa.flower import codec
from feddwa.flower.codec import Malformed
from feddwa.flower.samples import Samples

LARGEST = 2**40  # samples of a client: above any real number, and sums over clients stay within int64
TENSORS = ("train", "test", "labels", "validation")  # of a registry, one row a client


@dataclass(frozen=True)
class Terms:
    """What the operator's configuration fixes: no description of a node can change it, only fail to agree with it."""

    samples: Samples
    clients: int | None  # of the run's partition, of which nodes have blocks; None: nodes bring their own clients
    per_node: int  # most clients that a node may bring
    labels: bool  # whether nodes disclose their label counts
    validated: bool  # whether nodes tell how many samples they hold out


@dataclass(frozen=True)
class NodeDescription:
    """A node's validated description of itself."""

    first: int  # the first row that it asks for; -1: any
    clients: int  # k, the number of its clients
    train: Tensor  # (k,) training samples
    test: Tensor  # (k,) answers that test samples ask for: one each, or the tokens to predict
    labels: Tensor  # (k, C) label counts, 0 where they are not disclosed
    validation: Tensor  # (k,) the same of held-out training samples, 0 where the run has none

    @classmethod
    def of(cls, content: RecordDict, terms: Terms) -> "NodeDescription":
        """Parse a reply to a query; raises Malformed. Nothing is allocated before its size is known to be allowed."""
        facts, arrays = codec.settings(content, "facts"), codec.arrays(content, "sizes")
        if codec.setting(facts, "version", str) != __version__:
            raise Malformed("a node with another version of feddwa")
        first, clients, total = (codec.setting(facts, name, int) for name in ("first", "clients", "total"))
        if terms.clients is None:
            if first != -1 or not 1 <= clients <= terms.per_node:
                raise Malformed(f"{clients} clients from {first}, must be 1 to {terms.per_node} of its own data")
        elif total != terms.clients or not 0 <= first < first + clients <= terms.clients:
            raise Malformed(f"clients {first} to {first + clients - 1} of {total}, the run has {terms.clients}")
        samples, names = codec.setting(facts, "samples", str), codec.setting(facts, "names", str)
        if samples != str(terms.samples):
            raise Malformed(f"samples: the node has {samples}, the run is of {terms.samples}")
        if terms.samples.names not in (None, names):
            raise Malformed("classes unlike those of the run; --classes names the classes of all")
        shapes: dict[str, tuple[int, ...]] = {"train": (clients,), "test": (clients,)}
        shapes |= {"labels": (clients, terms.samples.classes)} if terms.labels else {}
        shapes |= {"validation": (clients,)} if terms.validated else {}
        found = {name: _sizes(arrays, name, shape) for name, shape in shapes.items()}
        blank = torch.zeros(clients, dtype=torch.int64)
        labels = found.get("labels", blank[:, None].expand(clients, terms.samples.classes))
        return cls(first, clients, found["train"], found["test"], labels, found.get("validation", blank))


def _sizes(arrays: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Tensor:
    """The numbers `name` of samples, of a shape; raises Malformed."""
    if name not in arrays:
        raise Malformed(f"sizes: no {name}")
    value = codec.to_tensor(arrays[name])
    if value.shape != shape or value.dtype != torch.int64:
        raise Malformed(f"sizes: no {name} of shape {shape}")
    if not bool(((value >= (name in ("train", "test"))) & (value < LARGEST)).all()):
        raise Malformed(f"sizes: {name} out of range")
    return value


@dataclass
class Registry:
    """The rows of a federation, and which member holds each."""

    rows: dict[str, list[int]] = field(default_factory=dict)  # member -> its rows
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

    def admit(self, key: str, node: NodeDescription, total: int | None) -> None:
        """Register a member and give it rows; raises Malformed where its rows are taken.

        total: the run's clients (`Terms.clients`).
        """
        first = self.clients if node.first < 0 else node.first
        rows = list(range(first, first + node.clients))
        if set(rows) & set(self.rows_of(self.rows)):
            raise Malformed("rows that another key holds")
        self._extend(total or first + node.clients, node.labels.shape[1])
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
        return {"rows": self.rows}

    @classmethod
    def restore(cls, tree: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "Registry":
        """The registry that a checkpoint holds; tree, facts: what the methods of these names returned."""
        return cls(dict(facts["rows"]), *(tree[name] for name in TENSORS))
