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
from feddwa.flower.members import Description, Members

LOOK = 0.5  # seconds between two looks


@dataclass
class Attendance:
    """The nodes of a federation as they come and go."""

    grid: Grid
    members: Members
    labels: bool  # whether members disclose their label counts
    simulated: bool  # nodes have no keys of their own: their partition tells who they are
    here: dict[int, str] = field(default_factory=dict)  # nodes online -> members
    strangers: list[int] = field(default_factory=list)  # nodes online that have to be asked
    known: dict[int, str] = field(default_factory=dict)  # nodes -> members, whether they are online or not
    refused: dict[int, str] = field(default_factory=dict)  # nodes that cannot be members -> why

    def gather(self, least: int, wait: float, deadline: float) -> None:
        """Wait until enough members are there; those who are new are asked only as long as there are too few."""
        ends = time.monotonic() + wait
        while True:
            self._look()
            if len(self.here) < least and self.strangers:
                asked = {node: (MessageType.QUERY, RecordDict()) for node in self.strangers}
                self.admit(exchange(self.grid, asked, "0", min(deadline, wait)))
                self._look()
            if len(self.here) >= least:
                return
            if time.monotonic() > ends:
                why = "".join(f"; refused: {reason}" for reason in sorted(set(self.refused.values())))
                raise RuntimeError(f"{len(self.here)} of {least} nodes are there after {wait:g} s{why}")
            time.sleep(LOOK)

    def admit(self, answers: Mapping[int, RecordDict | str]) -> None:
        """Make members of nodes by what they said they hold."""
        described = {}
        for node, answer in answers.items():
            try:
                if isinstance(answer, str):
                    raise Malformed(answer)
                described[node] = Description.of(answer, self.labels)
            except Malformed as error:
                self._refuse(node, error)
        keys = {node: self.known.get(node) or f"partition-{each.first}" for node, each in described.items()}
        for node, key in sorted(keys.items(), key=lambda pair: (described[pair[0]].first, pair[1])):
            try:
                if key not in self.members.rows:
                    self.members.admit(key, described[node])
                    log(INFO, "feddwa: node %d joins with clients %s", node, self.members.rows[key])
                self.known[node] = key
            except Malformed as error:
                self._refuse(node, error)

    def _look(self) -> None:
        """See who is online."""
        online = list(self.grid.get_nodes())
        if not self.simulated:
            self.known |= {info.node_id: info.public_key.hex() for info in online}
        nodes = [info.node_id for info in online]
        self.here = {node: self.known[node] for node in sorted(nodes) if self.known.get(node) in self.members.rows}
        self.strangers = sorted(set(nodes) - self.here.keys() - self.refused.keys())

    def _refuse(self, node: int, error: Malformed) -> None:
        log(WARNING, "feddwa: node %d cannot take part: %s", node, error)
        self.refused[node] = str(error)
