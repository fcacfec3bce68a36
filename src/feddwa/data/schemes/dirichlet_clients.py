"""Every client draws its own mixture of classes: the users of Hsu et al. (2019), pfl-research and TFF."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Reads, Scheme, hand_out, rows_of
from feddwa.errors import require

DRAWS = 20  # draws per requested row before a client's mixture is smoothed
EVEN_OUT = 0.02  # added to the probability of every class by smoothing


@dataclass(frozen=True)
class DirichletClients(Scheme):
    """Clients of equal size, each with class proportions drawn from Dir(alpha); test rows in the same proportions."""

    reads: ClassVar[Reads] = "labels"

    alpha: float = 0.1
    "concentration: small = a client has few classes"

    def __post_init__(self) -> None:
        require(0 < self.alpha < float("inf"), "--param alpha", self.alpha, "a finite number above 0")

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless every client gets a training and a test row."""
        fewest = min(dataset.train_count, len(dataset.y) - dataset.train_count)
        require(clients <= fewest, "--clients", clients, f"at most {fewest}, the rows of the smaller of both parts")

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Rows left over by an even division are unused."""
        mixtures = rng.dirichlet(np.full(int(labels.max()) + 1, self.alpha), clients)  # (N, C)
        train, test = (self._owners(part, mixtures, rng) for part in (labels[:train_count], labels[train_count:]))
        return Partition(rows_of(train, clients), rows_of(test, clients, train_count))

    def _owners(self, labels: np.ndarray, mixtures: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The owner of every row of a part; clients draw one after another."""
        stock = np.bincount(labels, minlength=mixtures.shape[1])
        counts = np.zeros(mixtures.shape, dtype=np.int64)
        for client, mixture in enumerate(mixtures):
            counts[client] = draw_rows(mixture, stock, len(labels) // len(mixtures), rng)
            stock = stock - counts[client]
        return hand_out(labels, counts, rng)


def draw_rows(mixture: np.ndarray, stock: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """(C,) rows of each class, `wanted` in all, drawn one by one from `mixture` while a class has any in `stock`.

    A class that has run out is drawn again. To guarantee an end, the mixture is smoothed after every DRAWS * wanted
    draws: any class with rows left is then drawn soon.
    """
    taken = np.zeros(len(stock), dtype=np.int64)
    while (missing := wanted - taken.sum()) > 0:
        drawn = rng.choice(len(stock), DRAWS * wanted, p=mixture)
        hits = drawn[_repeats(drawn) < (stock - taken)[drawn]][:missing]
        taken += np.bincount(hits, minlength=len(stock))
        mixture = (mixture + EVEN_OUT) / (1 + EVEN_OUT * len(stock))
    return taken


def _repeats(drawn: np.ndarray) -> np.ndarray:
    """(n,) number of earlier draws of each draw's class."""
    order = np.argsort(drawn, kind="stable")
    places = np.empty(len(drawn), dtype=np.int64)
    places[order] = np.arange(len(drawn)) - np.searchsorted(drawn[order], drawn[order])
    return places
