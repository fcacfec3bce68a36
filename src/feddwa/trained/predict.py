"""Predictions of trained models for new samples, as a table."""

import csv
import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddwa.errors import InputError
from feddwa.trained.card import ModelCard
from feddwa.trained.export import predict
from feddwa.trained.samples import Samples
from feddwa.trained.store import TrainedModels


@dataclass(frozen=True)
class Predictions:
    """Scores of samples, each by the model of one client."""

    card: ModelCard
    samples: Samples
    clients: tuple[str, ...]  # (n,) the clients whose models were used
    scores: Tensor  # (n, outputs)

    @property
    def accuracy(self) -> float | None:
        """Percent of correct predictions; None without labels or classes."""
        if self.samples.y is None or not self.card.classes:
            return None
        right = self.scores.argmax(1).numpy() == self.samples.y
        return 100 * float(np.mean(right & ~self.scores.isnan().any(1).numpy()))

    @property
    def error(self) -> float | None:
        """Root mean squared error, if targets are numbers."""
        if self.samples.y is None or self.card.classes:
            return None
        apart = self.scores.double().reshape(len(self.scores), -1).numpy() - self.samples.y.reshape(
            len(self.scores), -1
        )
        return float(np.sqrt(np.mean(apart**2)))

    def to_csv(self) -> str:
        """name, client, the class with its probability or the value, and the label if there is one."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        values = 1 if self.scores.ndim == 1 else self.scores.shape[1]
        answers = (
            ["class", "probability"]
            if self.card.classes
            else ["value"]
            if values == 1
            else [f"value{n}" for n in range(values)]
        )
        writer.writerow(["sample", "client", *answers, *(["label"] if self._labels else [])])
        for place, (name, client) in enumerate(zip(self.samples.names, self.clients, strict=True)):
            writer.writerow([name, client, *self._answer(place), *(self._labels[place : place + 1])])
        return text.getvalue()

    def _answer(self, place: int) -> list[str]:
        scores = self.scores[place].double()
        if not self.card.classes:
            return [f"{value:.7g}" for value in scores.flatten().tolist()]
        best = int(scores.argmax())
        return [self.card.class_name(best), f"{float(scores.softmax(0)[best]):.6f}"]

    @property
    def _labels(self) -> list[str]:
        if self.samples.y is None:
            return []
        return [self.card.class_name(int(y)) if self.card.classes else str(y) for y in self.samples.y.tolist()]


def predictions(trained: TrainedModels, samples: Samples, client: str | None = None) -> Predictions:
    """Predictions by a client's model; without `client`, by the model of each sample's own client in the file."""
    card = trained.card
    if client is None and samples.clients is None and len(card.clients) == 1:
        client = card.clients[0]
    if client is None and samples.clients is None:
        raise InputError("--client: must be given, because the data do not tell whose they are; there are "
                         f"{len(card.clients)} clients, the first is {card.clients[0]}")  # fmt: skip
    owners = (
        samples.clients
        if client is None and samples.clients
        else (card.clients[card.client(client or "")],) * len(samples.x)
    )
    for row, owner in enumerate(owners):
        if owner not in card.clients:
            raise InputError(
                f"{samples.names[row]}: client {owner!r} was not in the run; --client NAME takes one that was"
            )
    scores: dict[int, Tensor] = {}
    for owner in dict.fromkeys(owners):
        rows = [row for row, name in enumerate(owners) if name == owner]
        scores |= dict(zip(rows, predict(trained, owner, samples.x[rows]), strict=True))
        if card.classes and scores[rows[0]].ndim > 1:
            shape = tuple(scores[rows[0]].shape)
            raise InputError(
                f"the models give scores {shape} for a sample, a token at every position, of which there is no table; "
                "feddwa.trained.export.predict gives them as a tensor"
            )
    return Predictions(card, samples, owners, torch.stack([scores[row] for row in range(len(owners))]))
