"""The replies of a round, combined: uploads and scores in the order of rows, whatever the order of arrival."""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING

import torch
from flwr.supercore import log
from torch import Tensor

from feddwa.engine import Message, Scores, map_scores
from feddwa.engine.rows import concat, take_parts
from feddwa.flower import validation
from feddwa.flower.codec import Malformed
from feddwa.flower.inbox import Answer
from feddwa.flower.validation import Reply
from feddwa.updates import DIVERGED, INVALID


@dataclass(frozen=True)
class Assignment:
    """What a node is asked to do in a round."""

    member: str  # as in the registry
    rows: list[int]  # all clients of the node
    tested: list[int]  # those whose personalised models are evaluated
    trains: list[int]  # those that train
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))  # which a reply must repeat

    @property
    def asked(self) -> list[int]:
        """Those that do either."""
        return sorted({*self.tested, *self.trains})


@dataclass(frozen=True)
class Replies:
    """The valid replies of a round."""

    answered: list[int]  # clients that were evaluated, in ascending order
    before: Scores  # (N,) of the personalised models; NaN for clients that were not evaluated
    ids: Tensor  # (m,) clients whose update is used, in ascending order
    after: Scores  # (m,) after local training
    flops: Tensor  # (m,)
    upload: Message  # (m, ...)
    remembered: Mapping[str, int]  # member -> round after which its memory was saved

    def only(self, kept: Tensor) -> "Replies":
        """The same replies with the updates of fewer clients; kept: (m,) bool."""
        if bool(kept.all()):
            return self
        after, places = map_scores(lambda values: values[kept], self.after), kept.nonzero().flatten()
        upload = take_parts(self.upload, places) if len(places) else {}
        return dataclasses.replace(self, ids=self.ids[kept], after=after, flops=self.flops[kept], upload=upload)


def read_reply(answer: Answer, assignment: Assignment, expected: validation.Expected) -> Reply | str:
    """A node's answer, validated; the reason where it cannot be used."""
    if isinstance(answer, str):
        return answer
    try:
        return validation.validate_reply(
            answer, expected, len(assignment.tested), len(assignment.trains), assignment.nonce
        )
    except Malformed as error:
        return f"{INVALID}: {error}"


def collect_replies(
    assignments: Mapping[int, Assignment],
    found: Mapping[int, Reply | str],
    names: Sequence[str],
    clients: int,
    missing: dict[int, str],
) -> Replies:
    """Combine the replies of a round.

    assignments: node id -> what was asked of it; found: node id -> its reply, or why there is none; names: of scores;
    clients: N. Adds client -> reason to `missing` for every client whose reply or update is not used.
    """
    before = {name: torch.full((clients,), torch.nan, dtype=torch.float64) for name in names}
    answered: list[int] = []
    ids: list[int] = []
    numbers = [torch.zeros(len(names) + 1, 0, dtype=torch.float64)]  # scores after training, FLOPs
    uploads, remembered = [], {}
    for node, assignment in sorted(assignments.items(), key=lambda pair: pair[1].rows):  # so that few rows need sorting
        reply = found[node]
        if isinstance(reply, str):
            log(WARNING, "feddwa: clients %s: %s", assignment.rows, reply)
            missing |= dict.fromkeys(assignment.asked, reply)
            continue
        for name, own in reply.before.named().items():
            before[name][assignment.tested] = own
        answered += assignment.tested
        remembered[assignment.member] = reply.remembered
        for place in (~reply.finite).nonzero().flatten().tolist():
            log(WARNING, "feddwa: client %d: %s", assignment.trains[place], DIVERGED)
            missing[assignment.trains[place]] = DIVERGED
        good = reply.finite.nonzero().flatten()
        ids += [assignment.trains[place] for place in good.tolist()]
        numbers.append(torch.stack([*reply.after.named().values(), reply.flops])[:, good])
        uploads += [take_parts(reply.upload, good)] * bool(len(good))
    sorted_ids, order = torch.tensor(ids, dtype=torch.int64).sort()
    *scores, flops = torch.cat(numbers, 1)[:, order]
    after = Scores.of(dict(zip(names, scores, strict=True)))
    upload = take_parts(concat(uploads), order) if uploads else {}
    return Replies(sorted(answered), Scores.of(before), sorted_ids, after, flops, upload, remembered)
