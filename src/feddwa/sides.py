"""The two halves of a federation, wherever they run: clients that train their rows, a server that mixes them.

The simulator has both in one process; in a real federation every node has a client side for its own rows and the server
half is elsewhere. What passes between them are the messages that leave through the border (BatchNorm).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddwa.algorithms import Algorithm, Info, Problem
from feddwa.batchnorm import BatchNormPolicy
from feddwa.engine import Cohort, Engine, Row, Rows, Scores, SequentialTrainer, State, Trainer, evaluate
from feddwa.engine.rows import concat, repeat, take_state


def begin(algorithm: Algorithm, batchnorm: BatchNormPolicy, problem: Problem, buffers: Row) -> tuple[State, State]:
    """The server's state and every client's memory before the first round."""
    server, own = algorithm.setup(replace(problem, buffers=buffers))
    memory = {"buffers": repeat(buffers, problem.clients), **own}
    return batchnorm.setup(server, memory, problem.initial, buffers, problem.clients)


@dataclass(frozen=True)
class ClientSide:
    """Trains and evaluates rows on the data of its engine, block of clients by block of clients."""

    algorithm: Algorithm
    batchnorm: BatchNormPolicy
    engine: Engine
    chunk: int  # clients trained together
    sequential: bool = False  # the plain loop instead of the vectorised engine

    def train(self, ids: Tensor, round: int, download: State, memory: State) -> tuple[State, State, Tensor]:
        """A round of the clients `ids` (m,), whose memory is given: their uploads, new memory and FLOPs (m,)."""
        uploads, memories, flops = [], [], []
        for block in self._blocks(ids):
            trainer = self._trainer(ids[block], round)
            message, own = self.batchnorm.receive(take_state(download, block), take_state(memory, block))
            upload, own = self.algorithm.client(trainer, message, own)
            upload, own = self.batchnorm.reply(upload, own, self.algorithm.trained(upload, own))
            uploads.append(upload)
            memories.append(own)
            flops.append(trainer.flops)
        return concat(uploads), concat(memories), torch.cat(flops)

    def trained_scores(self, ids: Tensor, upload: State, memory: State) -> Scores:
        """How good the models are that training has left behind."""
        model = self.batchnorm.complete(self.algorithm.trained(upload, memory), memory)
        return evaluate(self.engine, model, memory["buffers"], ids)

    def personal(self, ids: Tensor, round: int, message: State, memory: State) -> tuple[Rows, Rows]:
        """The personalised models that a delivered message makes, and their BatchNorm statistics."""
        message, memory = self.batchnorm.receive(message, memory)
        model, memory = self.algorithm.personal(self._trainer(ids, round), message, memory)
        return model, memory["buffers"]

    def personal_scores(self, ids: Tensor, round: int, message: State, memory: State) -> Scores:
        """How good they are."""
        scores = [
            evaluate(
                self.engine,
                *self.personal(ids[block], round, take_state(message, block), take_state(memory, block)),
                ids[block],
            )
            for block in self._blocks(ids)
        ]
        return Scores(*(torch.cat(values) for values in zip(*scores, strict=True)))

    def _blocks(self, ids: Tensor) -> Iterator[Tensor]:
        yield from torch.arange(len(ids)).split(self.chunk)

    def _trainer(self, ids: Tensor, round: int) -> Trainer:
        return (SequentialTrainer if self.sequential else Trainer)(self.engine, ids, round)


@dataclass(frozen=True)
class ServerSide:
    """Makes the messages to clients from the server's state, and a new state from their uploads."""

    algorithm: Algorithm
    batchnorm: BatchNormPolicy

    def download(self, state: State, cohort: Cohort) -> State:
        """What the clients of a round get to train with."""
        return self.batchnorm.send(state, self.algorithm.download(state, cohort))

    def deliver(self, state: State, cohort: Cohort) -> State:
        """What clients get to make their personalised models of."""
        return self.batchnorm.send(state, self.algorithm.deliver(state, cohort))

    def advance(self, state: State, cohort: Cohort, upload: State) -> tuple[State, Info]:
        """The state after the uploads of a round, and what there is to report."""
        new, info = self.algorithm.server(state, cohort, upload)
        return self.batchnorm.collect(state, new, cohort, upload), info
