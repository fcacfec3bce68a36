"""The device-resident federated dataset: one tensor of samples, and every client's row numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from feddwa.data.dataset import Dataset, NamedClients, at_the_end, evenly
from feddwa.data.labels import PADDING
from feddwa.data.partition import Partition

NetworkInput = Tensor | Mapping[str, Tensor]  # (..., *shape) of a single input, or of each input by name
HELD_OUT = "held_out"  # the split of --validation; "validation" is the split on which a method fits its weights
CENTRAL = "central"  # the split of --eval central: all clients' test samples, for every client
TRIGGERED = "triggered"  # the split of the backdoor attack: test samples with its trigger, labelled with its class
EVALUATED = ("test", HELD_OUT, CENTRAL, TRIGGERED)  # never used for training
LEFT = 2  # smallest number of training samples left: some methods divide them again


class Batch(NamedTuple):
    """Samples ready for a network."""

    x: NetworkInput  # (..., B, *shape) floats, normalised; token ids stay integers
    y: Tensor  # (..., B), or (..., B, L) of several targets a sample

    def pieces(self, count: int) -> "list[Batch]":
        """The batch (B, ...) in `count` parts of nearly equal size."""
        y = self.y.tensor_split(count)
        if isinstance(self.x, Tensor):
            return [Batch(*pair) for pair in zip(self.x.tensor_split(count), y, strict=True)]
        x = {name: value.tensor_split(count) for name, value in self.x.items()}
        return [Batch({name: parts[place] for name, parts in x.items()}, own) for place, own in enumerate(y)]


@dataclass(frozen=True)
class Split:
    """The samples of one kind (train, validation, second_half, held_out, test, central, triggered) of every client."""

    index: Tensor  # (N, longest) int64 row numbers into the samples; meaningless beyond a client's size
    sizes: Tensor  # (N,) int64, on the CPU

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], device: torch.device) -> "Split":
        """The split in which client i has rows[i]."""
        index = np.zeros((len(rows), max(len(own) for own in rows)), dtype=np.int64)
        for line, own in zip(index, rows, strict=True):
            line[: len(own)] = own
        return cls(torch.from_numpy(index).to(device), torch.tensor([len(own) for own in rows]))


@dataclass(frozen=True)
class FederatedData(NamedClients):
    """All clients' samples on one device, gathered by index inside the training program: no loader, no copies."""

    x: NetworkInput  # (n, *shape) uint8, float or int64
    y: Tensor  # (n,), or (n, ...) of several targets a sample
    splits: Mapping[str, Split]  # "train", "test", a second training split where an algorithm declares one, ...
    classes: int
    scale: Tensor | None  # (C, 1, ...) per channel: x * scale + shift is the network's input
    shift: Tensor | None
    client_names: tuple[str, ...] = ()  # of the N clients, if the data name them

    @property
    def clients(self) -> int:
        """The number of clients, N."""
        return len(self.splits["train"].sizes)

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.y.device

    @property
    def labelled(self) -> bool:
        """Whether the targets are classes without missing (negative) labels."""
        return self.y.ndim == 1 and not self.y.is_floating_point() and bool((self.y >= 0).all())

    def batch(self, index: Tensor, dtype: torch.dtype) -> Batch:
        """The samples at `index` (..., B) as network input of the given float type."""
        y = self.y[index]
        return Batch(self._inputs(index, dtype), y.to(dtype) if y.is_floating_point() else y)

    def black(self, dtype: torch.dtype) -> Tensor:
        """The network's input for a pixel of value 0: (C, 1, 1), or () without normalisation."""
        return torch.zeros((), dtype=dtype, device=self.device) if self.shift is None else self.shift.to(dtype)

    def _inputs(self, index: Tensor, dtype: torch.dtype) -> NetworkInput:
        """The inputs at `index`; for several inputs bytes are scaled to 0..1, without normalisation."""
        if not isinstance(self.x, Tensor):
            return {name: as_input(value[index], dtype) for name, value in self.x.items()}
        x = self.x[index]
        if self.scale is not None and self.shift is not None:
            return torch.addcmul(self.shift.to(dtype), x.to(dtype), self.scale.to(dtype))
        return as_input(x, dtype)

    def label_counts(self) -> Tensor | None:
        """(N, C) training samples of every client by class, including separated splits, on the CPU.

        None if targets are not classes.
        """
        if self.y.ndim != 1 or self.y.is_floating_point() or self.classes < 1:
            return None
        own = [split for name, split in self.splits.items() if name not in EVALUATED]
        return torch.stack([self._counts(split) for split in own]).sum(0)

    def answers(self, split: str) -> Tensor:
        """(N,) int64, on the CPU: number of predictions that every client's samples ask for; see `answers`."""
        if self.y.ndim == 1:
            return self.splits[split].sizes
        every = answers(self.y).cpu()  # (n,)
        return torch.stack([every[own].sum() for own in self.rows(split)])

    def _counts(self, split: Split) -> Tensor:
        own = zip(split.index, split.sizes.tolist(), strict=True)
        return torch.stack([torch.bincount(self.y[row[:size]], minlength=self.classes) for row, size in own]).cpu()

    @property
    def validation_sizes(self) -> Tensor | None:
        """(N,) number of validation predictions, see `answers`; None if nothing is held out."""
        return self.answers(HELD_OUT) if HELD_OUT in self.splits else None

    def hold_out(self, share: float, draws: np.ndarray | None) -> "FederatedData":
        """The same data with a share of every client's training samples in the split HELD_OUT, for validation alone.

        draws: (N, longest + 1) random numbers of the client's samples, in the order of their rows, and one more. They
        select samples stratified by the client's classes. None: the client's last rows. Two training samples stay; a
        client with no more, or with a small share of few, gives none.
        """
        sizes = self.splits["train"].sizes.numpy()
        rows = np.concatenate([np.sort(own) for own in self.rows("train")])
        wanted = np.minimum(np.rint(share * sizes), np.maximum(sizes - LEFT, 0)).astype(np.int64)
        if draws is None:
            held = at_the_end(sizes, wanted)
        else:
            strata = self.y.cpu().numpy()[rows] if self.labelled else np.zeros(len(rows))
            own = np.arange(draws.shape[1]) < sizes[:, None]
            order = np.lexsort((draws[own], strata, np.repeat(np.arange(len(sizes)), sizes)))
            held = np.zeros(len(rows), dtype=bool)
            held[order] = evenly(sizes, wanted, draws[:, -1] % sizes)
        parts = {
            "train": np.split(rows[~held], np.cumsum(sizes - wanted)[:-1]),
            HELD_OUT: np.split(rows[held], np.cumsum(wanted)[:-1]),
        }
        new = {name: Split.of(own, self.device) for name, own in parts.items()}
        return replace(self, splits={**self.splits, **new})

    def with_central(self) -> "FederatedData":
        """The same with the split CENTRAL: the test samples of all clients, given to every client."""
        rows = torch.from_numpy(np.sort(np.concatenate(self.rows("test")))).to(self.device)
        everybody = Split(rows.expand(self.clients, -1), torch.full((self.clients,), len(rows)))  # kept in memory once
        return replace(self, splits={**self.splits, CENTRAL: everybody})

    def rows(self, split: str) -> list[np.ndarray]:
        """Every client's rows in a split."""
        own = self.splits[split]
        pairs = zip(own.index.cpu().numpy(), own.sizes.tolist(), strict=True)
        return [index[:size] for index, size in pairs]

    def split_off(self, name: str, share: float, rng: np.random.Generator) -> "FederatedData":
        """The same data with a share of every client's *training* samples moved to the split `name`."""
        kept, moved = [], []
        for rows in self.rows("train"):
            order, size = rng.permutation(rows), len(rows)
            cut = min(max(1, round(share * size)), size - 1)  # at least one sample on either side
            moved.append(order[:cut])
            kept.append(np.sort(order[cut:]))
        splits = {**self.splits, "train": Split.of(kept, self.device), name: Split.of(moved, self.device)}
        return replace(self, splits=splits)


def answers(y: Tensor) -> Tensor:
    """(B,) int64: number of predictions per sample, from targets (B, ...).

    One, or for a row of tokens the number of tokens to predict: all except PADDING.
    """
    if y.ndim == 1 or y.is_floating_point():
        return torch.ones(len(y), dtype=torch.int64, device=y.device)
    return (y != PADDING).flatten(1).sum(1)


def federate(
    dataset: Dataset, partition: Partition, device: torch.device, samples: tuple[NetworkInput, Tensor] | None = None
) -> FederatedData:
    """A dataset and its partition on a device; `samples` if they are already there."""
    x, y = samples or to_device(dataset, partition, device)
    scale, shift = _normalisation(dataset)
    return FederatedData(
        x=x,
        y=y,
        splits={"train": Split.of(partition.train, device), "test": Split.of(partition.test, device)},
        classes=dataset.classes,
        scale=None if scale is None else scale.to(device),
        shift=None if shift is None else shift.to(device),
        client_names=partition.client_names,
    )


def to_device(dataset: Dataset, partition: Partition, device: torch.device) -> tuple[NetworkInput, Tensor]:
    """All samples and targets on `device`, with the clients' rotations and label permutations applied."""
    x, y = dataset.x, dataset.y
    if partition.turns is not None:
        x = np.array(x)
        for turns, rows in zip(partition.turns, _rows(partition), strict=True):
            x[rows] = np.rot90(x[rows], int(turns), axes=(-2, -1))
    if partition.relabel is not None:
        y = y.copy()
        for new, rows in zip(partition.relabel, _rows(partition), strict=True):
            y[rows] = new[y[rows]]
    return _tensors(x, device), torch.from_numpy(np.array(y)).to(device)


def _tensors(x: np.ndarray, device: torch.device) -> NetworkInput:
    """Samples (n, *shape) as a tensor; a structured array (n,) as a tensor (n, *shape) per field."""
    if x.dtype.names is None:
        return torch.from_numpy(np.array(x)).to(device)
    return {name: torch.from_numpy(np.array(x[name])).to(device) for name in x.dtype.names}


def as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers from 0 to 1, floats in the network's type; token ids stay integers."""
    return x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype) if x.is_floating_point() else x


def _rows(partition: Partition) -> list[np.ndarray]:
    """Every client's rows, train and test."""
    return [np.concatenate(pair) for pair in zip(partition.train, partition.test, strict=True)]


def _normalisation(dataset: Dataset) -> tuple[Tensor | None, Tensor | None]:
    """Scale and shift such that x * scale + shift = (x / top - mean) / std; top = 255 for bytes, 1 for floats."""
    is_bytes = dataset.x.dtype == np.uint8
    if not is_bytes and not dataset.mean:
        return None, None
    mean, std = np.array(dataset.mean or (0.0,)), np.array(dataset.std or (1.0,))
    shape = (-1, *[1] * (dataset.x.ndim - 2)) if dataset.x.ndim > 2 else (-1,)
    scale = torch.from_numpy(1 / (std * (255 if is_bytes else 1)))
    return scale.reshape(shape), torch.from_numpy(-mean / std).reshape(shape)
