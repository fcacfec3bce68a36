"""The server's half of a run over Flower: what nodes are sent, and what their replies do to the server's state.

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
from feddwa.engine.network import frozen
from feddwa.engine.rows import digest, to_devices
from feddwa.federation import Round
from feddwa.flower import codec
from feddwa.flower.attendance import Attendance
from feddwa.flower.exchange import exchange
from feddwa.flower.members import Members
from feddwa.flower.replies import Harvest, Part, harvest
from feddwa.flower.settings import FlowerConfig
from feddwa.flower.trust import Blank, Expected
from feddwa.halves import ServerHalf, begin
from feddwa.ledger import Costs, message_bytes
from feddwa.updates import OFFLINE


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
    members: Members = field(default_factory=Members)
    state: State = field(default_factory=dict)  # empty until the start, unless it is restored
    round: int = 0  # finished rounds
    federation: str = field(default_factory=lambda: secrets.token_hex(8))
    trained: dict[str, int] = field(default_factory=dict)  # member -> the last round it has contributed to

    def start(self) -> None:
        """Wait for nodes, and make the first state unless one was restored."""
        self.algorithm = self.config.make_algorithm()
        self.attendance = Attendance(self.grid, self.members, self.algorithm.discloses_labels, self.simulated)
        self._gather()
        assert self.members.task is not None
        shape, classes, _ = self.members.task
        self.blank = Blank.of(self.config, shape, classes)
        self.half = ServerHalf(self.algorithm, self.blank.half.border)
        self.initial = digest({**self.blank.initial, **frozen(self.blank.half.engine.module)})
        fresh, self.memory = self._fresh()
        self.state = self.algorithm.grow(to_devices(self.state, fresh), fresh) if self.state else fresh

    def keep(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything that the coming rounds depend on, besides the number of the round: tensors and facts."""
        facts = {"federation": self.federation, "trained": self.trained, **self.members.facts()}
        return {"server": self.state, "members": {"all": self.members.tree()}}, facts

    def restore(self, round: int, tree: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Go back to where that was kept, before the start."""
        self.round, self.state, self.members = round, tree["server"], Members.restore(tree["members"]["all"], facts)
        self.federation, self.trained = facts["federation"], dict(facts["trained"])

    def step(self) -> Outcome:
        """One round."""
        self._gather()
        here = self.members.held(self.attendance.here.values())
        count = max(1, int(self.config.participation * len(here) + 1e-9))
        drawn = keys.sample(keys.key(self.config.seed, "cohort", self.round + 1), len(here), count)
        outcome = self._exchange(torch.tensor(here)[drawn].tolist(), last=False)
        self.round += 1
        return outcome

    def finish(self) -> Outcome:
        """Everybody's models as they are in the end; nodes keep them."""
        self._gather()
        return self._exchange([], last=True)

    def _gather(self) -> None:
        self.attendance.gather(self.config.min_nodes, self.config.wait, self.config.deadline)

    def _fresh(self) -> tuple[State, State]:
        """The server's state and the clients' memory before the first round."""
        members, blank = self.members, self.blank
        problem = Problem(blank.initial, members.clients, members.train, members.labels, blank.head, self.config.seed)
        return begin(self.algorithm, self.half.border, problem, blank.buffers)

    def _exchange(self, trains: list[int], last: bool) -> Outcome:
        costs, device = Costs(), self.blank.half.engine.data.device
        parts = {node: self._part(member, set(trains), last) for node, member in self.attendance.here.items()}
        parts = {node: part for node, part in parts.items() if part.tested}
        with costs.phase("server", device):
            contents = {node: self._content(part, last) for node, part in parts.items()}
        with costs.phase("exchange", device):
            sent = {node: (MessageType.TRAIN, content) for node, content in contents.items()}
            asked = {node: (MessageType.QUERY, RecordDict()) for node in self.attendance.strangers}
            answers = exchange(self.grid, sent | asked, str(self.round + 1), self.config.deadline)
        received = [answer for node, answer in answers.items() if node in sent and isinstance(answer, RecordDict)]
        wire = {"down": sum(map(codec.size, contents.values())), "up": sum(map(codec.size, received))}
        away = set(self.members.held(self.members.rows)) - set(self.members.held(self.attendance.here.values()))
        missing = dict.fromkeys(away, OFFLINE)
        with costs.phase("server", device):
            download = self.half.download(self.state, self._cohort(trains[:1])) if trains else {}
            form = self.blank.form(download, self.memory, self.round + 1) if trains else {}
            expected = Expected(form, 1e6 * self.config.max_megabytes, device)
            found = harvest(parts, answers, expected, self.members.clients, missing)
            self._notice(found.remembered)
            costs.bytes_down = message_bytes(download)
            result = self._advance(found, costs, last)
            self._welcome({node: answers[node] for node in asked})
        result = dataclasses.replace(result, missing=dict(sorted(missing.items())))
        return Outcome(result, found.answered, wire)

    def _part(self, member: str, cohort: set[int], last: bool) -> Part:
        rows = self.members.rows[member]
        trains = [row for row in rows if row in cohort]
        return Part(member, rows, rows if self.config.evaluate_absent or last else trains, trains)

    def _content(self, part: Part, last: bool) -> RecordDict:
        """The message to a node."""
        task = ConfigRecord(
            {
                "federation": self.federation,
                "initial": self.initial,
                "round": self.round + 1,
                "clients": self.members.clients,
                "rows": part.rows,
                "tested": part.tested,
                "trains": part.trains,
                "last": last,
            }
        )
        content: dict[str, Any] = {
            "task": task,
            **codec.pack("deliver", self.half.deliver(self.state, self._cohort(part.tested))),
        }
        if part.trains and type(self.algorithm).deliver is not Algorithm.deliver:  # else it is the same message
            content |= codec.pack("download", self.half.download(self.state, self._cohort(part.trains)))
        return RecordDict(content)

    def _cohort(self, rows: list[int]) -> Cohort:
        ids = torch.tensor(rows, dtype=torch.int64)
        return Cohort(ids, self.members.train[ids], self.round + 1)

    def _advance(self, found: Harvest, costs: Costs, last: bool) -> Round:
        """The server's half of the algorithm, if there is enough for it to work on."""
        info: Info = {}
        if not last and len(found.ids) < self.config.min_clients:
            log(WARNING, "feddwa: round %d: %d updates, too few; models stay", self.round + 1, len(found.ids))
            found = found.without_updates()
        cohort = self._cohort(found.ids.tolist())
        costs.bytes_up = message_bytes(found.upload)
        costs.flops = found.flops
        if len(cohort):
            with costs.serving():
                self.state, info = self.half.advance(self.state, cohort, found.upload)
            counted = set(found.ids.tolist())
            self.trained |= {member: cohort.round for member, rows in self.members.rows.items() if counted & set(rows)}
        return Round(cohort, found.before, found.after, info, costs)

    def _notice(self, remembered: Mapping[str, int]) -> None:
        """Say whose memory is older than what it has contributed: its disk was lost, it starts afresh."""
        for member, round in remembered.items():
            if any(self.memory.values()) and round < self.trained.get(member, 0):
                log(WARNING, "feddwa: clients %s have lost their memory", self.members.rows[member])

    def _welcome(self, answers: Mapping[int, RecordDict | str]) -> None:
        """Let new nodes join: the state grows where they bring new rows."""
        before = self.members.clients
        self.attendance.admit(answers)
        if self.members.clients > before:
            fresh, self.memory = self._fresh()
            self.state = self.algorithm.grow(self.state, fresh)
