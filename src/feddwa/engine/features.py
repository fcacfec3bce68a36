"""Features, which are what the last linear layer makes the outputs of: their width, and their sums over classes."""

from typing import NamedTuple

import torch
from torch import Tensor

from feddwa.data.federated import Batch
from feddwa.engine import keys
from feddwa.engine.engine import Engine
from feddwa.engine.network import Net, evaluation_mode, head_name, outputs_and_features
from feddwa.engine.trainer import Trainer
from feddwa.engine.types import Memory, Model, Stack
from feddwa.errors import InputError


class ClassSums(NamedTuple):
    """Sums over the samples of each class, of m clients; 0 where a client has none of a class."""

    features: Tensor  # (m, C, F) float64
    squares: Tensor  # (m, C) float64, of ||z||^2
    counts: Tensor  # (m, C) float64, of samples

    def means(self) -> Tensor:
        """(m, C, F): the mean feature of each class; 0 of a class that a client does not have."""
        return self.features / self.counts.clamp(min=1).unsqueeze(2)

    def moments(self) -> Stack:
        """Part "mean" (m, C, F): h, of e_y z^T over the samples of a client; "variance" (m,): of that mean.

        The variance is the mean of ||e_y z^T - h||^2, divided by the number of samples.
        """
        n = self.counts.sum(1)
        mean = self.features / n.reshape(-1, 1, 1)
        spread = self.squares.sum(1) / n - mean.square().sum((1, 2))
        return {"mean": mean, "variance": spread.clamp(min=0) / n}


def class_sums(trainer: Trainer, model: Stack, memory: Memory, split: str = "train") -> ClassSums:
    """Sums of the features that each client's model gives its samples, by class: one pass in evaluation mode.

    The network must be one of which `Problem.features` is not 0, on class labels.
    """
    found = trainer.sums(batch_class_sums, model, memory, split)
    return ClassSums(found["features"], found["squares"], found["counts"])


def wide(value: Tensor) -> torch.dtype:
    """The type in which the statistics of a network of this type are sent: its own, at least float32."""
    return torch.promote_types(value.dtype, torch.float32)


def batch_class_sums(net: Net, params: Model, batch: Batch) -> Model:
    """The statistic of one batch: features (C, F), squares (C,) and counts (C,)."""
    outputs, features = outputs_and_features(net, params, batch.x)
    features = features.double()  # (B, F)
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    member = (batch.y == classes.unsqueeze(1)).double()  # (C, B)
    squares = member @ features.square().sum(1)
    return Model({"features": member @ features, "squares": squares, "counts": member.sum(1)})


def feature_width(engine: Engine) -> int:
    """F; 0 unless the outputs are those of the network's last linear layer, of one vector (F,) for every sample."""
    if head_name(engine.module) is None:
        return 0
    parameters, buffers = engine.initial()
    one = engine.data.batch(engine.data.splits["train"].index[0, :1], engine.dtype)
    net = Net(engine.module, engine.loss, buffers, keys.key(0, "unused"))
    try:
        with torch.no_grad(), evaluation_mode(engine.module):
            features = outputs_and_features(net, parameters, one.x)[1]
    except InputError:
        return 0
    return features.shape[1] if features.ndim == 2 else 0
