"""The defences of a federation, applied in sequence."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.algorithms import Algorithm
from feddwa.defences.base import Defence, Weighted
from feddwa.engine import Message, Stack, keys
from feddwa.engine.rows import concat, difference, take
from feddwa.errors import InputError
from feddwa.mixing import mixing_by, weighted_mean
from feddwa.updates import origin

ROUNDED = 1e-9  # weights that are less negative count as 0


@dataclass(frozen=True)
class Defences:
    """Defences in the order of application; none by default."""

    chain: tuple[Defence, ...] = ()

    @property
    def replaces_means(self) -> bool:
        """Whether a defence replaces means."""
        return any(type(each).models is not Defence.models for each in self.chain)

    def filtered(self, upload: Message, download: Message, differences: Collection[str]) -> Message:
        """The uploads (m, ...) that the server uses.

        All updates of a part with models are processed together; other numbers, such as losses, stay unchanged.
        download: (m, ...) the received messages; differences: parts that are differences of models.
        """
        return {
            part: self._filtered(rows, origin(part, rows, download, differences), part in differences)
            for part, rows in upload.items()
        }

    def _filtered(self, rows: Stack, origins: Stack, is_difference: bool) -> Stack:
        if not is_difference and (not rows or rows.keys() != origins.keys()):
            return rows
        start = {name: torch.zeros_like(value) for name, value in rows.items()} if is_difference else origins
        sent = new = difference(rows, start)
        for defence in self.chain:
            new = defence.updates(new)
        return {  # unchanged updates stay bit for bit the same
            name: torch.where(new[name] == sent[name], value, start[name] + new[name]) for name, value in rows.items()
        }

    @contextmanager
    def at_work(self, algorithm: Algorithm, upload: Message, key: Tensor) -> Iterator[None]:
        """Make a server's means robust in the enclosed processing of an upload; key: of the round."""
        taken: list[int] = []

        def mean(weights: Tensor, stack: Stack, personal: bool) -> Stack:
            taken.append(len(weights))
            return self.mean(weights, stack, personal, key)

        if not self.replaces_means:
            yield
            return
        with mixing_by(mean):
            yield
        if any(upload.values()) and not taken:
            name, advice = type(algorithm).__name__, "clip, which acts on updates"
            raise InputError(f"--defence: replaces a server's means, and {name} has none; take {advice}")

    def mean(self, weights: Tensor, stack: Stack, personal: bool, key: Tensor) -> Stack:
        """The robust replacement of weighted means: (k, *shape) from weights (k, m) and models (m, *shape).

        personal: whether row i is for the client whose model is stack_i; key: for the defences' draws.
        """
        if (weights < -ROUNDED).any():
            raise InputError("--defence: replaces means, and this method's weights are negative; take clip")
        weights = weights.double().cpu()
        whole = Weighted(weights[0], stack)  # its distances serve all rows
        receivers = [take(stack, place) if personal else None for place in torch.arange(len(weights)).split(1)]
        draws = keys.fold(key, torch.arange(len(weights)))
        rows = [self._row(*each, whole) for each in zip(weights, receivers, draws, strict=True)]
        return concat([{"mean": each} for each in rows])["mean"]

    def _row(self, weights: Tensor, receiver: Stack | None, key: Tensor, whole: Weighted) -> Stack:
        """One row: (1, *shape) from weights (m,). If their sum is not 1, it scales the result."""
        places = (weights > ROUNDED).nonzero().flatten()
        if not len(places):
            return weighted_mean(weights[None], whole.models)
        own = weights[places]
        given = Weighted(own / own.sum(), take(whole.models, places), (whole, places), receiver, key)
        for defence in self.chain:
            given = defence.models(given)
        return weighted_mean(weights.sum() * given.weights[None], given.models)


UNDEFENDED = Defences()
