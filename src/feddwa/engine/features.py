"""Features, the inputs of the last linear layer: their width, and their sums over classes."""

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
    """Sums over the samples of each class, of m clients; 0 for classes that a client does not have."""

    features: Tensor  # (m, C, F) float64
    squares: Tensor  # (m, C) float64, sums of ||z||^2
    counts: Tensor  # (m, C) float64, number of samples

    def means(self) -> Tensor:
        """(m, C, F): the mean feature of each class; 0 for classes that a client does not have."""
        return self.features / self.counts.clamp(min=1).unsqueeze(2)

    def moments(self) -> Stack:
        """ "mean" (m, C, F): h, the mean of e_y z^T over a client's samples; "variance" (m,): that of h.

        The variance is the mean of ||e_y z^T - h||^2, divided by the number of samples.
        """
        n = self.counts.sum(1)
        mean = self.features / n.reshape(-1, 1, 1)
        spread = self.squares.sum(1) / n - mean.square().sum((1, 2))
        return {"mean": mean, "variance": spread.clamp(min=0) / n}


def class_sums(trainer: Trainer, model: Stack, memory: Memory, split: str = "train") -> ClassSums:
    """Sums of each client's features by class, from its model on its samples: one pass in evaluation mode.

    Needs class labels and a network with nonzero `Problem.features`.
    """
    found = trainer.sums(batch_class_sums, model, memory, split)
    return ClassSums(found["features"], found["squares"], found["counts"])


def wide(value: Tensor) -> torch.dtype:
    """The type in which the statistics of a network of this type are sent: the same, but at least float32."""
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
    """F; 0 unless the outputs are those of the network's last linear layer, with one vector (F,) per sample."""
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
