"""Attacks on the attackers' training data. They train honestly on it and send the result."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from feddwa.attacks.base import Attack, Seen
from feddwa.data.federated import TRIGGERED, FederatedData, Split
from feddwa.engine import Stack, keys
from feddwa.errors import InputError, require


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Labels C - 1 - y in place of y, on all training samples."""

    summary = "trains on labels C - 1 - y"

    def poisoned(self, data: FederatedData, attackers: Tensor, draws: Tensor) -> FederatedData:
        """See Attack."""
        _need_classes("label-flip", data)
        own, y = _rows(data, "train", attackers), data.y.clone()
        y[own] = data.classes - 1 - y[own]
        return replace(data, y=y)


@dataclass(frozen=True)
class Backdoor(Attack):
    """Train the model to predict a class for images with a trigger (Bagdasaryan et al., AISTATS 2020).

    A share of an attacker's training images gets a square of the brightest value at the lower right and the class
    `target`. The split "triggered" has the square on every client's test images of other classes; the share predicted
    as `target` is the attack's success rate.
    """

    summary = "trains on images with a trigger, which then cause a class"

    target: int = 0
    """The predicted class."""
    share: float = 0.5
    """Share of an attacker's training samples with the trigger."""
    size: int = 3
    """Side of the square in pixels."""
    factor: float = 1.0
    """Factor of its update; participants / attackers replaces a mean."""

    def __post_init__(self) -> None:
        require(self.target >= 0, "--param target", self.target, "the number of a class, 0 or more")
        require(0 < self.share <= 1, "--param share", self.share, "above 0 and at most 1")
        require(self.size >= 1, "--param size", self.size, "at least 1")
        require(math.isfinite(self.factor), "--param factor", self.factor, "a finite number")

    def updates(self, seen: Seen) -> Stack:
        """See Attack."""
        return {name: self.factor * value for name, value in seen.own.items()}

    def poisoned(self, data: FederatedData, attackers: Tensor, draws: Tensor) -> FederatedData:
        """See Attack."""
        _need_classes("backdoor", data)
        require(self.target < data.classes, "--param target", self.target, f"below {data.classes}, the classes")
        images = data.x
        if not isinstance(images, Tensor) or images.ndim != 4:
            raise InputError("--attack backdoor: needs images, which these data are not; take label-flip")
        require(self.size <= min(images.shape[2:]), "--param size", self.size, f"at most {min(images.shape[2:])}")
        train = data.rows("train")
        chosen = torch.cat([self._chosen(train[j], key) for j, key in zip(attackers.tolist(), draws, strict=True)])
        x, y = images.clone(), data.y.clone()
        x[chosen], y[chosen] = self.stamped(images, chosen), self.target
        test = [rows[data.y[rows].cpu().numpy() != self.target] for rows in data.rows("test")]
        bright = self.stamped(images, torch.from_numpy(np.concatenate(test)))
        ends = np.cumsum([len(rows) for rows in test])
        places = np.split(np.arange(ends[-1]) + len(y), ends[:-1])
        splits = {**data.splits, TRIGGERED: Split.of(places, data.device)}
        called = torch.full((len(bright),), self.target, dtype=y.dtype, device=y.device)
        return replace(data, x=torch.cat([x, bright]), y=torch.cat([y, called]), splits=splits)

    def stamped(self, images: Tensor, rows: Tensor) -> Tensor:
        """The images (n, C, H, W) at `rows` (k,) with the trigger."""
        own = images[rows.to(images.device)].clone()
        own[:, :, -self.size :, -self.size :] = images.max()
        return own

    def _chosen(self, rows: np.ndarray, key: Tensor) -> Tensor:
        """An attacker's rows that get the trigger: at least one."""
        count = max(1, round(self.share * len(rows)))
        return torch.from_numpy(rows)[keys.sample(key, len(rows), count)]


def _need_classes(name: str, data: FederatedData) -> None:
    if not (data.labelled and data.classes):
        raise InputError(f"--attack {name}: needs one class label per sample, which these data do not have")


def _rows(data: FederatedData, split: str, clients: Tensor) -> Tensor:
    """The rows of some clients in a split."""
    every = data.rows(split)
    return torch.from_numpy(np.concatenate([every[client] for client in clients.tolist()])).to(data.device)
