"""Practical setting 2: every class is spread over the clients by a Dirichlet draw."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from feddwa.data.dataset import Dataset
from feddwa.data.schemes.base import Partition, Reads, Scheme, hand_out, split_pooled
from feddwa.errors import InputError, require

MAX_TRIES = 20_000  # CIFAR-10, 100 clients, alpha 0.07 succeeds about once in a thousand; this many take two seconds
BATCH = 256  # tries drawn at once


@dataclass(frozen=True)
class Dirichlet(Scheme):
    """Each class goes to the clients in shares drawn from Dir(alpha); training and test rows are pooled, then split."""

    reads: ClassVar[Reads] = "labels"

    alpha: float = 0.07
    "concentration: small = few clients share a class (the paper's text 0.07, the authors' script 0.1)"
    min_samples: int = 20
    "draws that leave a client with fewer rows are rejected"
    balance: bool = True
    "a client that already has total / clients rows gets nothing from later classes"
    test_share: float = 0.2
    "share of each client's rows that is held out for testing"

    def __post_init__(self) -> None:
        require(0 < self.alpha < float("inf"), "--param alpha", self.alpha, "a finite number above 0")
        require(self.min_samples >= 2, "--param min_samples", self.min_samples, "at least 2 (train and test)")
        require(0 < self.test_share < 1, "--param test_share", self.test_share, "between 0 and 1")

    def check(self, dataset: Dataset, clients: int) -> None:
        """Raise unless there are `min_samples` rows for every client."""
        rows = len(dataset.y)
        valid = f"at most {rows // clients}: {rows} rows, {clients} clients"
        require(self.min_samples * clients <= rows, "--param min_samples", self.min_samples, valid)

    def __call__(self, labels: np.ndarray, train_count: int, clients: int, rng: np.random.Generator) -> Partition:
        """Draw counts until every client has enough, then draw the rows once."""
        sizes = np.bincount(labels)
        counts = self._first_valid(sizes, clients, rng)
        return split_pooled(hand_out(labels, counts, rng), clients, self.test_share, rng)

    def _first_valid(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """(N, C) counts of the first draw in which every client has at least `min_samples` rows."""
        tries, batch = 0, 1
        while tries < MAX_TRIES:
            counts = draw_counts(sizes, clients, self.alpha, self.balance, batch, rng)
            enough = counts.sum(axis=2).min(axis=1) >= self.min_samples
            if enough.any():
                return np.asarray(counts[enough.argmax()])
            tries, batch = tries + batch, min(2 * batch, BATCH)
        raise InputError(
            f"--param alpha: got {self.alpha}; in {tries} draws some client always had fewer than "
            f"{self.min_samples} rows ({clients} clients); {self._suggestion(sizes, clients, rng)}"
        )

    def _suggestion(self, sizes: np.ndarray, clients: int, rng: np.random.Generator) -> str:
        """The first alpha on a coarse ladder above the given one that works reliably."""
        for alpha in self.alpha * 1.5 ** np.arange(1, 25):
            counts = draw_counts(sizes, clients, alpha, self.balance, BATCH // 4, rng)
            if np.mean(counts.sum(axis=2).min(axis=1) >= self.min_samples) > 0.05:
                return f"alpha >= {float(f'{alpha:.2g}')} is feasible, or lower min_samples or take fewer clients"
        return "lower min_samples or take fewer clients"


def draw_counts(
    sizes: np.ndarray, clients: int, alpha: float, balance: bool, tries: int, rng: np.random.Generator
) -> np.ndarray:
    """(tries, N, C) independent draws of how many of the sizes[c] rows of class c each client gets.

    Dirichlet shares are gamma draws divided by their sum. They are drawn as logarithms, Gamma(a) = Gamma(a + 1) *
    U^(1/a), because at small alpha the gammas themselves underflow to an all-zero row. Under the balance rule one
    client is always still below total / N while rows are left, so the shares never all vanish.
    """
    counts = np.zeros((tries, clients, len(sizes)), dtype=np.int64)
    held = np.zeros((tries, clients), dtype=np.int64)
    for c, size in enumerate(sizes):
        log_share = np.log(rng.standard_gamma(alpha + 1, held.shape)) - rng.standard_exponential(held.shape) / alpha
        if balance:
            log_share[held >= sizes.sum() / clients] = -np.inf
        share = np.exp(log_share - log_share.max(axis=1, keepdims=True))
        ends = np.cumsum(share, axis=1)
        cuts = (ends / ends[:, -1:] * size).astype(np.int64)
        counts[:, :, c] = np.diff(cuts, axis=1, prepend=0)
        held += counts[:, :, c]
    return counts
