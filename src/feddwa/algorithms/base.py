"""The one interface of all algorithms: what a client does to its row, and how the server mixes rows.

Both sides are written once, against a leading client axis. The client side never sees another client's row, the server
side never sees data. Everything that crosses between them is a message, a mapping part -> name -> (m, *shape).
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

# What the server reports of a round. "weights" (m, m) is P; "affinity" (m, m), in some: how much client i should gain
# from client j. Tensors of no dimension are numbers of the round: metrics.jsonl keeps them, `warnings` judges by them.
Info = Mapping[str, Tensor]
Numbers = Mapping[str, float]  # those of one round
Amount = float | str  # a number, or an expression that has one


@dataclass(frozen=True)
class Algorithm:
    """Base of all algorithms: a frozen dataclass whose fields are the hyper-parameters."""

    title: ClassVar[str]  # as the literature writes it
    summary: ClassVar[str]  # one line for `feddwa list algorithms`
    kind: ClassVar[str] = "other"  # a group of `feddwa list algorithms`: see feddwa.groups
    year: ClassVar[int | None] = None  # of its paper
    order: ClassVar[float]  # place in lists, for the methods of the paper; the others follow by name
    validation: ClassVar[float] = 0.0  # share of each client's training data held out as the split "validation"
    halves: ClassVar[bool] = False  # whether training data are two halves, the splits "train" and "second_half"
    global_model: ClassVar[bool] = False  # whether every client is evaluated with the same model, the server's
    updates: ClassVar[tuple[str, ...]] = ()  # parts of downloads and memory: differences of models
    discloses_labels: ClassVar[bool] = False  # whether the server is told every client's label counts
    stackable: ClassVar[tuple[str, ...]] = ()  # hyper-parameters whose runs may share one stack
    optimized: ClassVar[tuple[str, ...]] = ("model",)  # models that an optimiser moves: parts of memory, or like w
    policies: ClassVar[tuple[str, ...]] = ("local", "mean", "all-local")  # BatchNorm policies that make sense for it
    defence: ClassVar[str] = "none"  # what its server does about hostile clients where --defence says nothing

    # What a round costs by default, for lists; tests compare it with measured runs. A number, None (not declared) or an
    # expression in m (participants), N (clients), layers, parameters (without `network`'s), classes, features (of the
    # head), and shares of the parameters: body (below the head), batchnorm, added (`added_numbers`).
    models_down: ClassVar[Amount | None] = None  # that a participating client receives
    models_up: ClassVar[Amount | None] = None  # that it sends
    numbers_down: ClassVar[Amount] = 0  # that it receives besides
    numbers_up: ClassVar[Amount] = 0
    passes: ClassVar[float | None] = None  # forward and backward over its training data; FedAvg's are 1
    body_passes: ClassVar[float] = 0  # the same, with gradients of the body alone
    probe_passes: ClassVar[float] = 0  # the same, with gradients of the head alone
    feature_passes: ClassVar[float] = 0  # forward, and backward from the features that its head makes outputs of
    head_passes: ClassVar[float] = 0  # forward and backward through the head alone
    forward_passes: ClassVar[float] = 0  # forward alone, to validate models; in evaluation as well
    statistics_passes: ClassVar[float] = 0  # forward alone, and as much as the head's share of it again, for class sums
    teacher_passes: ClassVar[float] = 0  # forward alone, through a model that does not move
    evaluation_passes: ClassVar[float] = 0  # forward and backward, before its model is evaluated
    evaluation_probe_passes: ClassVar[float] = 0  # the same, with gradients of the head alone
    added_numbers: ClassVar[Amount] = 0  # parameters of the layers that `network` adds, as far as they are exchanged
    other_ops: ClassVar[Amount] = 0  # multiply-adds of a client besides its passes; in terms of samples and steps, too
    server_ops: ClassVar[Amount | None] = None  # multiply-adds of the server for every parameter of the network
    models_kept: ClassVar[Amount] = 0  # that a client stores between rounds
    numbers_kept: ClassVar[Amount] = 0  # that it stores besides, BatchNorm statistics apart
    discloses: ClassVar[str] = ""  # what the server learns of a client, in words; traffic says how much that is
    evaluated: ClassVar[str] = ""  # which model of a client is tested before training, in words

    @classmethod
    def split(cls, data: FederatedData, rng: np.random.Generator) -> FederatedData:
        """The data with a second training split where the method declares one, by `validation` or `halves`."""
        if cls.halves:
            return data.split_off("second_half", 0.5, rng)
        return data.split_off("validation", cls.validation, rng) if cls.validation else data

    def network(self, module: nn.Module) -> nn.Module:
        """The network that is trained: that of the run itself, or another one with layers of the method's own besides.

        torch's generator, from which their initial values come, has a key of the run here.
        """
        return module

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The server's state, and what each client remembers between rounds (rows) besides BatchNorm statistics."""
        raise NotImplementedError

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The message to each client of the cohort."""
        raise NotImplementedError

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """A client's round: the message to the server, and the new memory."""
        raise NotImplementedError

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The server's round: its new state, and what there is to report."""
        raise NotImplementedError

    def warnings(self, measured: Sequence[Numbers], rounds: int) -> Iterator[str]:
        """Where the hyper-parameters do not fit the task, and what would: sentences without a full stop.

        `measured`: the numbers that `server` has reported, from round 1 on; `rounds`: how many the run has in all. The
        terminal, the report and `feddwa doctor` tell what this finds.
        """
        yield from ()

    def grow(self, server: ServerState, fresh: ServerState) -> ServerState:
        """The server's state once clients have joined; `fresh` is what `setup` makes for all of them."""
        return grown(server, fresh)

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """The message that brings clients what `personal` needs: as a rule the download of the coming round."""
        return self.download(server, cohort)

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The models that are evaluated before local training, and the memory to use with them; neither is kept."""
        return self._model(download, "download", "personal"), memory

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The models that are evaluated after local training."""
        return self._model(upload, "client", "trained")

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """A model for a client that was not in the run, made with at most so many epochs of its training data.

        trainer: of the newcomer, the one row that it has. Where a method has no way of its own: fine-tuning.
        """
        return fine_tuned(trainer, others, epochs)

    def _model(self, message: Message, sender: str, method: str) -> Stack:
        """The part "model" of the message that `sender` made, for `method` to evaluate."""
        if "model" not in message:
            why = f"{sender}() sends no part 'model', which {method}() evaluates unless the algorithm has its own"
            raise InputError(f"algorithm {type(self).__name__}: {why}")
        return message["model"]
