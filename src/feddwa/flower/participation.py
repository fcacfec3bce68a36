"""Who is there: nodes that are online, which members they are, and those who want to join."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from feddwa.flower.codec import Malformed
from feddwa.flower.exchange import exchange
from feddwa.flower.registry import NodeDescription, Registry

POLL = 0.5  # seconds between two looks


@dataclass
class Participation:
    """The nodes of a federation as they come and go."""

    grid: Grid
    registry: Registry
    labels: bool  # whether members disclose their label counts
    simulated: bool  # nodes have no keys of their own: their partition tells who they are
    online: dict[int, str] = field(default_factory=dict)  # nodes online -> members
    unregistered: list[int] = field(default_factory=list)  # nodes online that have to be asked
    member_of: dict[int, str] = field(default_factory=dict)  # nodes -> members, whether they are online or not
    refused: dict[int, str] = field(default_factory=dict)  # nodes that cannot be members -> why

    def wait_for(self, least: int, wait: float, deadline: float) -> None:
        """Wait until enough members are there; those who are new are asked only as long as there are too few."""
        ends = time.monotonic() + wait
        while True:
            self._refresh()
            if len(self.online) < least and self.unregistered:
                asked = {node: (MessageType.QUERY, RecordDict()) for node in self.unregistered}
                self.admit(exchange(self.grid, asked, "0", min(deadline, wait)))
                self._refresh()
            if len(self.online) >= least:
                return
            if time.monotonic() > ends:
                why = "".join(f"; refused: {reason}" for reason in sorted(set(self.refused.values())))
                raise RuntimeError(f"{len(self.online)} of {least} nodes are there after {wait:g} s{why}")
            time.sleep(POLL)

    def admit(self, answers: Mapping[int, RecordDict | str]) -> None:
        """Make members of nodes by what they said they hold."""
        described = {}
        for node, answer in answers.items():
            try:
                if isinstance(answer, str):
                    raise Malformed(answer)
                described[node] = NodeDescription.of(answer, self.labels)
            except Malformed as error:
                self._refuse(node, error)
        keys = {node: self.member_of.get(node) or f"partition-{each.first}" for node, each in described.items()}
        for node, key in sorted(keys.items(), key=lambda pair: (described[pair[0]].first, pair[1])):
            try:
                if key not in self.registry.rows:
                    self.registry.admit(key, described[node])
                    log(INFO, "feddwa: node %d joins with clients %s", node, self.registry.rows[key])
                self.member_of[node] = key
            except Malformed as error:
                self._refuse(node, error)

    def _refresh(self) -> None:
        """See who is online."""
        found = list(self.grid.get_nodes())
        if not self.simulated:
            self.member_of |= {info.node_id: info.public_key.hex() for info in found}
        nodes = [info.node_id for info in found]
        self.online = {
            node: self.member_of[node] for node in sorted(nodes) if self.member_of.get(node) in self.registry.rows
        }
        self.unregistered = sorted(set(nodes) - self.online.keys() - self.refused.keys())

    def _refuse(self, node: int, error: Malformed) -> None:
        log(WARNING, "feddwa: node %d cannot take part: %s", node, error)
        self.refused[node] = str(error)
