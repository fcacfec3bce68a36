"""Which nodes take part: those that are online, the members that they are, and nodes that ask to join."""

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

POLL = 0.5  # seconds between two queries for online nodes


@dataclass
class Participation:
    """The nodes of a federation; they may join, leave and return at any time."""

    grid: Grid
    registry: Registry
    labels: bool  # whether nodes disclose their label counts
    validated: bool  # whether nodes tell how many samples they hold out
    simulated: bool  # nodes have no keys, as in Flower's simulation: their partition identifies them
    online: dict[int, str] = field(default_factory=dict)  # node id -> member, of registered nodes that are online
    unregistered: list[int] = field(default_factory=list)  # ids of online nodes whose description is not known yet
    member_of: dict[int, str] = field(default_factory=dict)  # node id -> member, online or not
    refused: dict[int, str] = field(default_factory=dict)  # node id -> why it cannot join

    def wait_for(self, least: int, wait: float, deadline: float) -> None:
        """Wait until `least` registered nodes are online; RuntimeError after `wait` seconds.

        Unregistered nodes are queried here only while too few are online; otherwise the next round queries them.
        `deadline`: seconds to wait for their answers.
        """
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
        """Register the nodes that described themselves.

        answers: node id -> reply to a query, or why there is none. A node whose answer is invalid, or whose rows are
        taken, is refused. Nodes are registered in the order of their rows, so the order of arrival does not matter.
        """
        described = {}
        for node, answer in answers.items():
            try:
                if isinstance(answer, str):
                    raise Malformed(answer)
                described[node] = NodeDescription.of(answer, self.labels, self.validated)
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
        """Update `online` and `unregistered` from the grid."""
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
