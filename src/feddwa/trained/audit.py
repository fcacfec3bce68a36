"""Measure how much a run's models and messages reveal about its clients' training data: a measurement, not a bound.

loss          the smaller a sample's loss by the client's model, the likelier it is a training sample
reference     the same for the loss minus its mean by other clients' models, which have not seen the sample:
              samples that are easy for all models reveal nothing (after LiRA, Carlini et al., 2022, without
              shadow models)
label counts  the correlation of the update of the head's bias in round 1 with the client's numbers of labels
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddwa.engine import Engine
from feddwa.engine.sequential import losses_one_by_one
from feddwa.federation import Federation
from feddwa.trained.store import TrainedModels

REFERENCES = 8  # number of other clients' models, the next ones by number
LOW = 0.01  # false positive rate at which the true positive rate is reported


@dataclass(frozen=True)
class Attack:
    """The success of one attack."""

    areas: list[float]  # area under the ROC curve, per client: 0.5 is guessing
    at_low: float  # true positive rate at LOW, over all clients' samples together

    @property
    def mean(self) -> float:
        """The mean area over clients."""
        return float(np.mean(self.areas))


def area(members: np.ndarray, others: np.ndarray) -> float:
    """The probability that a member's score exceeds another's, counting ties as half."""
    order = np.sort(others)
    below, to = (np.searchsorted(order, members, side) for side in ("left", "right"))
    return float((below + to).mean() / (2 * len(others)))


def rate_at(members: np.ndarray, others: np.ndarray, low: float) -> float:
    """The share of members above a threshold that at most `low` of the others are above."""
    allowed = int(low * len(others))
    return float((members > np.sort(others)[::-1][allowed]).mean())


def membership(trained: TrainedModels, engine: Engine) -> Mapping[str, Attack]:
    """Both attacks on the personalised models of all clients: training samples against test samples."""
    clients = engine.data.clients
    modules = [trained.as_trained(number).to(engine.dtype) for number in range(clients)]
    scores: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"loss": [], "reference": []}
    for client in range(clients):
        others = [modules[(client + step) % clients] for step in range(1, min(REFERENCES, clients - 1) + 1)]
        asked = [modules[client]], others
        own, easy = ([_losses(engine, client, split, each) for split in ("train", "test")] for each in asked)
        scores["loss"].append((-own[0], -own[1]))
        scores["reference"].append((easy[0] - own[0], easy[1] - own[1]))
    found = {}
    for name, pairs in scores.items():
        members, outside = (np.concatenate([pair[place] for pair in pairs]) for place in (0, 1))
        found[name] = Attack([area(*pair) for pair in pairs], rate_at(members, outside, LOW))
    return found


@torch.no_grad()
def _losses(engine: Engine, client: int, split: str, modules: list[torch.nn.Module]) -> np.ndarray:
    """(n,) the loss of every sample of a client, mean over models."""
    own = engine.data.splits[split]
    batch = engine.data.batch(own.index[client, : own.sizes[client]], engine.dtype)
    each = [losses_one_by_one(engine.loss, module(batch.x), batch.y) for module in modules]
    return torch.stack(each).double().mean(0).numpy()


def label_correlation(federation: Federation) -> float | None:
    """The mean over clients of the correlation between the first update of the head's bias and the label counts.

    None if the server does not see a client's bias, or targets are not classes. federation: before round 1.
    """
    side, everybody = federation.server_side, federation.all_clients()
    counts = federation.engine.data.label_counts()
    download = side.download(federation.server, everybody)
    upload, _, _ = federation.client_side.train(everybody.ids, 1, download, federation.memory)
    sent = side.mechanism.sent(everybody, download, upload, federation.algorithm.updates).get("model", {})
    name = next((each for each in reversed(list(sent)) if each.rpartition(".")[2] == "bias"), None)
    if name is None or counts is None or sent[name].shape[1:] != counts.shape[1:] or side.mechanism.central:
        return None
    began: Tensor = download["model"][name] if "model" in download else torch.zeros_like(sent[name])
    pairs = zip((sent[name] - began).double().cpu().numpy(), counts.double().numpy(), strict=True)
    return float(np.nanmean([np.corrcoef(update, count)[0, 1] for update, count in pairs if count.std() > 0]))
