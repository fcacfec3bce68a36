"""The server side of a run over Flower: which messages nodes receive, and how their replies change the server state.

A round is one exchange of messages. A node receives the messages from which its clients make their personalised models
and, for the clients of the cohort, those from which they train. It replies with scores and uploads. Nodes that are not
registered yet are queried meanwhile; no round waits for them, and they take part from the round after their answer on.
"""

import dataclasses
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from feddwa.algorithms import Algorithm, Info
from feddwa.build import fitted
from feddwa.defences.chain import Defences
from feddwa.engine import Cohort, Memory, Message, ServerState, keys
from feddwa.engine.evaluate import score_names
from feddwa.engine.network import frozen
from feddwa.engine.rows import digest, to_devices
from feddwa.federation import Round, to_evaluate
from feddwa.flower import codec
from feddwa.flower.exchange import exchange
from feddwa.flower.inbox import Answer
from feddwa.flower.participation import Participation
from feddwa.flower.registry import Registry, Terms
from feddwa.flower.replies import Assignment, Replies, collect_replies, read_reply
from feddwa.flower.samples import samples_of
from feddwa.flower.settings import OWN, FlowerConfig
from feddwa.flower.validation import Expected, ShapeProbe
from feddwa.ledger import Costs, message_bytes
from feddwa.sides import ServerSide, begin, problem_of
from feddwa.updates import OFFLINE, OVERSIZED


@dataclass(frozen=True)
class Outcome:
    """The result of one round."""

    round: Round  # its cohort: the clients whose update was used
    wire: Mapping[str, int]  # bytes of all arrays sent "down" and "up", headers included


@dataclass
class Coordinator:
    """A federation between two rounds. `start` first, then `step` once per round, then `finish`."""

    grid: Grid
    config: FlowerConfig
    simulated: bool = False  # nodes have no keys, as in Flower's simulation: their partition identifies them
    registry: Registry = field(default_factory=Registry)
    state: ServerState = field(default_factory=dict)  # server state; empty before `start`, unless restored
    round: int = 0  # finished rounds
    federation: str = field(default_factory=lambda: secrets.token_hex(8))  # name of the nodes' memory folders
    trained: dict[str, int] = field(default_factory=dict)  # member -> last round in which an update of it was used

    def start(self) -> None:
        """Wait for nodes, then make the initial server state, or grow the restored one by rows that are new."""
        self.algorithm = self.config.make_algorithm()
        terms = terms_of(self.config)
        self.nodes = Participation(self.grid, self.registry, terms, self.simulated, self.config.deadline)
        self._wait_for_nodes()
        assert terms is not None  # or nobody were there
        self.config = fitted(self.config, terms.samples.inputs)
        self.probe = ShapeProbe.of(self.config, terms.samples)
        defences, policy = Defences(self.config.make_defences()), self.probe.client_side.batchnorm
        self.server_side = ServerSide(self.algorithm, policy, defences, self.config.seed)
        self.initial = digest({**self.probe.initial, **frozen(self.probe.client_side.engine.module)})
        fresh, self.memory = self._fresh()
        self.state = self.algorithm.grow(to_devices(self.state, fresh), fresh) if self.state else fresh

    def keep(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(tensors, facts) for a checkpoint: all that later rounds depend on, except the number of the round."""
        facts = {"federation": self.federation, "trained": self.trained, **self.registry.facts()}
        return {"server": self.state, "registry": {"all": self.registry.tree()}}, facts

    def restore(self, round: int, tree: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Continue after `round` from what `keep` returned then; call before `start`."""
        self.round, self.state, self.registry = round, tree["server"], Registry.restore(tree["registry"]["all"], facts)
        self.federation, self.trained = facts["federation"], dict(facts["trained"])

    def step(self) -> Outcome:
        """Run one round: sample the cohort among the clients of online nodes, exchange messages, mix the uploads."""
        self._wait_for_nodes()
        online = self.registry.rows_of(self.nodes.online.values())
        count = max(1, int(self.config.participation * len(online) + 1e-9))
        drawn = keys.sample(keys.key(self.config.seed, "cohort", self.round + 1), len(online), count)
        outcome = self._exchange(torch.tensor(online)[drawn].tolist(), last=False)
        self.round += 1
        return outcome

    def finish(self) -> Outcome:
        """Evaluate the final personalised models of all clients; nodes write them to disk."""
        self._wait_for_nodes()
        return self._exchange([], last=True)

    def _wait_for_nodes(self) -> None:
        self.nodes.wait_for(self.config.min_nodes, self.config.wait)

    def _fresh(self) -> tuple[ServerState, Memory]:
        """Initial (server state, memory (N, ...)) for all rows of the registry."""
        registry, probe = self.registry, self.probe
        engine = probe.client_side.engine
        blank = problem_of(engine)
        labels = None if blank.label_counts is None else registry.labels
        problem = dataclasses.replace(blank, clients=registry.clients, sizes=registry.train, label_counts=labels)
        return begin(self.algorithm, self.server_side.batchnorm, problem, probe.buffers, engine.settings)

    def _exchange(self, trains: list[int], last: bool) -> Outcome:
        """One exchange of messages; trains: rows of the cohort; last: nodes save their personalised models."""
        costs, device = Costs(), self.probe.client_side.engine.data.device
        assignments = {node: self._assignment(member, set(trains), last) for node, member in self.nodes.online.items()}
        assignments = {node: assignment for node, assignment in assignments.items() if assignment.asked}
        with costs.phase("server", device):
            download = self.server_side.download(self.state, self._cohort(trains[:1])) if trains else {}
            expected = self._expected(download if trains else None)
        wire, found = {"down": 0, "up": 0}, {}

        def contents() -> Iterator[tuple[int, str, RecordDict]]:
            for node, assignment in assignments.items():
                content = self._content(assignment, last)
                wire["down"] += codec.size(content)
                yield node, MessageType.TRAIN, content
                del content  # else it stays in memory while the next one is made

        def read(node: int, answer: Answer) -> None:
            wire["up"] += 0 if isinstance(answer, str) else codec.size(answer)
            found[node] = read_reply(answer, assignments[node], expected)

        with costs.phase("exchange", device):
            limits = self.config.deadline, 1e6 * self.config.max_megabytes
            exchange(self.grid, contents(), str(self.round + 1), *limits, read)
        away = set(self.registry.rows_of(self.registry.rows)) - set(self.registry.rows_of(self.nodes.online.values()))
        missing = dict.fromkeys(away, OFFLINE)
        with costs.phase("server", device):
            replies = collect_replies(assignments, found, expected.scores, self.registry.clients, missing)
            found.clear()  # the uploads stand in `replies`
            self._warn_of_lost_memory(replies.remembered)
            replies = self._in_proportion(replies, missing)
            costs.bytes_down = message_bytes(download)
            result = self._advance(replies, costs, last)
            self._admit()
        answered = torch.tensor(replies.answered, dtype=torch.int64)
        result = dataclasses.replace(result, missing=dict(sorted(missing.items())), evaluated=answered)
        return Outcome(result, wire)

    def _expected(self, download: Message | None) -> Expected:
        """What the replies of a round must be; download: (1, ...) that of one client, None where nobody trains."""
        engine, round = self.probe.client_side.engine, self.round + 1
        signature = self.probe.upload_signature(download, self.memory, round) if download is not None else {}
        parts = ["validation"] if self.config.validation else []
        return Expected(signature, engine.data.device, score_names(engine.metrics, parts))

    def _assignment(self, member: str, cohort: set[int], last: bool) -> Assignment:
        rows = self.registry.rows[member]
        trains = [row for row in rows if row in cohort]
        if last:
            return Assignment(member, rows, rows, trains)
        due = self.round % self.config.eval_every == 0
        everybody, count = torch.arange(self.registry.clients), self.config.eval_clients if due else 0
        sample = to_evaluate(self.config.seed, everybody, count).tolist()
        tested = sorted({*sample} & {*(rows if self.config.evaluate_absent else trains)})
        return Assignment(member, rows, tested, trains)

    def _content(self, assignment: Assignment, last: bool) -> RecordDict:
        """Message to the node of an assignment."""
        task = ConfigRecord(
            {
                "federation": self.federation,
                "initial": self.initial,
                "round": self.round + 1,
                "nonce": assignment.nonce,
                "clients": self.registry.clients,
                "rows": assignment.rows,
                "tested": assignment.tested,
                "trains": assignment.trains,
                "last": last,
            }
        )
        content: dict[str, Any] = {"task": task}
        if assignment.tested:
            content |= codec.pack("deliver", self.server_side.deliver(self.state, self._cohort(assignment.tested)))
        both = type(self.algorithm).deliver is Algorithm.deliver and set(assignment.trains) <= set(assignment.tested)
        if assignment.trains and not both:  # else both messages are the same
            content |= codec.pack("download", self.server_side.download(self.state, self._cohort(assignment.trains)))
        return RecordDict(content)

    def _cohort(self, rows: list[int]) -> Cohort:
        ids = torch.tensor(rows, dtype=torch.int64)
        return Cohort(ids, self.registry.train[ids], self.round + 1, self.registry.clients)

    def _advance(self, replies: Replies, costs: Costs, last: bool) -> Round:
        """Mix the uploads; with fewer than `min_clients` of them the server state stays as it is."""
        info: Info = {}
        if not last and len(replies.ids) < self.config.min_clients:
            log(WARNING, "feddwa: round %d: %d updates, too few; models stay", self.round + 1, len(replies.ids))
            replies = replies.only(torch.zeros(len(replies.ids), dtype=torch.bool))
        cohort = self._cohort(replies.ids.tolist())
        costs.bytes_up = message_bytes(replies.upload)
        costs.flops = replies.flops
        if len(cohort):
            with costs.serving():
                self.state, info = self.server_side.advance(self.state, cohort, replies.upload)
            counted = set(replies.ids.tolist())
            self.trained |= {member: cohort.round for member, rows in self.registry.rows.items() if counted & set(rows)}
        return Round(cohort, replies.before, replies.after, info, costs)

    def _in_proportion(self, replies: Replies, missing: dict[int, str]) -> Replies:
        """The replies without updates that are out of all proportion to the others; adds those to `missing`."""
        if not len(replies.ids):
            return replies
        huge = self.server_side.oversized(self.state, self._cohort(replies.ids.tolist()), replies.upload)
        for client in replies.ids[huge].tolist():
            log(WARNING, "feddwa: client %d: %s", client, OVERSIZED)
            missing[client] = OVERSIZED
        return replies.only(~huge)

    def _warn_of_lost_memory(self, remembered: Mapping[str, int]) -> None:
        """Warn of members whose memory is older than their last update: their disk was lost, they start anew.

        remembered: member -> round after which its memory was saved.
        """
        for member, round in remembered.items():
            if any(self.memory.values()) and round < self.trained.get(member, 0):
                log(WARNING, "feddwa: clients %s have lost their memory", self.registry.rows[member])

    def _admit(self) -> None:
        """Register new nodes that have described themselves; the server state grows by their rows."""
        before = self.registry.clients
        self.nodes.admit()
        if self.registry.clients > before:
            fresh, self.memory = self._fresh()
            self.state = self.algorithm.grow(self.state, fresh)


def terms_of(config: FlowerConfig) -> Terms | None:
    """What a configuration fixes for all nodes; None where it does not say what samples are."""
    samples, algorithm = samples_of(config), config.make_algorithm()
    if samples is None:
        return None
    clients = None if config.dataset == OWN else config.clients
    return Terms(samples, clients, config.clients_per_node, algorithm.discloses_labels, config.validation > 0)
