"""The round loop: sample, download, train, upload, mix, evaluate. It knows no algorithm, no file and no screen."""

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
from feddwa.state import MEMORY, ROWS, SERVER, State
from feddwa.updates import ABSENT, DIVERGED, INVALID, LATE, OUTSIZED


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    cohort: Cohort  # the clients whose updates count
    before: Scores  # (N,) every client's personalised model at the start of the round
    after: Scores  # (m,) the participants' models after local training
    info: Info
    costs: Costs
    missing: Mapping[int, str] = field(default_factory=dict)  # client -> why its update does not count
    evaluated: Tensor | None = None  # (k,) clients that were, in ascending order; the others' scores are NaN; None: all


@dataclass
class Federation:
    """A federation at rest between two rounds. `step` advances it by one round."""

    algorithm: Algorithm
    engine: Engine
    participation: float = 1.0
    sequential: bool = False  # the plain loop instead of the vectorised engine
    chunk: int | None = None  # clients trained together; None = as many as fit into memory
    batchnorm: str = "local"  # what becomes of BatchNorm: see feddwa.batchnorm
    faults: Faults = HEALTHY
    attacks: Shares = ()  # attacks and the share of the clients that each has
    defences: Defences = UNDEFENDED
    privacy: Privacy = PUBLIC
    discloses: bool = True  # whether clients tell data sizes and class statistics, as far as the method has them do so
    rounds: int = 1  # that the budget of `privacy` is for
    eval_every: int = 1  # rounds from one evaluation to the next
    eval_clients: int | None = None  # clients that are evaluated then; None = all
    round: int = 0  # finished rounds
    where: State = field(default_factory=State)  # the rows of all clients
    attackers: Attackers = field(init=False)
    plan: Plan | None = field(init=False)  # of what is private
    nothing: Message = field(init=False)  # the upload of nobody (0, ...), where something is private
    server: ServerState = field(init=False)
    memory: Memory = field(init=False)  # (N, ...) of every client
    scores: Scores = field(init=False)  # (N,) of the personalised models as they are now, NaN where not evaluated
    evaluated: Tensor = field(init=False)  # (k,) clients that were, in ascending order

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
            begun = DryRun(self.algorithm, side.batchnorm, self.engine, self.server, self.memory, self.everybody())
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
        """One round. A client that is absent or refused changes nobody's model; a round without any is a pause."""
        costs, device = Costs(), None if self.engine.lockstep > 1 else self.engine.data.device
        self.engine.enter(self.round + 1)
        invited, before, evaluated = self._cohort(self.round + 1), self.scores, self.evaluated
        absent = self.faults.absent(self.engine.seed, invited)
        missing = dict.fromkeys(invited.ids[absent].tolist(), ABSENT)
        cohort, after = invited.only(~absent), map_scores(lambda values: values[:0], before)  # of nobody so far
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
                self.memory = self.where.settled(MEMORY, new)
                counted = _places(reasons, (None,))
                cohort = cohort.only(counted)
                upload, sent, memory = (take_parts(parts, counted) for parts in (upload, sent, memory))
                huge = self.server_side.outsized(self.server, cohort, sent)
                missing |= dict.fromkeys(cohort.ids[huge].tolist(), OUTSIZED)
                if huge.any():  # a client does not learn of it, so its memory has moved on
                    kept = (~huge).nonzero().flatten()
                    cohort = cohort.only(kept)
                    upload, sent, memory = (take_parts(parts, kept) for parts in (upload, sent, memory))
        if len(cohort):
            with costs.phase("evaluate", device):
                after = self.client_side.trained_scores(cohort.ids, cohort.round, upload, memory, evaluated)
        if len(cohort) or self.server_side.mechanism.central:  # noise alone, where nobody takes part
            with costs.phase("server", device), costs.serving():
                new, info = self.server_side.advance(self.server, cohort, sent)
                self.server = self.where.settled(SERVER, new)
        info = info if len(cohort) else {}  # of nobody there is nothing to report
        self.round += 1
        with costs.phase("evaluate", device):
            self._evaluate(self._due())
        return Round(cohort, before, after, info, costs, missing, evaluated)

    def _train(self, cohort: Cohort, costs: Costs) -> tuple[Message, Message, Memory]:
        """The client side of a round: the uploads as clients make them, as they arrive, and the new memories."""
        download, memory = self.server_side.download(self.server, cohort), take_parts(self.memory, cohort.ids)
        upload, memory, costs.flops = self.client_side.train(cohort.ids, cohort.round, download, memory)
        costs.bytes_down, costs.bytes_up = message_bytes(download), message_bytes(upload)
        sent = self.server_side.mechanism.sent(cohort, download, upload, self.algorithm.updates)
        sent = self.attackers.sent(cohort, download, sent, self.algorithm.updates)
        return upload, self.faults.sent(self.engine.seed, cohort, sent), memory

    def _reasons(self, cohort: Cohort, upload: Message) -> list[str | None]:
        """Of every client why its update does not count; None = it does."""
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
        """Everything that the coming rounds depend on, besides the number of the round."""
        sides = {SERVER: self.where.tree(SERVER, self.server), MEMORY: self.where.tree(MEMORY, self.memory)}
        return {**sides, "scores": {"all": self.scores.named()}, ROWS: self.where.marks()}

    def place(self, where: State) -> None:
        """Before the first round: let the rows of all clients live there."""
        self.where = where
        self.server = where.placed(SERVER, self.server, self.clients)
        self.memory = where.placed(MEMORY, self.memory, self.clients)

    def restore(self, round: int, state: Mapping[str, Parts], older: Sequence[Mapping[str, Parts]] = ()) -> None:
        """Go back to where `state` was taken, after so many rounds; older: states of other checkpoints that stay."""
        sides = self.where.restored({SERVER: self.server, MEMORY: self.memory}, state, older)
        self.server, self.memory = sides[SERVER], sides[MEMORY]
        self.scores, self.round = Scores.of(state["scores"]["all"]), round
        self.evaluated = self._due()

    def personal(self, cohort: Cohort) -> tuple[Stack, Stack]:
        """The personalised models of some clients as they are now, frozen parameters included, and their buffers."""
        message, memory = self.server_side.deliver(self.server, cohort), take_parts(self.memory, cohort.ids)
        model, buffers = self.client_side.personal(cohort.ids, cohort.round, message, memory)
        return self.engine.complete(model), buffers

    def everybody(self) -> Cohort:
        """All clients, as the cohort of the coming round."""
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
        """(h,) the clients that do not attack, in ascending order: scores are of these alone."""
        return self.attackers.honest

    @property
    def cohort_size(self) -> int:
        """m = floor(participation * N)."""
        return int(self.participation * len(self.engine.data.splits["train"].sizes) + 1e-9)

    def evaluate_all(self) -> None:
        """Evaluate all honest clients' models as they are now, unless that has been done."""
        if len(self.evaluated) < len(self.honest):
            self._evaluate(self.honest)

    def _due(self) -> Tensor:
        """(k,) the clients that are evaluated after this round, in ascending order."""
        due = self.round % self.eval_every == 0
        return to_evaluate(self.engine.seed, self.honest, self.eval_clients if due else 0)

    def _evaluate(self, ids: Tensor) -> None:
        """Score the personalised models of clients (k,) as they are now."""
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
    """(k,) the `count` of these clients that are evaluated, the same in every round, in ascending order; None: all."""
    if count is None or count >= len(clients) or not count:
        return clients[:count]
    return clients[keys.sample(keys.key(seed, "evaluated"), len(clients), count)]


def _places(reasons: Sequence[str | None], wanted: Sequence[str | None]) -> Tensor:
    return torch.tensor([place for place, reason in enumerate(reasons) if reason in wanted], dtype=torch.int64)
