"""The interface of attacks: from the information of a round's attackers to the updates that they send.

An update is the difference between the sent and the received model, v_k - w_k, so one definition serves global models,
with the same w for all clients, and personalised ones. Numbers that do not come from the server (a cosine, a loss)
count as updates from 0. Each part of an upload is attacked separately.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddwa.data.federated import FederatedData
from feddwa.engine import Stack


@dataclass(frozen=True)
class Seen:
    """An attacker's view of one part of a round's uploads; all numbers are real."""

    start: Stack  # (a, *shape) received by every attacker; zeros for values that do not come from the server
    own: Stack  # (a, *shape) updates that attackers would send if honest
    honest: Stack  # (k, *shape) updates of honest clients; the attackers' if none takes part
    honest_start: Stack  # (k, *shape) received by these clients
    victim: Tensor  # (1,) the target's row in `honest`; (0,) if it is absent
    clients: int  # m, participants of the round, including attackers
    keys: Tensor  # (a,) a key for every attacker


@dataclass(frozen=True)
class Attack:
    """Base of all attacks: a frozen dataclass whose fields are the parameters. By default an attacker is honest."""

    summary: ClassVar[str]  # one line for `feddwa list attacks`
    targets: ClassVar[bool] = False  # whether it targets one honest client

    def poisoned(self, data: FederatedData, attackers: Tensor, draws: Tensor) -> FederatedData:
        """The run's data after the attack; attackers: (a,) their numbers; draws: (a,) a key for each."""
        return data

    def updates(self, seen: Seen) -> Stack:
        """The updates (a, *shape) that the attackers of a round send."""
        return seen.own
