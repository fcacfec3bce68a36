"""The server's side of a run over Flower: what nodes are sent, and what their replies do to the server's state.

A round is one exchange of messages. Each node gets what its clients' personalised models are made of and, for the
clients of the cohort, what they train with; it replies with scores and uploads. Nodes that are new are asked in the
same exchange what they hold, and take part from the next round on.
"""

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from feddwa.algorithms import Algorithm, Info, Problem
from feddwa.engine import Cohort, State, keys
from feddwa.engine.rows import to_devices
from feddwa.federation import Round
from feddwa.flower import codec
from feddwa.flower.exchange import exchange
from feddwa.flower.node import digest
from feddwa.flower.participation import Participation
from feddwa.flower.registry import Registry
from feddwa.flower.replies import Assignment, Replies, collect_replies
from feddwa.flower.settings import FlowerConfig
from feddwa.flower.validation import Expected, ShapeProbe
from feddwa.ledger import Costs, message_bytes
from feddwa.sides import ServerSide, begin

OFFLINE = "offline"


@dataclass(frozen=True)
class Outcome:
    """A round as it went."""

    round: Round  # its cohort are those whose update counts
    answered: list[int]  # clients whose models were tested
    wire: Mapping[str, int]  # bytes of all arrays that were sent "down" and "up"


@dataclass
class Coordinator:
    """A federation at rest between two rounds."""

    grid: Grid
    config: FlowerConfig
    simulated: bool = False  # nodes have no keys of their own: their partition tells who they are
    registry: Registry = field(default_factory=Registry)
    state: State = field(default_factory=dict)  # empty until the start, unless it is restored
    round: int = 0  # finished rounds
    federation: str = field(default_factory=lambda: secrets.token_hex(8))
    trained: dict[str, int] = field(default_factory=dict)  # member -> the last round it has contributed to

    def start(self) -> None:
        """Wait for nodes, and make the first state unless one was restored."""
        self.algorithm = self.config.make_algorithm()
        self.nodes = Participation(self.grid, self.registry, self.algorithm.discloses_labels, self.simulated)
        self._wait_for_nodes()
        assert self.registry.task is not None
        shape, classes, _ = self.registry.task
        self.probe = ShapeProbe.of(self.config, shape, classes)
        self.server_side, self.initial = (
            ServerSide(self.algorithm, self.probe.client_side.batchnorm),
            digest(self.probe.initial),
        )
        fresh, self.memory = self._fresh()
        self.state = self.algorithm.grow(to_devices(self.state, fresh), fresh) if self.state else fresh

    def keep(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything that the coming rounds depend on, besides the number of the round: tensors and facts."""
        facts = {"federation": self.federation, "trained": self.trained, **self.registry.facts()}
        return {"server": self.state, "registry": {"all": self.registry.tree()}}, facts

    def restore(self, round: int, tree: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Go back to where that was kept, before the start."""
        self.round, self.state, self.registry = round, tree["server"], Registry.restore(tree["registry"]["all"], facts)
        self.federation, self.trained = facts["federation"], dict(facts["trained"])

    def step(self) -> Outcome:
        """One round."""
        self._wait_for_nodes()
        online = self.registry.rows_of(self.nodes.online.values())
        count = max(1, int(self.config.participation * len(online) + 1e-9))
        drawn = keys.sample(keys.key(self.config.seed, "cohort", self.round + 1), len(online), count)
        outcome = self._exchange(torch.tensor(online)[drawn].tolist(), last=False)
        self.round += 1
        return outcome

    def finish(self) -> Outcome:
        """Everybody's models as they are in the end; nodes keep them."""
        self._wait_for_nodes()
        return self._exchange([], last=True)

    def _wait_for_nodes(self) -> None:
        self.nodes.wait_for(self.config.min_nodes, self.config.wait, self.config.deadline)

    def _fresh(self) -> tuple[State, State]:
        """The server's state and the clients' memory before the first round."""
        registry, probe = self.registry, self.probe
        problem = Problem(
            probe.initial, registry.clients, registry.train, registry.labels, probe.head, self.config.seed
        )
        return begin(self.algorithm, self.server_side.batchnorm, problem, probe.buffers)

    def _exchange(self, trains: list[int], last: bool) -> Outcome:
        costs, device = Costs(), self.probe.client_side.engine.data.device
        assignments = {node: self._assignment(member, set(trains), last) for node, member in self.nodes.online.items()}
        assignments = {node: assignment for node, assignment in assignments.items() if assignment.tested}
        with costs.phase("server", device):
            contents = {node: self._content(assignment, last) for node, assignment in assignments.items()}
        with costs.phase("exchange", device):
            sent = {node: (MessageType.TRAIN, content) for node, content in contents.items()}
            asked = {node: (MessageType.QUERY, RecordDict()) for node in self.nodes.unregistered}
            answers = exchange(self.grid, sent | asked, str(self.round + 1), self.config.deadline)
        received = [answer for node, answer in answers.items() if node in sent and isinstance(answer, RecordDict)]
        wire = {"down": sum(map(codec.size, contents.values())), "up": sum(map(codec.size, received))}
        away = set(self.registry.rows_of(self.registry.rows)) - set(self.registry.rows_of(self.nodes.online.values()))
        missing = dict.fromkeys(away, OFFLINE)
        with costs.phase("server", device):
            download = self.server_side.download(self.state, self._cohort(trains[:1])) if trains else {}
            signature = self.probe.upload_signature(download, self.memory, self.round + 1) if trains else {}
            expected = Expected(signature, 1e6 * self.config.max_megabytes, device)
            replies = collect_replies(assignments, answers, expected, self.registry.clients, missing)
            self._warn_of_lost_memory(replies.remembered)
            costs.bytes_down = message_bytes(download)
            result = self._advance(replies, costs, last)
            self._admit({node: answers[node] for node in asked})
        result = dataclasses.replace(result, missing=dict(sorted(missing.items())))
        return Outcome(result, replies.answered, wire)

    def _assignment(self, member: str, cohort: set[int], last: bool) -> Assignment:
        rows = self.registry.rows[member]
        trains = [row for row in rows if row in cohort]
        return Assignment(member, rows, rows if self.config.evaluate_absent or last else trains, trains)

    def _content(self, assignment: Assignment, last: bool) -> RecordDict:
        """The message to a node."""
        task = ConfigRecord(
            {
                "federation": self.federation,
                "initial": self.initial,
                "round": self.round + 1,
                "clients": self.registry.clients,
                "rows": assignment.rows,
                "tested": assignment.tested,
                "trains": assignment.trains,
                "last": last,
            }
        )
        content: dict[str, Any] = {
            "task": task,
            **codec.pack("deliver", self.server_side.deliver(self.state, self._cohort(assignment.tested))),
        }
        if assignment.trains and type(self.algorithm).deliver is not Algorithm.deliver:  # else it is the same message
            content |= codec.pack("download", self.server_side.download(self.state, self._cohort(assignment.trains)))
        return RecordDict(content)

    def _cohort(self, rows: list[int]) -> Cohort:
        ids = torch.tensor(rows, dtype=torch.int64)
        return Cohort(ids, self.registry.train[ids], self.round + 1)

    def _advance(self, replies: Replies, costs: Costs, last: bool) -> Round:
        """The server's side of the algorithm, if there is enough for it to work on."""
        info: Info = {}
        if not last and len(replies.ids) < self.config.min_clients:
            log(WARNING, "feddwa: round %d: %d updates, too few; models stay", self.round + 1, len(replies.ids))
            replies = replies.without_updates()
        cohort = self._cohort(replies.ids.tolist())
        costs.bytes_up = message_bytes(replies.upload)
        costs.flops = replies.flops
        if len(cohort):
            self.state, info = self.server_side.advance(self.state, cohort, replies.upload)
            counted = set(replies.ids.tolist())
            self.trained |= {member: cohort.round for member, rows in self.registry.rows.items() if counted & set(rows)}
        return Round(cohort, replies.before, replies.after, info, costs)

    def _warn_of_lost_memory(self, remembered: Mapping[str, int]) -> None:
        """Say whose memory is older than what it has contributed: its disk was lost, it starts afresh."""
        for member, round in remembered.items():
            if any(self.memory.values()) and round < self.trained.get(member, 0):
                log(WARNING, "feddwa: clients %s have lost their memory", self.registry.rows[member])

    def _admit(self, answers: Mapping[int, RecordDict | str]) -> None:
        """Let new nodes join: the state grows where they bring new rows."""
        before = self.registry.clients
        self.nodes.admit(answers)
        if self.registry.clients > before:
            fresh, self.memory = self._fresh()
            self.state = self.algorithm.grow(self.state, fresh)
