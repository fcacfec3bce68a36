"""The samples of each batch: every client's orders of its own samples, drawn from keys."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.engine import keys
from feddwa.engine.engine import Engine, Epoch
from feddwa.engine.private import MULTIPLE, NOISE, PADDING
from feddwa.errors import InputError

# An epoch's order is keyed by purpose and split. Published runs keyed the second half as "validation".
STREAMS = {"second_half": "validation"}


@dataclass(frozen=True)
class Batches:
    """The batches of m clients in a round, from a split of their data; `purpose` keys their order."""

    engine: Engine
    ids: Tensor  # (m,) int64, on the CPU
    round: int

    def sizes(self, split: str) -> Tensor:
        """(m,) int64: samples of each client."""
        return self.engine.data.splits[split].sizes[self.ids]

    def whole(self, split: str, width: int) -> Tensor:
        """(m,) samples of each client that fill batches of `width`, without a last, short one."""
        sizes = self.sizes(split)
        for client, size in zip(self.ids.tolist(), sizes.tolist(), strict=True):
            if size < width:
                raise InputError(
                    f"--drop-last: client {self.engine.data.client_name(client)} has {size} samples to train on, less "
                    f"than a batch of {width}; take a smaller --batch-size"
                )
        return sizes - sizes % width

    def order(self, split: str, purpose: str, epoch: int) -> tuple[Tensor, Tensor]:
        """The epoch's sample order (m, longest) as rows of the dataset, and each client's noise key (m,)."""
        own, device = self.engine.data.splits[split], self.engine.data.device

        def draw() -> tuple[Tensor, Tensor]:
            ids, stream = self.ids.to(device), f"{purpose}/{STREAMS.get(split, split)}"
            key = keys.key(self.engine.seed, stream, self.round, ids, epoch)
            order = keys.permutations(key, own.sizes[self.ids])
            return own.index[ids].gather(1, order), keys.fold(key, 1)

        return self.engine.shared(self.round, (split, purpose, epoch, *self.ids.tolist()), draw)

    def epochs(self, split: str, purpose: str, sizes: Tensor, count: int) -> list[Epoch]:
        """`count` epochs, each of the first sizes (m,) samples of a new order."""
        return [Epoch(*self.order(split, purpose, epoch), sizes) for epoch in range(count)]

    def single(self, split: str, purpose: str, sizes: Tensor, width: int, steps: int) -> list[Epoch]:
        """`steps` batches of every client, each as an epoch: all batches of an order, then those of a new one."""
        per_order, device = -(-sizes // width), self.engine.data.device  # (m,) batches
        count = -(-steps // int(per_order.min())) if steps else 0
        drawn = [self.order(split, purpose, epoch) for epoch in range(count)]
        padding = int(per_order.max()) * width
        orders = torch.stack([F.pad(order, (0, padding - order.shape[1])) for order, _ in drawn]) if drawn else None
        keys_of = torch.stack([noise for _, noise in drawn]) if drawn else None
        found, rows = list[Epoch](), torch.arange(len(sizes), device=device)
        for step in range(steps):
            turn, place = step // per_order, step % per_order  # (m,) the order, and the batch within it
            left = (sizes - place * width).clamp(max=width)
            at = (turn.to(device), rows)
            columns = (place * width).to(device).unsqueeze(1) + torch.arange(width, device=device)
            assert orders is not None
            assert keys_of is not None
            noise = keys.fold(keys_of[at], place.to(device))
            found.append(Epoch(orders[at].gather(1, columns), noise, left))
        return found

    def poisson(self, split: str, purpose: str, steps: Tensor, width: int) -> tuple[list[Epoch], int, Tensor]:
        """Poisson batches: each contains every sample independently with probability min(1, width / n).

        steps: (m,) of each client. Returns one padded epoch of all batches, the width of a padded batch, and each
        client's expected number of samples per batch (m,).
        """
        own, device, longest = self.engine.data.splits[split], self.engine.data.device, int(steps.max())
        ids, sizes = self.ids.to(device), self.sizes(split)
        expected = sizes.clamp(max=width)
        share = (expected.double() / sizes).to(device).unsqueeze(1)
        key, index = keys.key(self.engine.seed, f"{purpose}/poisson", self.round, ids), own.index[ids]
        there = torch.arange(index.shape[1], device=device) < sizes.to(device).unsqueeze(1)
        batches = list[Tensor]()
        for step in range(longest):
            chosen = (keys.uniform64(keys.fold(key, step), index.shape[1]) < share) & there
            most = int(chosen.sum(1).max())
            first = (~chosen).byte().argsort(dim=1, stable=True)[:, :most]  # those in the batch come first
            batches.append(torch.where(chosen.gather(1, first), index.gather(1, first), PADDING))
        padded = -(-max((batch.shape[1] for batch in batches), default=1) // MULTIPLE) * MULTIPLE
        whole = [F.pad(batch, (0, padded - batch.shape[1]), value=PADDING) for batch in batches]
        order = torch.cat(whole, dim=1) if whole else index[:, :0]
        return [Epoch(order, keys.fold(key, NOISE), steps * padded)], padded, expected
