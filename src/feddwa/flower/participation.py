"""Which nodes take part: those that are online, the members that they are, and nodes that ask to join."""

import time
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from feddwa.errors import InputError
from feddwa.flower import codec
from feddwa.flower.codec import Malformed
from feddwa.flower.exchange import Exchange
from feddwa.flower.inbox import Answer
from feddwa.flower.registry import NodeDescription, Registry, Terms

POLL = 0.5  # seconds between two queries for online nodes
AGAIN = 5.0  # seconds from a query that has failed to the next one
DESCRIPTION = 10e6  # bytes of a node's description


@dataclass
class Participation:
    """The nodes of a federation; they may join, leave and return at any time.

    Nodes that are not registered are queried beside the rounds: no round waits for their answers.
    """

    grid: Grid
    registry: Registry
    terms: Terms | None  # None: the run does not say what its samples are, so nobody can be admitted
    simulated: bool  # nodes have no keys, as in Flower's simulation: their partition identifies them
    deadline: float  # seconds until a query without an answer is sent again
    online: dict[int, str] = field(default_factory=dict)  # node id -> member, of registered nodes that are online
    unregistered: list[int] = field(default_factory=list)  # ids of online nodes whose description is not known yet
    member_of: dict[int, str] = field(default_factory=dict)  # node id -> member, online or not
    refused: dict[int, str] = field(default_factory=dict)  # node id -> why it cannot join, since it was last asked
    asked: dict[int, float] = field(default_factory=dict)  # node id -> when it was last asked
    queries: list[Exchange] = field(default_factory=list)  # those whose answers are not all there

    def wait_for(self, least: int, wait: float) -> None:
        """Wait until `least` registered nodes are online; RuntimeError after `wait` seconds.

        Nodes are admitted here only while too few are online; otherwise `admit` does so between two rounds.
        """
        ends = time.monotonic() + wait
        self._refresh()
        self._query()
        while len(self.online) < least:
            self.admit()
            self._refresh()
            if len(self.online) < least:
                if time.monotonic() > ends:
                    why = "".join(f"; refused: {reason}" for reason in sorted(set(self.refused.values())))
                    raise RuntimeError(f"{len(self.online)} of {least} nodes are there after {wait:g} s{why}")
                time.sleep(POLL)
                self._query()

    def admit(self) -> None:
        """Register the nodes whose descriptions have arrived.

        A node whose answer is invalid, or whose rows are taken, is refused, and asked again later. Nodes are registered
        in the order of their rows, so the order of arrival does not matter.
        """
        described: dict[int, NodeDescription] = {}

        def read(node: int, answer: Answer) -> None:
            try:
                if isinstance(answer, str):
                    raise Malformed(answer)
                described[node] = self._description(answer)
            except Malformed as error:
                self._refuse(node, error)

        for query in self.queries:
            query.receive(read)
        self.queries = [query for query in self.queries if query.waiting and not query.over]
        keys = {node: self.member_of.get(node) or f"partition-{each.first}" for node, each in described.items()}
        for node, key in sorted(keys.items(), key=lambda pair: (described[pair[0]].first, pair[1])):
            try:
                if key not in self.registry.rows:
                    self.registry.admit(key, described[node], self.terms.clients if self.terms else None)
                    log(INFO, "feddwa: node %d joins with clients %s", node, self.registry.rows[key])
                self.member_of[node] = key
                self.refused.pop(node, None)
            except Malformed as error:
                self._refuse(node, error)

    def _description(self, content: RecordDict) -> NodeDescription:
        if self.terms is None:
            text = codec.setting(codec.settings(content, "facts"), "samples", str)
            raise InputError(f"run config samples: must be given where nodes have their own data; a node says '{text}'")
        return NodeDescription.of(content, self.terms)

    def _refresh(self) -> None:
        """Update `online` and `unregistered` from the grid."""
        found = list(self.grid.get_nodes())
        if not self.simulated:
            self.member_of |= {info.node_id: info.public_key.hex() for info in found}
        nodes = [info.node_id for info in found]
        self.online = {
            node: self.member_of[node] for node in sorted(nodes) if self.member_of.get(node) in self.registry.rows
        }
        self.unregistered = sorted(set(nodes) - self.online.keys())

    def _query(self) -> None:
        """Ask the nodes that are not registered to describe themselves, unless they were asked a moment ago."""
        now, pending = time.monotonic(), {node for query in self.queries for node in query.waiting.values()}
        due = [node for node in self.unregistered if now >= self.asked.get(node, -AGAIN) + AGAIN]
        queried = [(node, MessageType.QUERY, RecordDict()) for node in due if node not in pending]
        if queried:
            self.asked |= {node: now for node, _, _ in queried}
            self.queries.append(Exchange.begin(self.grid, queried, "0", self.deadline, DESCRIPTION))

    def _refuse(self, node: int, error: Malformed) -> None:
        log(WARNING, "feddwa: node %d cannot take part: %s", node, error)
        self.refused[node] = str(error)
