"""The one interface of all algorithms: what a client does to its row, and how the server mixes rows.

Both sides are written once, against a leading client axis. The client side never sees another client's row; the server
side never sees data. Everything that crosses between them is a message: a mapping part -> name -> (m, *shape).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from feddwa.algorithms.newcomer import Newcomer, Others, fine_tuned
from feddwa.algorithms.problem import Problem
from feddwa.data.federated import FederatedData
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import grown
from feddwa.errors import InputError

__all__ = ["Algorithm", "Amount", "Info", "Numbers", "Problem"]

# What the server reports about a round. "weights" (m, m) is P; "affinity" (m, m), in some methods, is the gain of
# client i from client j. Scalar tensors are numbers of the round: metrics.jsonl stores them and `warnings` reads them.
Info = Mapping[str, Tensor]
Numbers = Mapping[str, float]  # the scalars of one round
Amount = float | str  # a number, or an expression for one


@dataclass(frozen=True)
class Algorithm:
    """Base of all algorithms: a frozen dataclass whose fields are the hyper-parameters."""

    title: ClassVar[str]  # as the literature writes it
    summary: ClassVar[str]  # one line for `feddwa list algorithms`
    kind: ClassVar[str] = "other"  # a group of `feddwa list algorithms`: see feddwa.groups
    year: ClassVar[int | None] = None  # of its paper
    order: ClassVar[float]  # position in lists, for the methods of the paper; the others follow by name
    validation: ClassVar[float] = 0.0  # share of each client's training data held out as the split "validation"
    halves: ClassVar[bool] = False  # whether training data are split into two halves, "train" and "second_half"
    global_model: ClassVar[bool] = False  # whether every client is evaluated with the server's model
    updates: ClassVar[tuple[str, ...]] = ()  # parts of downloads and memory that are differences of models
    discloses_labels: ClassVar[bool] = False  # whether the server receives every client's label counts
    stackable: ClassVar[tuple[str, ...]] = ()  # hyper-parameters whose runs may share one stack
    optimized: ClassVar[tuple[str, ...]] = ("model",)  # models that an optimiser trains: memory parts, or like w
    policies: ClassVar[tuple[str, ...]] = ("local", "mean", "all-local")  # supported BatchNorm policies
    defence: ClassVar[str] = "none"  # the server's defence unless --defence is given

    # Cost of a round with default settings, which tests compare with measured runs. A number, None (not declared) or an
    # expression in m (participants), N (clients), layers, parameters (without `network`'s), classes, features (of the
    # head) and shares of the parameters: body (below the head), batchnorm, added (`added_numbers`).
    models_down: ClassVar[Amount | None] = None  # received by each participant
    models_up: ClassVar[Amount | None] = None  # sent by each participant
    numbers_down: ClassVar[Amount] = 0  # further numbers received
    numbers_up: ClassVar[Amount] = 0
    passes: ClassVar[float | None] = None  # forward and backward over its training data; 1 for FedAvg
    body_passes: ClassVar[float] = 0  # the same, with gradients of the body alone
    probe_passes: ClassVar[float] = 0  # the same, with gradients of the head alone
    feature_passes: ClassVar[float] = 0  # forward, and backward from the features that enter its head
    head_passes: ClassVar[float] = 0  # forward and backward through the head alone
    forward_passes: ClassVar[float] = 0  # forward alone, to score models; evaluation included
    statistics_passes: ClassVar[float] = 0  # forward, plus the head's share of a forward pass for class sums
    teacher_passes: ClassVar[float] = 0  # forward alone, through a fixed model
    evaluation_passes: ClassVar[float] = 0  # forward and backward, before evaluation
    evaluation_probe_passes: ClassVar[float] = 0  # the same, with gradients of the head alone
    added_numbers: ClassVar[Amount] = 0  # exchanged parameters of the layers that `network` adds
    other_ops: ClassVar[Amount] = 0  # further multiply-adds of a client; may also use samples and steps
    server_ops: ClassVar[Amount | None] = None  # multiply-adds of the server per parameter of the network
    models_kept: ClassVar[Amount] = 0  # stored by a client between rounds
    numbers_kept: ClassVar[Amount] = 0  # further numbers stored, without BatchNorm statistics
    discloses: ClassVar[str] = ""  # what the server learns about a client, as text; the traffic gives the size
    evaluated: ClassVar[str] = ""  # which model of a client is tested before training, as text

    @classmethod
    def split(cls, data: FederatedData, rng: np.random.Generator) -> FederatedData:
        """The data with a second training split where `validation` or `halves` asks for one."""
        if cls.halves:
            return data.split_off("second_half", 0.5, rng)
        return data.split_off("validation", cls.validation, rng) if cls.validation else data

    def network(self, module: nn.Module) -> nn.Module:
        """The network that is trained: the run's own, or one with further layers of the method.

        torch's generator, which draws their initial values, is seeded from the run's key here.
        """
        return module

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The server's state, and the rows that each client stores between rounds (without BatchNorm statistics)."""
        raise NotImplementedError

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The message to each client of the cohort."""
        raise NotImplementedError

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """A client's round: the message to the server, and the new memory."""
        raise NotImplementedError

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The server's round: its new state, and what to report."""
        raise NotImplementedError

    def warnings(self, measured: Sequence[Numbers], rounds: int) -> Iterator[str]:
        """Hyper-parameters that do not fit the task, and what would: sentences without a full stop.

        `measured`: the numbers that `server` reported, from round 1 on; `rounds`: the number of rounds of the run. The
        terminal, the report and `feddwa doctor` show the result.
        """
        yield from ()

    def grow(self, server: ServerState, fresh: ServerState) -> ServerState:
        """The server's state once clients have joined; `fresh` is what `setup` makes for all of them."""
        return grown(server, fresh)

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """The message with what `personal` needs; by default the download of the next round."""
        return self.download(server, cohort)

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The models evaluated before local training, and the memory to use with them; neither is stored."""
        return self._model(download, "download", "personal"), memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The models evaluated after local training."""
        return self._model(upload, "client", "trained")

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """A model for a client that was not in the run, from at most `epochs` epochs of its training data.

        trainer: the newcomer's, with one row. The default is fine-tuning.
        """
        return fine_tuned(trainer, others, epochs)

    def _model(self, message: Message, sender: str, method: str) -> Stack:
        """The part "model" of the message from `sender`, which `method` evaluates."""
        if "model" not in message:
            why = f"{sender}() sends no part 'model', which {method}() evaluates unless the algorithm has its own"
            raise InputError(f"algorithm {type(self).__name__}: {why}")
        return message["model"]
