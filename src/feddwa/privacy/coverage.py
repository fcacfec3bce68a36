"""Whether a method is covered by --dp, seen by what it does: a dry run of two rounds, in which nothing is trained.

    unit local    every part of an upload is an update of a model that was sent; nothing else is sent
    unit client   besides, the server's step is a function of the updates' mean, and what it sends is for all alike
    unit sample   samples are used by gradients alone, one to a batch, and not by `personal`; equally often in any round

A method that is not is refused before the run, with the reason.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from feddwa.algorithms import Algorithm
from feddwa.batchnorm import BatchNormPolicy, batchnorm_layers
from feddwa.engine import Cohort, Engine, Memory, Message, Parts, ServerState, Stack, Trainer
from feddwa.engine.engine import Schedule
from feddwa.engine.network import Statistic
from feddwa.engine.private import plain, refuse
from feddwa.engine.rows import take_parts, tensors
from feddwa.engine.steps import named
from feddwa.errors import InputError
from feddwa.options.privacy import Privacy
from feddwa.privacy.mechanism import uncovered

ROUNDS = (1, 2)  # in which a method is looked at: its first one may be different
SAME = 1e-9  # relative difference of states that are the same, rounding apart


@dataclass
class DryTrainer(Trainer):
    """Trains nothing: what goes in comes out. A private step is made once, on one sample, for what it may refuse."""

    def losses(self, model: Stack, memory: Memory, split: str = "validation") -> Tensor:
        """See Trainer: zeros."""
        refuse(self.engine.settings, "measures losses")
        return torch.zeros(len(self.ids), dtype=torch.float64)

    def _run(
        self,
        schedule: Schedule,
        state: Parts,
        memory: Memory,
        constants: Parts,
        name: str = "model",
        continued: bool = False,
    ) -> tuple[Parts, Memory]:
        if self.engine.settings.private is not None:
            slots = self._optimizer_states(plain(schedule.step), state, memory, name, continued)
            self._trained |= {name if part == "model" else part: own for part, own in slots.items()}
            own = {key: stack for part, parts in slots.items() for key, stack in named(part, parts).items()}
            self._step_flops(schedule.step, {**state, **own, "buffers": memory["buffers"]}, constants, 1)
        return state, memory


@dataclass
class MarkedTrainer(DryTrainer):
    """Marks what is counted or measured on samples by NaN, so that it can be seen where it goes."""

    def losses(self, model: Stack, memory: Memory, split: str = "validation") -> Tensor:
        """See Trainer."""
        return super().losses(model, memory, split) * torch.nan

    def sums(self, statistic: Statistic, model: Stack, memory: Memory, split: str = "train", **fixed: Stack) -> Stack:
        """See Trainer."""
        found = super().sums(statistic, model, memory, split, **fixed)
        return {name: value * torch.nan for name, value in found.items()}

    def steps(self) -> Tensor:
        """See Trainer: they tell the number of samples."""
        return super().steps() * torch.nan


@dataclass
class DryRun:
    """What a method does in its first rounds, of everybody."""

    algorithm: Algorithm
    batchnorm: BatchNormPolicy
    engine: Engine
    server: ServerState  # before the first round, and then before the last
    memory: Memory
    cohort: Cohort  # everybody
    upload: Message = field(default_factory=dict)  # (N, ...) of the last round
    download: Message = field(default_factory=dict)  # (N, ...) of it
    steps: dict[str, Tensor] = field(default_factory=dict)  # split -> (N,) of a round, at most, where they are private
    uncovered: str | None = None  # a part of an upload that is no update
    statistics: set[str] = field(default_factory=set)  # parts of uploads that are counted or measured on samples

    def __post_init__(self) -> None:
        new = self.server
        for round in ROUNDS:
            self.server, self.cohort = new, replace(self.cohort, round=round)
            self._mark()
            self._clients()
            new, _ = self.algorithm.server(self.server, self.cohort, self.upload)
            new = self.batchnorm.collect(self.server, new, self.cohort, self.upload)

    def _mark(self) -> None:
        trainer = MarkedTrainer(self.engine, self.cohort.ids, self.cohort.round)
        sent = self.batchnorm.send(self.server, self.algorithm.download(self.server, self.cohort))
        upload, _ = self.algorithm.client(trainer, *self.batchnorm.receive(sent, self.memory))
        marked = {part for part, rows in upload.items() if any(bool(value.isnan().any()) for value in rows.values())}
        self.statistics |= marked

    def _clients(self) -> None:
        algorithm, policy = self.algorithm, self.batchnorm
        trainer, evaluating = (DryTrainer(self.engine, self.cohort.ids, self.cohort.round) for _ in range(2))
        evaluating.accounted = False
        delivered = policy.send(self.server, algorithm.deliver(self.server, self.cohort))
        algorithm.personal(evaluating, *policy.receive(delivered, self.memory))
        self.download = policy.send(self.server, algorithm.download(self.server, self.cohort))
        upload, memory = algorithm.client(trainer, *policy.receive(self.download, self.memory))
        self.upload, self.memory = policy.reply(upload, memory, algorithm.trained(upload, memory))
        self.uncovered = self.uncovered or uncovered(self.upload, self.download, algorithm.updates)
        for split, made in trainer.private_steps.items():
            self.steps[split] = made.maximum(self.steps.get(split, made))

    @property
    def nothing(self) -> Message:
        """The upload of nobody: (0, ...)."""
        return take_parts(self.upload, torch.arange(0))

    @property
    def title(self) -> str:
        """The method's name."""
        return getattr(self.algorithm, "title", type(self.algorithm).__name__)

    def check_disclosed(self) -> None:
        """Raise InputError where clients send label counts or what tells their number of samples or classes."""
        refuse_disclosed("--disclose none", self.algorithm)
        if self.statistics:
            sent = ", ".join(map(repr, sorted(self.statistics)))
            raise InputError(f"--disclose none: {self.title} sends {sent}, statistics of each client's samples")

    def check(self, privacy: Privacy) -> None:
        """Raise InputError unless the method is covered."""
        option = f"--dp unit={privacy.unit}"
        if privacy.unit == "sample":
            if batchnorm_layers(self.engine.module):
                why = "BatchNorm makes a sample's gradient depend on others; take a network with GroupNorm or without"
                raise InputError(f"{option}: {why}")
            return
        refuse_disclosed(option, self.algorithm)
        if self.uncovered:
            what = f"{self.title} sends {self.uncovered!r}, which is no update of a model that was sent to all of them"
            raise InputError(f"{option}: {what}, so that it cannot be clipped; take unit=sample")
        if privacy.unit == "client":
            own = "which noise on the mean does not cover; take unit=sample or local"
            if not all(bool((value == value[:1]).all()) for _, value in tensors(self.download)):
                raise InputError(f"{option}: {self.title} sends every client a model of its own, {own}")
            if any(self.upload.values()) and not self._of_mean():
                raise InputError(f"{option}: {self.title}'s server uses more of the updates than their mean, {own}")

    def _of_mean(self) -> bool:
        """Whether the server's step is the same with one client, whose upload is the mean of all."""
        generator, first = torch.Generator().manual_seed(0), torch.zeros(1, dtype=torch.int64)
        many = replace(self.cohort, sizes=torch.ones_like(self.cohort.sizes))
        uploads = {
            part: {name: value.double() + _drawn(value, generator) for name, value in rows.items()}
            for part, rows in self.upload.items()
        }
        mean = {part: {name: own.mean(0, keepdim=True) for name, own in rows.items()} for part, rows in uploads.items()}
        server = {part: {name: _wide(value) for name, value in rows.items()} for part, rows in self.server.items()}
        pairs = (many, uploads), (many.only(first), mean)
        several, alone = (self.algorithm.server(server, *pair)[0] for pair in pairs)
        flat = dict(tensors(alone))
        return all(
            flat[name].shape == value.shape and torch.allclose(value.double(), flat[name].double(), SAME, SAME)
            for name, value in tensors(several)
        )


def refuse_disclosed(option: str, algorithm: Algorithm) -> None:
    """Raise where a method's server is told label counts."""
    if algorithm.discloses_labels:
        title = getattr(algorithm, "title", type(algorithm).__name__)
        raise InputError(f"{option}: {title} needs every client's label counts, which are withheld")


def _drawn(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value
