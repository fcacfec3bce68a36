"""The interface of attacks: from what the attackers of a round see to the updates that they send.

An update is what a client sends less what it was sent, v_k - w_k: attacks are written for these, so that one form
serves global models, where everybody starts from the same w, and personalised ones. Numbers that do not come from the
server (a cosine, a loss) count as updates from 0. Each part of an upload is attacked by itself.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddwa.data.federated import FederatedData
from feddwa.engine import Stack


@dataclass(frozen=True)
class Seen:
    """One part of the uploads of a round, as far as anybody who attacks may see it; all numbers are real."""

    start: Stack  # (a, *shape) what every attacker was sent; zeros for what does not come from the server
    own: Stack  # (a, *shape) the updates that attackers would send if they were honest
    honest: Stack  # (k, *shape) the updates of honest clients; where none takes part those of the attackers
    honest_start: Stack  # (k, *shape) what these were sent
    victim: Tensor  # (1,) which row of `honest` the target's is; (0,) where it takes no part
    clients: int  # m, participants of the round, attackers among them
    keys: Tensor  # (a,) a key for every attacker


@dataclass(frozen=True)
class Attack:
    """Base of all attacks: a frozen dataclass whose fields are the parameters. By default an attacker is honest."""

    summary: ClassVar[str]  # one line for `feddwa list attacks`
    targets: ClassVar[bool] = False  # whether it is aimed at one honest client

    def poisoned(self, data: FederatedData, attackers: Tensor, draws: Tensor) -> FederatedData:
        """The data with which a run is made; attackers: (a,) their numbers; draws: (a,) a key for each."""
        return data

    def updates(self, seen: Seen) -> Stack:
        """The updates (a, *shape) that the attackers of a round send."""
        return seen.own
