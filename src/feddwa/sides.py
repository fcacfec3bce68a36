"""The two sides of a federation: clients train their rows, the server mixes them.

The simulator runs both sides in one process. Over Flower, every node runs the client side for its own rows, and the
ServerApp runs the server side. Only messages pass between them, and `BatchNormPolicy` edits each one on its way.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from feddwa import updates
from feddwa.algorithms import Algorithm, Info, Problem
from feddwa.batchnorm import BatchNormPolicy, batchnorm_layers, batchnorm_parameters
from feddwa.contract import Checked
from feddwa.data.federated import CENTRAL, HELD_OUT, TRIGGERED
from feddwa.defences.chain import UNDEFENDED, Defences
from feddwa.engine import (
    Cohort,
    Engine,
    Memory,
    Message,
    Model,
    Scores,
    SequentialTrainer,
    ServerState,
    Settings,
    Stack,
    Trainer,
    evaluate,
    evaluate_one_by_one,
    keys,
    map_scores,
)
from feddwa.engine.evaluate import PARTS, MetricError, score_names, spread, unknown
from feddwa.engine.features import feature_width
from feddwa.engine.memory import rows_that_fit
from feddwa.engine.network import head_parameters, trainable
from feddwa.engine.rows import concat, loaded, repeat, row, take, take_parts
from feddwa.engine.steps import named
from feddwa.errors import InputError
from feddwa.privacy.mechanism import NOTHING, Mechanism, without_state

SHOWN = 3  # clients named in an error


def problem_of(engine: Engine) -> Problem:
    """The input of an algorithm's setup, for the clients of an engine."""
    data, (initial, _) = engine.data, engine.initial()
    sizes, head = data.splits["train"].sizes, head_parameters(engine.module)
    norms, labels = batchnorm_parameters(engine.module), engine.shared(0, "label counts", data.label_counts)
    width = engine.shared(0, "feature width", partial(feature_width, engine))
    return Problem(initial, len(sizes), sizes, labels, head, width, engine.seed, batchnorm=norms)


def network_of(algorithm: Algorithm, module: nn.Module, seed: int) -> nn.Module:
    """The run's network with the layers added by its algorithm, whose initial values have their own key."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.seed_of(keys.key(seed, "added layers")))
        return algorithm.network(module)


def adds_layers(algorithm: Algorithm) -> bool:
    """Whether an algorithm's models may have other layers than the run's network."""
    return type(algorithm).network is not Algorithm.network


def policy_of(algorithm: Algorithm, policy: str, module: nn.Module) -> BatchNormPolicy:
    """The BatchNorm policy of a federation; raises if the network has BatchNorm and the algorithm rejects it."""
    if policy not in algorithm.policies and batchnorm_layers(module):
        title = getattr(algorithm, "title", type(algorithm).__name__)
        why = f"does not suit {title}, whose clients keep BatchNorm layers of their own"
        raise InputError(f"--batchnorm {policy}: {why}; take {' or '.join(algorithm.policies)}")
    return BatchNormPolicy.of(policy, module, algorithm.updates)


def begin(
    algorithm: Algorithm, batchnorm: BatchNormPolicy, problem: Problem, buffers: Model, settings: Settings
) -> tuple[ServerState, Memory]:
    """The state before the first round: (server state, memory of all N clients, (N, ...)).

    `problem` comes without buffers and settings; `buffers` are the BatchNorm statistics of one initial model.
    """
    server, own = Checked(algorithm, problem.clients).setup(replace(problem, buffers=buffers, settings=settings))
    memory = {"buffers": repeat(buffers, problem.clients), **own}
    for name in algorithm.optimized if settings.keep_optimizer else ():
        slots = settings.optimizer.init(row(own[name], 0) if name in own else problem.initial)
        memory |= named(name, {slot: repeat(model, problem.clients) for slot, model in slots.items()})
    return batchnorm.setup(server, memory, problem.initial, buffers, problem.clients)


@dataclass(frozen=True)
class ClientSide:
    """Trains and evaluates clients on the data of the engine, `chunk` clients at a time."""

    algorithm: Algorithm
    batchnorm: BatchNormPolicy
    engine: Engine
    chunk: int  # clients trained together
    sequential: bool = False  # the plain loop instead of the vectorised engine

    @classmethod
    def of(
        cls, algorithm: Algorithm, engine: Engine, batchnorm: str, chunk: int | None, sequential: bool = False
    ) -> "ClientSide":
        """The client side of an algorithm under a BatchNorm policy; chunk: None = as many as fit into memory."""
        policy = policy_of(algorithm, batchnorm, engine.module)
        chunk = 1 if sequential else chunk or rows_that_fit(engine)
        return cls(algorithm, policy, engine, chunk, sequential)

    def train(self, ids: Tensor, round: int, download: Message, memory: Memory) -> tuple[Message, Memory, Tensor]:
        """Run the client side of one round.

        ids: (m,) client numbers; download, memory: (m, ...), one row per client.
        Returns (uploads (m, ...), new memory (m, ...), FLOPs (m,)).
        """
        uploads, memories, flops = [], [], []
        for block in self._blocks(ids):
            trainer, algorithm = self._trainer(ids[block], round), self._checked(round, len(block))
            given = (loaded(take_parts(parts, block)) for parts in (download, memory))
            message, own = self.batchnorm.receive(*given)
            with self._named(ids[block], round):
                upload, own = algorithm.client(trainer, message, own)
                upload, own = self.batchnorm.reply(upload, own, algorithm.trained(upload, own))
            uploads.append(upload)
            memories.append(own)
            flops.append(trainer.flops)
        return concat(uploads), concat(memories), torch.cat(flops)

    @contextmanager
    def _named(self, ids: Tensor, round: int) -> Iterator[None]:
        """Add the algorithm, round and clients as a note to an error of the enclosed code."""
        try:
            yield
        except Exception as error:
            names = [self.engine.data.client_name(number) for number in ids[:SHOWN].tolist()]
            more = f" and {len(ids) - SHOWN} others" if len(ids) > SHOWN else ""
            who = f"client{'s' * (len(ids) > 1)} {', '.join(names)}{more}"
            error.add_note(f"in algorithm {type(self.algorithm).__name__}, round {round}, {who}")
            raise

    def trained_scores(self, ids: Tensor, round: int, upload: Message, memory: Memory, evaluated: Tensor) -> Scores:
        """Scores (m,) of the clients `ids` after local training; upload, memory: from `train`.

        evaluated: (k,) clients that are evaluated in this round; scores of others are NaN.
        """
        places = torch.isin(ids, evaluated).nonzero().flatten()
        if not len(places):
            return unknown(len(ids), self.score_names)
        if len(places) < len(ids):
            own = take_parts(upload, places), take_parts(memory, places)
            return spread(self.trained_scores(ids[places], round, *own, evaluated), places, len(ids))
        model = self.batchnorm.complete(self.algorithm.trained(upload, memory), memory)
        return self.scores_after(ids, round, model, memory["buffers"])

    def scores_after(self, ids: Tensor, round: int, model: Stack, buffers: Stack) -> Scores:
        """Scores (m,) of models after local training."""
        return self._evaluate(ids, model, buffers, f"after training of round {round}", ("validation",))

    def personal(self, ids: Tensor, round: int, message: Message, memory: Memory) -> tuple[Stack, Stack]:
        """Personalised models (m, *shape) of the clients `ids`, and their BatchNorm statistics (m, *shape).

        message: from `ServerSide.deliver`; memory: the clients'. Neither is changed.
        """
        found = concat(
            [{"model": model, "buffers": buffers} for _, model, buffers in self._personal(ids, round, message, memory)]
        )
        return found["model"], found["buffers"]

    def personal_scores(self, ids: Tensor, round: int, message: Message, memory: Memory) -> Scores:
        """Scores (m,) of the personalised models; arguments as in `personal`."""
        scores = [
            self._evaluate(*block, f"before round {round}", PARTS)
            for block in self._personal(ids, round, message, memory)
        ]
        return map_scores(lambda *blocks: torch.cat(blocks), *scores)

    def _personal(
        self, ids: Tensor, round: int, message: Message, memory: Memory
    ) -> Iterator[tuple[Tensor, Stack, Stack]]:
        """(ids, models, BatchNorm statistics) block by block."""
        for block in self._blocks(ids):
            own, delivered = ids[block], loaded(take_parts(message, block))
            delivered, state = self.batchnorm.receive(delivered, loaded(take_parts(memory, block)))
            trainer = self._trainer(own, round)
            trainer.accounted = False
            model, state = self._checked(round, len(own)).personal(trainer, delivered, state)
            yield own, model, state["buffers"]

    def _evaluate(self, ids: Tensor, model: Stack, buffers: Stack, when: str, parts: Iterable[str]) -> Scores:
        """Scores (m,), including the run's metrics; `when` is named in their errors. parts: see `PARTS`."""
        evaluation = evaluate_one_by_one if self.sequential else evaluate
        score = partial(evaluation, self.engine, metrics=self.engine.metrics)
        try:
            found = score(model, buffers, ids)
            if "validation" in parts and HELD_OUT in self.engine.data.splits:
                found = found._replace(validation=score(model, buffers, ids, HELD_OUT))
            if "central" in parts and CENTRAL in self.engine.data.splits:
                rows = torch.arange(1 if self.algorithm.global_model else len(ids))
                own = score(take(model, rows), take(buffers, rows), ids[rows], CENTRAL)
                found = found._replace(central=map_scores(lambda values: values.expand(len(ids)), own))
            if "triggered" in parts and TRIGGERED in self.engine.data.splits:
                found = found._replace(triggered=score(model, buffers, ids, TRIGGERED))
            return found
        except MetricError as error:
            raise InputError(f"{error}, {when}") from error.__cause__

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores of personalised models in this run."""
        there = {"validation": HELD_OUT, "central": CENTRAL, "triggered": TRIGGERED}
        parts = [part for part in PARTS if there[part] in self.engine.data.splits]
        return score_names(self.engine.metrics, parts)

    def _blocks(self, ids: Tensor) -> Iterator[Tensor]:
        yield from torch.arange(len(ids)).split(self.chunk)

    def _checked(self, round: int, clients: int) -> Algorithm:
        """The algorithm; in the first round with its contract checked."""
        if round > 1:
            return self.algorithm
        shapes = {name: tuple(value.shape) for name, value in trainable(self.engine.module).items()}
        return Checked(self.algorithm, clients, shapes)

    def _trainer(self, ids: Tensor, round: int) -> Trainer:
        return (SequentialTrainer if self.sequential else Trainer)(self.engine, ids, round)


@dataclass(frozen=True)
class ServerSide:
    """Makes the messages to clients from the server state, and a new state from their uploads."""

    algorithm: Algorithm
    batchnorm: BatchNormPolicy
    defences: Defences = UNDEFENDED
    seed: int = 0
    mechanism: Mechanism = NOTHING
    sizes: bool = True  # whether clients disclose their numbers of samples

    def download(self, state: ServerState, cohort: Cohort) -> Message:
        """Message (m, ...) from which the clients of `cohort` start local training."""
        state, cohort = without_state(state), self._told(cohort)
        return self.batchnorm.send(state, self._checked(cohort).download(state, cohort))

    def deliver(self, state: ServerState, cohort: Cohort) -> Message:
        """Message (m, ...) from which the clients of `cohort` make their personalised models."""
        state, cohort = without_state(state), self._told(cohort)
        return self.batchnorm.send(state, self._checked(cohort).deliver(state, cohort))

    def oversized(self, state: ServerState, cohort: Cohort, upload: Message) -> Tensor:
        """(m,) bool: clients of `cohort` whose upload (m, ...) is out of proportion to those of the others.

        False under central privacy: there every update is clipped, and no update may decide whether another one counts.
        """
        if self.mechanism.central:
            return torch.zeros(len(cohort), dtype=torch.bool)
        return updates.oversized(upload, self.download(state, cohort), self.algorithm.updates, len(cohort))

    def advance(self, state: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """New server state from the uploads (m, ...) of `cohort`, and the algorithm's report (P, ...).

        Under central privacy the algorithm sees one client, whose upload is the private mean.
        """
        cohort = self._told(cohort)
        if not self.mechanism.central:
            return self._defended(state, cohort, upload)
        alone = Cohort(
            torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), cohort.round, cohort.clients
        )
        download, updates = self.download(state, alone), self.algorithm.updates
        mean, kept = self.mechanism.mean(state, cohort.round, download, upload, updates)
        new, info = self._advance(without_state(state), alone, mean)
        numbers = {name: value for name, value in info.items() if not value.ndim}
        weights = torch.full((len(cohort), len(cohort)), 1 / max(1, len(cohort)), dtype=torch.float64)
        return {**new, **{part: rows for part, rows in kept.items() if part not in new}}, {
            "weights": weights,
            **numbers,
        }

    def _defended(self, state: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        if not self.defences.chain:
            return self._advance(state, cohort, upload)
        upload = self.defences.filtered(upload, self.download(state, cohort), self.algorithm.updates)
        with self.defences.at_work(self.algorithm, upload, keys.key(self.seed, "defence", cohort.round)):
            return self._advance(state, cohort, upload)

    def _advance(self, state: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        new, info = self._checked(cohort).server(state, cohort, upload)
        return self.batchnorm.collect(state, new, cohort, upload), info

    def _told(self, cohort: Cohort) -> Cohort:
        """The cohort as the server knows it."""
        return cohort if self.sizes else replace(cohort, sizes=torch.ones_like(cohort.sizes))

    def _checked(self, cohort: Cohort) -> Algorithm:
        """The algorithm; in the first round with its contract checked."""
        return self.algorithm if cohort.round > 1 else Checked(self.algorithm, len(cohort))
