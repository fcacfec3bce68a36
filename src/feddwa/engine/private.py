"""Gradients that are private sample by sample (DP-SGD: Abadi et al., CCS 2016), as one more axis of the client's step.

    g = (sum_s min(1, C / ||g_s||) g_s + z C N(0, 1)) / b        s: samples of a Poisson batch, b: their expected number

Every step of every algorithm asks its client for gradients, so the client makes them private. It gives the step a batch
that cannot be read, and answers once per batch; any other use of the batch is refused.

Batches differ in size from step to step. They are padded to the largest batch of a training (`PADDING` in place of a
sample's number), and padding does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from feddwa.data.federated import Batch, FederatedData, NetworkInput
from feddwa.engine import keys
from feddwa.engine.functions import KeyedFunctions
from feddwa.engine.network import FunctionalClient, Objective, ObjectiveWithAux, Step, task_loss, without_aux
from feddwa.engine.numbers import Number
from feddwa.engine.types import Model, Parts, Stack, StepState
from feddwa.errors import InputError

PADDING = -(2**62)  # stays negative when an offset is added to sample numbers
NOISE = 2**40  # index of the noise among a step's draws
MULTIPLE = 8  # padded batch sizes are multiples of it: fewer shapes
OWN = "sample privacy"  # the constants' part of the private step itself, not of the step inside it
ROOM = 1e-12  # added to norms


@dataclass(frozen=True)
class SamplePrivacy:
    """Differential privacy of single samples in local training."""

    clip: float  # C
    multipliers: tuple[float, ...]  # z of each of the N clients
    steps: Mapping[str, tuple[int, ...]] | None = (
        None  # split -> steps of a round that the accountant covers; None: all
    )

    def constants(self, ids: Tensor, expected: Tensor, device: torch.device) -> Parts:
        """A private step's constants of each client, (m,) each. expected: (m,) samples per batch."""
        noise = torch.tensor([self.multipliers[client] for client in ids.tolist()], dtype=torch.float64)
        return {OWN: {"noise": noise.to(device), "expected": expected.double().to(device)}}


class Counted(NamedTuple):
    """The samples of a padded batch."""

    x: NetworkInput
    y: Tensor
    counted: Tensor  # (..., B) bool

    @classmethod
    def at(cls, data: FederatedData, index: Tensor, dtype: torch.dtype) -> "Counted":
        """The samples with these numbers (..., B), some of which are PADDING."""
        batch = data.batch(index.clamp(min=0), dtype)
        return cls(batch.x, batch.y, index >= 0)


class Sealed:
    """A batch that a step can only pass on to its client."""

    def __getattr__(self, name: str) -> Any:
        raise refused("reads its samples outside of a gradient")


def refused(what: str) -> InputError:
    """The error for an algorithm whose use of data is not private."""
    return InputError(f"--dp unit=sample: this algorithm's training {what}, which the noise does not cover")


def refuse(settings: Any, what: str) -> None:
    """Raise if training is private and the algorithm does something that the noise does not cover."""
    if settings.private is not None:
        raise refused(what)


@dataclass(frozen=True)
class PrivateStep:
    """A step whose gradients are private."""

    step: Step
    clip: Number

    def __call__(
        self, client: FunctionalClient, state: StepState, batch: Batch | Counted, **constants: Model
    ) -> StepState:
        """The state after the step."""
        private = constants.pop(OWN)
        everything = torch.ones(batch.y.shape[:1], dtype=torch.bool, device=batch.y.device)
        whole = batch if isinstance(batch, Counted) else Counted(batch.x, batch.y, everything)
        return self.step(PrivateClient(client, self.clip, private, whole), state, Sealed(), **constants)


def plain(step: Step) -> Step:
    """The step inside a private one; any other step unchanged."""
    return step.step if isinstance(step, PrivateStep) else step


@dataclass
class PrivateGradients:
    """The shared part of private clients in both backends."""

    clip: Number
    private: Model  # noise: z, expected: b
    batch: Counted = field(repr=False)
    asked: bool = field(init=False, default=False)

    def gradient(self, params: Model, batch: Sealed, objective: Objective = task_loss, **constants: Model) -> Model:
        """See Client."""
        return self.gradient_and_aux(params, batch, without_aux(objective), **constants)[0]

    def gradient_and_aux(
        self, params: Model, batch: Sealed, objective: ObjectiveWithAux, **constants: Model
    ) -> tuple[Model, Model]:
        """See Client. There is no aux."""
        if self.asked:
            raise refused("differentiates a batch more than once")
        if not isinstance(batch, Sealed):
            raise refused("makes its own batches")
        self.asked = True
        return self._private(params, objective, constants), Model({})

    def evaluate(self, *_: Any, **__: Any) -> Model:
        """See Client."""
        raise refused("evaluates its samples outside of a gradient")

    def _private(self, params: Model, objective: ObjectiveWithAux, constants: Mapping[str, Model]) -> Model:
        raise NotImplementedError


class PrivateClient(PrivateGradients):
    """A client under `torch.func`."""

    def __init__(self, inner: FunctionalClient, clip: Number, private: Model, batch: Counted) -> None:
        super().__init__(clip, private, batch)
        self.inner = inner

    @property
    def module(self) -> nn.Module:
        """See Client."""
        return self.inner.module

    def _private(self, params: Model, objective: ObjectiveWithAux, constants: Mapping[str, Model]) -> Model:
        def one(x: NetworkInput, y: Tensor, number: Tensor) -> Model:
            own = replace(self.inner, key=keys.fold(self.inner.key, number), functions=KeyedFunctions)
            alone = x.unsqueeze(0) if isinstance(x, Tensor) else {name: value.unsqueeze(0) for name, value in x.items()}
            return without_extra(own.gradient_and_aux(params, Batch(alone, y.unsqueeze(0)), objective, **constants))

        numbers = torch.arange(len(self.batch.y), device=self.batch.y.device)
        each: Stack = torch.vmap(one)(self.batch.x, self.batch.y, numbers)
        squares = [value.flatten(1).double().square().sum(1) for value in each.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        factors = (self.clip / (norms + ROOM)).clamp(max=1.0)
        counts = self.batch.counted & norms.isfinite()
        total = {name: _sum(counts, factors, value) for name, value in each.items()}
        return noised(Model(total), self.inner.key, self.clip, self.private)


def without_extra(found: tuple[Model, Model]) -> Model:
    """The gradient from (gradient, aux); aux must be empty."""
    gradient, aux = found
    if aux:
        raise refused("uses more of its samples than a gradient")
    return gradient


def noised(total: Model, key: Tensor, clip: Number, private: Model) -> Model:
    """The private gradient from the sum of clipped gradients."""
    key, deviation = keys.fold(key, NOISE), private["noise"] * clip
    new = {}
    for place, (name, value) in enumerate(total.items()):
        noise = keys.normal(keys.fold(key, place), value.shape)
        new[name] = ((value.double() + deviation * noise) / private["expected"]).to(value.dtype)
    return Model(new)


def _sum(counts: Tensor, factors: Tensor, value: Tensor) -> Tensor:
    """The sum over samples of factors (B,) times value (B, *shape), without padding."""
    shape = (-1, *[1] * (value.ndim - 1))
    return torch.where(counts.reshape(shape), value * factors.to(value.dtype).reshape(shape), 0.0).sum(0)
