"""From the nodes' replies to the uploads of a round: in the order of rows, whatever the order in which they came."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING

import torch
from flwr.app import RecordDict
from flwr.supercore import log
from torch import Tensor

from feddwa.engine import Scores, State
from feddwa.engine.rows import concat, take_state
from feddwa.flower import trust
from feddwa.flower.codec import Malformed
from feddwa.updates import DIVERGED, INVALID


@dataclass(frozen=True)
class Part:
    """A node's part in a round."""

    member: str
    rows: list[int]  # its clients
    tested: list[int]  # those of them whose personalised models are evaluated
    trains: list[int]  # those of them that train


@dataclass(frozen=True)
class Harvest:
    """What counts of a round's replies."""

    answered: list[int]  # clients that were tested, in ascending order
    before: Scores  # (N,) of them; NaN elsewhere
    ids: Tensor  # (m,) clients whose update counts
    after: Scores  # (m,)
    flops: Tensor  # (m,)
    upload: State  # (m, ...)
    remembered: Mapping[str, int]  # member -> the round that its memory comes from

    def without_updates(self) -> "Harvest":
        """As if nobody had trained."""
        nobody = self.flops[:0]
        return dataclasses.replace(self, ids=self.ids[:0], after=Scores(nobody, nobody), flops=nobody, upload={})


def harvest(
    parts: Mapping[int, Part],
    answers: Mapping[int, RecordDict | str],
    expected: trust.Expected,
    clients: int,
    missing: dict[int, str],
) -> Harvest:
    """Read all replies; `missing` learns whose are not there or do not count, and why."""
    before = Scores(*(torch.full((clients,), torch.nan, dtype=torch.float64) for _ in range(2)))
    answered: list[int] = []
    ids: list[int] = []
    numbers = [torch.zeros(3, 0, dtype=torch.float64)]  # accuracy and loss after training, FLOPs
    uploads, remembered = [], {}
    for node, part in parts.items():
        answer = answers[node]
        try:
            if isinstance(answer, str):
                raise Malformed(answer)
            reply = trust.read(answer, expected, len(part.tested), len(part.trains))
        except Malformed as error:
            reason = answer if isinstance(answer, str) else f"{INVALID}: {error}"
            log(WARNING, "feddwa: clients %s: %s", part.rows, reason)
            missing |= dict.fromkeys(part.tested, reason)
            continue
        for all_scores, own in zip(before, reply.before, strict=True):
            all_scores[part.tested] = own
        answered += part.tested
        remembered[part.member] = reply.remembered
        for place in (~reply.finite).nonzero().flatten().tolist():
            log(WARNING, "feddwa: client %d: %s", part.trains[place], DIVERGED)
            missing[part.trains[place]] = DIVERGED
        good = reply.finite.nonzero().flatten()
        ids += [part.trains[place] for place in good.tolist()]
        numbers.append(torch.stack([*reply.after, reply.flops])[:, good])
        uploads += [take_state(reply.upload, good)] * bool(len(good))
    sorted_ids, order = torch.tensor(ids, dtype=torch.int64).sort()
    accuracy, loss, flops = torch.cat(numbers, 1)[:, order]
    upload = take_state(concat(uploads), order) if uploads else {}
    return Harvest(sorted(answered), before, sorted_ids, Scores(accuracy, loss), flops, upload, remembered)
