"""The client side of a federation whose rows are divided among ranks; transparent to the algorithm.

Rank 0 has the server and every client's memory. All work of the client side on a stack of rows is divided: rank 0 sends
the other ranks their inputs, works on its own share, and inserts the replies into the rows. Draws are keyed by client,
so the division does not change results.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from feddwa.engine import Memory, Message, Parts, Scores, Stack
from feddwa.engine.rows import concat, take_parts
from feddwa.errors import InputError
from feddwa.ranks import Ranks
from feddwa.sides import ClientSide

Rows: TypeAlias = Mapping[str, Parts]  # data to or from a rank: message or memory -> (m, ...)
FAILED, BAD_INPUT = "failed", "bad input"  # facts of a reply


def _train(side: ClientSide, ids: Tensor, round: int, given: Rows) -> Rows:
    upload, memory, flops = ClientSide.train(side, ids, round, given["download"], given["memory"])
    return {"upload": upload, "memory": memory, "costs": {"all": {"flops": flops}}}


def _personal(side: ClientSide, ids: Tensor, round: int, given: Rows) -> Rows:
    model, buffers = ClientSide.personal(side, ids, round, given["message"], given["memory"])
    return {"models": {"model": model, "buffers": buffers}}


def _personal_scores(side: ClientSide, ids: Tensor, round: int, given: Rows) -> Rows:
    scores = ClientSide.personal_scores(side, ids, round, given["message"], given["memory"])
    return {"scores": {"all": scores.named()}}


def _scores_after(side: ClientSide, ids: Tensor, round: int, given: Rows) -> Rows:
    scores = ClientSide.scores_after(side, ids, round, **given["models"])
    return {"scores": {"all": scores.named()}}


WORK: dict[str, Callable[[ClientSide, Tensor, int, Rows], Rows]] = {
    "train": _train, "personal": _personal, "personal scores": _personal_scores, "scores after": _scores_after,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ShardedClientSide(ClientSide):
    """The client side on rank 0."""

    ranks: Ranks

    def train(self, ids: Tensor, round: int, download: Message, memory: Memory) -> tuple[Message, Memory, Tensor]:
        """See ClientSide."""
        found = self._divided("train", ids, round, {"download": download, "memory": memory})
        return found["upload"], found["memory"], found["costs"]["all"]["flops"]

    def personal(self, ids: Tensor, round: int, message: Message, memory: Memory) -> tuple[Stack, Stack]:
        """See ClientSide."""
        found = self._divided("personal", ids, round, {"message": message, "memory": memory})["models"]
        return found["model"], found["buffers"]

    def personal_scores(self, ids: Tensor, round: int, message: Message, memory: Memory) -> Scores:
        """See ClientSide."""
        found = self._divided("personal scores", ids, round, {"message": message, "memory": memory})
        return Scores.of(found["scores"]["all"])

    def scores_after(self, ids: Tensor, round: int, model: Stack, buffers: Stack) -> Scores:
        """See ClientSide."""
        found = self._divided("scores after", ids, round, {"models": {"model": model, "buffers": buffers}})
        return Scores.of(found["scores"]["all"])

    def _divided(self, work: str, ids: Tensor, round: int, given: Rows) -> Rows:
        """The result of all ranks together for rows (m, ...)."""
        places = [own for own in placement(self._steps(ids), self.ranks.count) if len(own)]

        def share(own: Tensor) -> Rows:
            return {name: take_parts(parts, own) for name, parts in given.items()}

        for rank, own in enumerate(places[1:], start=1):
            facts = {"work": work, "round": round, "clients": ids[own].tolist()}
            self.ranks.send(rank, facts, share(own))
        found = [WORK[work](self, ids[places[0]], round, share(places[0]))]
        found += [answer(self.ranks, rank) for rank in range(1, len(places))]
        back = torch.argsort(torch.cat(places))
        return {name: take_parts(concat([own[name] for own in found]), back) for name in found[0]}

    def _steps(self, ids: Tensor) -> Tensor:
        """(m,) approximate number of steps of each client in an epoch."""
        sizes, settings = self.engine.data.splits["train"].sizes[ids], self.engine.settings
        return -(-sizes // settings.batch_size) if settings.local_steps is None else torch.ones_like(sizes)


def placement(steps: Tensor, ranks: int) -> list[Tensor]:
    """The rows of each rank, in ascending order; steps: (m,) of each row.

    In descending order of steps, each row goes to the rank with the least work so far.
    """
    loads, rows = [0] * ranks, [list[int]() for _ in range(ranks)]
    for row in torch.argsort(steps, descending=True, stable=True).tolist():
        rank = loads.index(min(loads))
        loads[rank] += max(1, int(steps[row]))
        rows[rank].append(row)
    return [torch.tensor(sorted(own), dtype=torch.int64) for own in rows]


def answer(ranks: Ranks, rank: int) -> Rows:
    """The reply of a rank; raises its error."""
    facts, found = ranks.receive(rank)
    if FAILED in facts:
        raise (InputError if facts[BAD_INPUT] else RuntimeError)(f"rank {rank}: {facts[FAILED]}")
    return found
