"""The round loop: sample, download, train, upload, mix, evaluate. It knows no algorithm, no file and no screen."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from feddwa.algorithms import Algorithm, Info, Problem
from feddwa.batchnorm import Border
from feddwa.engine import Cohort, Engine, Rows, Scores, SequentialTrainer, State, Trainer, evaluate, keys
from feddwa.engine.memory import rows_that_fit
from feddwa.engine.network import head_parameters
from feddwa.engine.rows import concat, put_state, repeat, take, take_state
from feddwa.ledger import Costs, message_bytes


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    cohort: Cohort
    before: Scores  # (N,) every client's personalised model at the start of the round
    after: Scores  # (m,) the participants' models after local training
    info: Info
    costs: Costs


@dataclass
class Federation:
    """A federation at rest between two rounds. `step` advances it by one round."""

    algorithm: Algorithm
    engine: Engine
    participation: float = 1.0
    sequential: bool = False  # the plain loop instead of the vectorised engine
    chunk: int | None = None  # clients trained together; None = as many as fit into memory
    batchnorm: str = "local"  # what becomes of BatchNorm: see feddwa.batchnorm
    round: int = 0  # finished rounds
    server: State = field(init=False)
    memory: State = field(init=False)  # (N, ...) of every client
    scores: Scores = field(init=False)  # (N,) of the personalised models as they are now

    def __post_init__(self) -> None:
        initial, buffers = self.engine.initial()
        sizes = self.engine.data.splits["train"].sizes
        counts, head = self.engine.data.label_counts(), head_parameters(self.engine.module)
        self.server, own = self.algorithm.setup(Problem(initial, len(sizes), sizes, counts, head, self.engine.seed))
        self.border = Border.of(self.batchnorm, self.engine.module, self.algorithm.updates)
        memory = {"buffers": repeat(buffers, len(sizes)), **own}
        self.server, self.memory = self.border.setup(self.server, memory, initial, buffers, len(sizes))
        self.chunk = 1 if self.sequential else self.chunk or rows_that_fit(self.engine, initial, buffers)
        self.scores = self._evaluate_all()

    def step(self) -> Round:
        """One round."""
        costs, device = Costs(), self.engine.data.device
        cohort, before = self._cohort(self.round + 1), self.scores
        with costs.phase("train", device):
            download = self.border.send(self.server, self.algorithm.download(self.server, cohort))
            upload, memory, costs.flops = self._train(cohort, download)
        costs.bytes_down, costs.bytes_up = message_bytes(download), message_bytes(upload)
        with costs.phase("evaluate", device):
            trained = self.border.complete(self.algorithm.trained(upload, memory), memory)
            after = evaluate(self.engine, trained, memory["buffers"], cohort.ids)
        with costs.phase("server", device):
            server, info = self.algorithm.server(self.server, cohort, upload)
            self.server = self.border.collect(self.server, server, cohort, upload)
            self.memory = put_state(self.memory, cohort.ids, memory)
        self.round += 1
        with costs.phase("evaluate", device):
            self.scores = self._evaluate_all()
        return Round(cohort, before, after, info, costs)

    def personal(self, cohort: Cohort) -> tuple[Rows, Rows]:
        """The personalised models of some clients as they are now, and their BatchNorm statistics."""
        trainer = self._trainer(cohort.ids, cohort.round)
        message = self.border.send(self.server, self.algorithm.deliver(self.server, cohort))
        message, memory = self.border.receive(message, take_state(self.memory, cohort.ids))
        model, memory = self.algorithm.personal(trainer, message, memory)
        return model, memory["buffers"]

    def everybody(self) -> Cohort:
        """All clients, as the cohort of the coming round."""
        sizes = self.engine.data.splits["train"].sizes
        return Cohort(torch.arange(len(sizes)), sizes, self.round + 1)

    def _cohort(self, round: int) -> Cohort:
        sizes = self.engine.data.splits["train"].sizes
        ids = keys.sample(keys.key(self.engine.seed, "cohort", round), len(sizes), self.cohort_size)
        return Cohort(ids, sizes[ids], round)

    @property
    def cohort_size(self) -> int:
        """m = floor(participation * N)."""
        return int(self.participation * len(self.engine.data.splits["train"].sizes) + 1e-9)

    def _train(self, cohort: Cohort, download: State) -> tuple[State, State, Tensor]:
        """The client half, block of clients by block of clients."""
        uploads, memories, flops = [], [], []
        for block in self._blocks(len(cohort)):
            trainer = self._trainer(cohort.ids[block], cohort.round)
            own: State = {part: take(rows, block) for part, rows in download.items()}
            own, memory = self.border.receive(own, take_state(self.memory, cohort.ids[block]))
            upload, memory = self.algorithm.client(trainer, own, memory)
            upload, memory = self.border.reply(upload, memory, self.algorithm.trained(upload, memory))
            uploads.append(upload)
            memories.append(memory)
            flops.append(trainer.flops)
        return concat(uploads), concat(memories), torch.cat(flops)

    def _evaluate_all(self) -> Scores:
        everybody = self.everybody()
        scores = []
        for block in self._blocks(len(everybody)):
            part = Cohort(everybody.ids[block], everybody.sizes[block], everybody.round)
            scores.append(evaluate(self.engine, *self.personal(part), part.ids))
        return Scores(*(torch.cat(values) for values in zip(*scores, strict=True)))

    def _blocks(self, m: int) -> Iterator[Tensor]:
        yield from torch.arange(m).split(self.chunk or m)

    def _trainer(self, ids: Tensor, round: int) -> Trainer:
        return (SequentialTrainer if self.sequential else Trainer)(self.engine, ids, round)
