"""The round loop: sample, download, train, upload, mix, evaluate. Independent of algorithms, files and terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from feddwa import updates
from feddwa.algorithms import Algorithm, Info
from feddwa.attacks.attackers import Attackers, Shares
from feddwa.defences.chain import UNDEFENDED, Defences
from feddwa.engine import Cohort, Engine, Memory, Message, Parts, Scores, ServerState, Stack, keys, map_scores
from feddwa.engine.evaluate import spread, unknown
from feddwa.engine.rows import put_parts, take_parts
from feddwa.faults import HEALTHY, Faults
from feddwa.ledger import Costs, message_bytes
from feddwa.options.privacy import PUBLIC, Privacy
from feddwa.privacy.coverage import DryRun
from feddwa.privacy.disclosure import Disclosed
from feddwa.privacy.mechanism import NOTHING
from feddwa.privacy.plan import Plan, begin_privately, planned
from feddwa.shards import ShardedClientSide
from feddwa.sides import ClientSide, ServerSide, begin, problem_of
from feddwa.state import MEMORY, ROWS, SERVER, Placement
from feddwa.updates import ABSENT, DIVERGED, INVALID, LATE, OVERSIZED


@dataclass(frozen=True)
class Round:
    """The results of one round."""

    cohort: Cohort  # clients whose updates were accepted
    before: Scores  # (N,) every client's personalised model at the start of the round
    after: Scores  # (m,) the participants' models after local training
    info: Info
    costs: Costs
    missing: Mapping[int, str] = field(default_factory=dict)  # client -> reason why its update was not used
    evaluated: Tensor | None = None  # (k,) evaluated clients, in ascending order; the others' scores are NaN; None: all


@dataclass
class Federation:
    """A federation between two rounds. `step` advances it by one round."""

    algorithm: Algorithm
    engine: Engine
    participation: float = 1.0
    sequential: bool = False  # the plain loop instead of the vectorised engine
    chunk: int | None = None  # clients trained together; None = as many as fit into memory
    batchnorm: str = "local"  # BatchNorm policy: see feddwa.batchnorm
    faults: Faults = HEALTHY
    attacks: Shares = ()  # attacks and their shares of the clients
    defences: Defences = UNDEFENDED
    privacy: Privacy = PUBLIC
    discloses: bool = True  # whether clients disclose data sizes and class statistics, if the method asks for them
    rounds: int = 1  # rounds covered by the budget of `privacy`
    eval_every: int = 1  # rounds from one evaluation to the next
    eval_clients: int | None = None  # number of evaluated clients; None = all
    round: int = 0  # finished rounds
    placement: Placement = field(default_factory=Placement)  # storage of all clients' rows
    attackers: Attackers = field(init=False)
    plan: Plan | None = field(init=False)  # of the privacy mechanism
    nothing: Message = field(init=False)  # an empty upload (0, ...), under privacy
    server: ServerState = field(init=False)
    memory: Memory = field(init=False)  # (N, ...) of every client
    scores: Scores = field(init=False)  # (N,) of the current personalised models, NaN if not evaluated
    evaluated: Tensor = field(init=False)  # (k,) evaluated clients, in ascending order

    def __post_init__(self) -> None:
        begin_privately(self.privacy, self.engine)
        side = ClientSide.of(self.algorithm, self.engine, self.batchnorm, self.chunk, self.sequential)
        self.client_side = side
        self.attackers = Attackers(self.engine.seed, self.clients, self.attacks)
        if self.engine.ranks is not None:
            self.client_side = ShardedClientSide(**vars(side), ranks=self.engine.ranks)
        told = Disclosed(self.privacy, self.discloses)
        problem, buffers = told.problem(problem_of(self.engine)), self.engine.initial()[1]
        with told.withholding():
            self.server, self.memory = begin(self.algorithm, side.batchnorm, problem, buffers, self.engine.settings)
        self.plan, self.nothing = None, {}
        if self.privacy.active or not self.discloses:
            begun = DryRun(self.algorithm, side.batchnorm, self.engine, self.server, self.memory, self.all_clients())
            if not self.discloses:
                begun.check_disclosed()
            if self.privacy.active:
                self.plan, self.nothing = planned(self.privacy, begun, self.participation, self.rounds), begun.nothing
        mechanism = NOTHING if self.plan is None else self.plan.mechanism()
        private = mechanism, told.sizes
        self.server_side = ServerSide(self.algorithm, side.batchnorm, self.defences, self.engine.seed, *private)
        self.server = {**self.server, **mechanism.state()}
        self._evaluate(self._due())

    def step(self) -> Round:
        """One round. An absent or refused client changes no model; a round without accepted clients changes nothing."""
        costs, device = Costs(), None if self.engine.lockstep > 1 else self.engine.data.device
        self.engine.enter(self.round + 1)
        invited, before, evaluated = self._cohort(self.round + 1), self.scores, self.evaluated
        absent = self.faults.absent(self.engine.seed, invited)
        missing = dict.fromkeys(invited.ids[absent].tolist(), ABSENT)
        cohort, after = invited.only(~absent), map_scores(lambda values: values[:0], before)  # empty so far
        info: Info = {}
        sent = self.nothing
        if len(cohort):
            with costs.phase("train", device):
                upload, sent, memory = self._train(cohort, costs)
            with costs.phase("server", device):
                reasons = self._reasons(cohort, sent)
                missing |= {client: why for client, why in zip(cohort.ids.tolist(), reasons, strict=True) if why}
                moved = _places(reasons, (None, LATE))
                new = put_parts(self.memory, cohort.ids[moved], take_parts(memory, moved))
                self.memory = self.placement.written_back(MEMORY, new)
                counted = _places(reasons, (None,))
                cohort = cohort.only(counted)
                upload, sent, memory = (take_parts(parts, counted) for parts in (upload, sent, memory))
                huge = self.server_side.oversized(self.server, cohort, sent)
                missing |= dict.fromkeys(cohort.ids[huge].tolist(), OVERSIZED)
                if huge.any():  # the client is not informed, so its memory has changed
                    kept = (~huge).nonzero().flatten()
                    cohort = cohort.only(kept)
                    upload, sent, memory = (take_parts(parts, kept) for parts in (upload, sent, memory))
        if len(cohort):
            with costs.phase("evaluate", device):
                after = self.client_side.trained_scores(cohort.ids, cohort.round, upload, memory, evaluated)
        if len(cohort) or self.server_side.mechanism.central:  # noise alone if nobody takes part
            with costs.phase("server", device), costs.serving():
                new, info = self.server_side.advance(self.server, cohort, sent)
                self.server = self.placement.written_back(SERVER, new)
        info = info if len(cohort) else {}  # nothing to report for an empty cohort
        self.round += 1
        with costs.phase("evaluate", device):
            self._evaluate(self._due())
        return Round(cohort, before, after, info, costs, missing, evaluated)

    def _train(self, cohort: Cohort, costs: Costs) -> tuple[Message, Message, Memory]:
        """The client side of a round: the uploads as sent, the uploads as received, and the new memories."""
        download, memory = self.server_side.download(self.server, cohort), take_parts(self.memory, cohort.ids)
        upload, memory, costs.flops = self.client_side.train(cohort.ids, cohort.round, download, memory)
        costs.bytes_down, costs.bytes_up = message_bytes(download), message_bytes(upload)
        sent = self.server_side.mechanism.sent(cohort, download, upload, self.algorithm.updates)
        sent = self.attackers.sent(cohort, download, sent, self.algorithm.updates)
        return upload, self.faults.sent(self.engine.seed, cohort, sent), memory

    def _reasons(self, cohort: Cohort, upload: Message) -> list[str | None]:
        """For every client the reason why its update is not used; None if it is used."""
        seed, expected = self.engine.seed, updates.signature(upload)
        checks = zip(
            self.faults.late(seed, cohort).tolist(),
            self.faults.signatures(seed, cohort, expected),
            updates.finite(upload, len(cohort)).tolist(),
            strict=True,
        )
        return [
            LATE if late else INVALID if updates.mismatch(expected, found) else None if finite else DIVERGED
            for late, found, finite in checks
        ]

    def state(self) -> Mapping[str, Parts]:
        """Everything that future rounds depend on, apart from the round number."""
        sides = {SERVER: self.placement.tree(SERVER, self.server), MEMORY: self.placement.tree(MEMORY, self.memory)}
        return {**sides, "scores": {"all": self.scores.named()}, ROWS: self.placement.marks()}

    def place(self, placement: Placement) -> None:
        """Move the rows of all clients to a storage, before the first round."""
        self.placement = placement
        self.server = placement.place(SERVER, self.server, self.clients)
        self.memory = placement.place(MEMORY, self.memory, self.clients)

    def restore(self, round: int, state: Mapping[str, Parts], older: Sequence[Mapping[str, Parts]] = ()) -> None:
        """Restore `state`, taken after `round` rounds; older: states of other checkpoints to keep."""
        sides = self.placement.restored({SERVER: self.server, MEMORY: self.memory}, state, older)
        self.server, self.memory = sides[SERVER], sides[MEMORY]
        self.scores, self.round = Scores.of(state["scores"]["all"]), round
        self.evaluated = self._due()

    def personal(self, cohort: Cohort) -> tuple[Stack, Stack]:
        """The current personalised models of some clients, frozen parameters included, and their buffers."""
        message, memory = self.server_side.deliver(self.server, cohort), take_parts(self.memory, cohort.ids)
        model, buffers = self.client_side.personal(cohort.ids, cohort.round, message, memory)
        return self.engine.complete(model), buffers

    def all_clients(self) -> Cohort:
        """All clients, as a cohort of the next round."""
        sizes = self.engine.data.splits["train"].sizes
        return Cohort(torch.arange(len(sizes)), sizes, self.round + 1, self.clients)

    def _cohort(self, round: int) -> Cohort:
        sizes = self.engine.data.splits["train"].sizes
        if self.cohort_size == len(sizes):
            return Cohort(torch.arange(len(sizes)), sizes, round, self.clients)
        if self.plan is not None and self.plan.poisson:
            ids = self.plan.run.drawn(round, poisson=True)
            return Cohort(ids, sizes[ids], round, self.clients)
        ids = keys.sample(keys.key(self.engine.seed, "cohort", round), len(sizes), self.cohort_size)
        return Cohort(ids, sizes[ids], round, self.clients)

    @property
    def clients(self) -> int:
        """N."""
        return self.engine.data.clients

    @property
    def honest(self) -> Tensor:
        """(h,) the clients that do not attack, in ascending order; scores cover these alone."""
        return self.attackers.honest

    @property
    def cohort_size(self) -> int:
        """m = floor(participation * N)."""
        return int(self.participation * len(self.engine.data.splits["train"].sizes) + 1e-9)

    def evaluate_all(self) -> None:
        """Evaluate the current models of all honest clients, unless already done."""
        if len(self.evaluated) < len(self.honest):
            self._evaluate(self.honest)

    def _due(self) -> Tensor:
        """(k,) the clients to evaluate after this round, in ascending order."""
        due = self.round % self.eval_every == 0
        return to_evaluate(self.engine.seed, self.honest, self.eval_clients if due else 0)

    def _evaluate(self, ids: Tensor) -> None:
        """Score the current personalised models of clients (k,)."""
        self.evaluated = ids
        if not len(ids):
            self.scores = unknown(self.clients, self.client_side.score_names)
            return
        everybody = len(ids) == self.clients
        cohort = Cohort(ids, self.engine.data.splits["train"].sizes[ids], self.round + 1, self.clients)
        message = self.server_side.deliver(self.server, cohort)
        memory = self.memory if everybody else take_parts(self.memory, ids)
        scores = self.client_side.personal_scores(ids, cohort.round, message, memory)
        self.scores = scores if everybody else spread(scores, ids, self.clients)


def to_evaluate(seed: int, clients: Tensor, count: int | None) -> Tensor:
    """(k,) the `count` of these clients to evaluate, the same in every round, in ascending order; None: all."""
    if count is None or count >= len(clients) or not count:
        return clients[:count]
    return clients[keys.sample(keys.key(seed, "evaluated"), len(clients), count)]


def _places(reasons: Sequence[str | None], wanted: Sequence[str | None]) -> Tensor:
    return torch.tensor([place for place, reason in enumerate(reasons) if reason in wanted], dtype=torch.int64)
