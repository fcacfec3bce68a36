"""The sequential twin: one client after another, with an ordinary module and an ordinary optimiser.

It is the executable specification of the vectorised engine, and the backend for debugging. It shares the keyed draws
with the engine (batch order, dropout masks) and nothing else: no vmap, no recording, no stacked operations.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from feddwa.data.federated import Batch, NetworkInput, answers
from feddwa.engine import augment, keys, torch_optimizers
from feddwa.engine.engine import Engine, Schedule
from feddwa.engine.evaluate import NOTHING, Metrics, Scores, measured
from feddwa.engine.functions import KeyedFunctions
from feddwa.engine.network import (
    Loss,
    Objective,
    ObjectiveWithAux,
    Statistic,
    Step,
    call,
    evaluation_mode,
    task_loss,
    trainable,
    without_aux,
)
from feddwa.engine.numbers import Number
from feddwa.engine.private import OWN, ROOM, Counted, PrivateGradients, PrivateStep, Sealed, noised, without_extra
from feddwa.engine.rows import row, row_of_parts
from feddwa.engine.score import hits, samples_at_once
from feddwa.engine.steps import OptimizerStep, SGDStep, named, state_of, with_optimizer
from feddwa.engine.torch_optimizers import TorchOptimizer
from feddwa.engine.trainer import Trainer
from feddwa.engine.types import Model, Parts, Stack, StepState


@dataclass
class PlainClient:
    """A client with an ordinary module."""

    module: nn.Module
    loss_function: Loss
    key: Tensor
    calls: int = 0

    def gradient(self, params: Model, batch: Batch, objective: Objective = task_loss, **constants: Model) -> Model:
        """The gradient by an ordinary backward pass, at parameters that may differ from the module's."""
        return self.gradient_and_aux(params, batch, without_aux(objective), **constants)[0]

    def gradient_and_aux(
        self, params: Model, batch: Batch, objective: ObjectiveWithAux, **constants: Model
    ) -> tuple[Model, Model]:
        """See Client."""
        leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
        aux = self._backward(Model(leaves), batch, objective, **constants)
        found = {n: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for n, leaf in leaves.items()}
        return Model(found), Model({name: value.detach() for name, value in aux.items()})

    def evaluate(self, params: Model, batch: Batch, statistic: Statistic, **constants: Model) -> Model:
        """See Client."""
        net = PlainNet(self.module, self.loss_function, self.key)
        with torch.no_grad(), evaluation_mode(self.module):
            return statistic(net, params, batch, **constants)

    def backward(self, params: Model, batch: Batch, objective: Objective, **constants: Model) -> None:
        """Leave the gradient in the parameters' `.grad`."""
        self._backward(params, batch, without_aux(objective), **constants)

    def _backward(self, params: Model, batch: Batch, objective: ObjectiveWithAux, **constants: Model) -> Model:
        """The same for an objective that returns (loss, aux); returns aux."""
        net = PlainNet(self.module, self.loss_function, keys.fold(self.key, self.calls))
        loss, aux = objective(net, params, batch, **constants)
        loss.backward()
        self.calls += 1
        return aux


@dataclass
class PlainNet:
    """The ordinary module inside an objective."""

    module: nn.Module
    loss_function: Loss
    key: Tensor
    calls: int = 0

    def __call__(self, params: Model, x: NetworkInput) -> Tensor:
        """Outputs for a batch (B, *shape)."""
        with KeyedFunctions(keys.fold(self.key, self.calls), self.module.training):
            self.calls += 1
            return call(self.module, dict(params), x)

    def loss(self, params: Model, batch: Batch) -> Tensor:
        """The task's loss, f_i in the papers."""
        return self.loss_function(self(params, batch.x), batch.y)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(B,): the loss of each sample's outputs (B, ...)."""
        return losses_one_by_one(self.loss_function, outputs, targets)

    def aside(self) -> "PlainNet":
        """A copy for passes that do not change the module's BatchNorm statistics."""
        return replace(self, module=copy.deepcopy(self.module))


def losses_one_by_one(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """(B,): the loss of each sample separately, for outputs and targets (B, ...)."""
    return torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])


def load(module: nn.Module, values: Model) -> None:
    """Copy values into a module's parameters and buffers of those names."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)


def evaluate_one_by_one(
    engine: Engine, model: Stack, buffers: Stack, ids: Tensor, split: str = "test", metrics: Metrics = NOTHING
) -> Scores:
    """The same as `evaluate`, (m,) each, by an ordinary module: client after client, losses sample by sample."""
    module, own = copy.deepcopy(engine.module).eval(), engine.data.splits[split]
    sums, seen = torch.zeros(3, len(ids), dtype=torch.float64), [list[Tensor]() for _ in ids]
    for number, client in enumerate(ids.tolist()):
        load(module, row(buffers, number))
        net, parameters = PlainNet(module, engine.loss, keys.key(0, "unused")), row(model, number)
        for samples in own.index[client, : own.sizes[client]].split(samples_at_once(engine.data)):
            x, y = engine.data.batch(samples, engine.dtype)
            with torch.no_grad():
                outputs = net(parameters, x)
                losses = losses_one_by_one(engine.loss, outputs, y)
            wanted = answers(y)
            found = hits(engine.loss, outputs, y), (losses.double() * wanted)[wanted > 0], wanted
            sums[:, number] += torch.stack([values.sum() for values in found]).cpu()
            seen[number] += [outputs] * bool(metrics)
    accuracy, loss = sums[:2] / sums[2]
    return Scores(accuracy, loss, measured(engine, metrics, seen, ids, split))


class SequentialTrainer(Trainer):
    """Trains its rows one by one."""

    def _evaluate(self, model: Stack, buffers: Stack, split: str) -> Scores:
        return evaluate_one_by_one(self.engine, model, buffers, self.ids, split)

    def _step_flops(self, step: Step, state: Parts, constants: Parts, samples: int) -> int:
        try:
            return super()._step_flops(step, state, constants, samples)
        except RuntimeError:  # torch.func cannot differentiate a PackedSequence, for example

            def client() -> PlainClient:
                module = copy.deepcopy(self.engine.module).train()
                load(module, row(state["buffers"], 0))
                return PlainClient(module, self.engine.loss, keys.key(0, "flops"))

            return self.engine.flops_of(client, step, state, constants, samples)

    def _advance(self, work: Parts, constants: Parts, schedule: Schedule) -> Parts:
        clients = [
            self._train_one(row_of_parts(work, number), row_of_parts(constants, number), schedule, number)
            for number in range(schedule.rows)
        ]
        return {
            part: {name: torch.stack([client[part][name] for client in clients]) for name in stack}
            for part, stack in work.items()
        }

    def _train_one(self, state: dict[str, Model], constants: StepState, schedule: Schedule, number: int) -> StepState:
        """Row `number` after all epochs of the schedule."""
        module, step = copy.deepcopy(self.engine.module).train(), schedule.step
        load(module, state.pop("buffers"))
        batches = self._batches(module, schedule, number)
        if isinstance(step, PrivateStep):
            return {**_privately(step, state, constants, batches), "buffers": _buffers(module)}
        if isinstance(step, SGDStep):
            return {**_sgd(module, step, state, constants, batches), "buffers": _buffers(module)}
        if isinstance(step, OptimizerStep):
            step = with_optimizer(step, TorchOptimizer(like=step.optimizer))
        for client, batch in batches:
            state = dict(step(client, state, batch, **constants))
        return {**state, "buffers": _buffers(module)}

    def _batches(self, module: nn.Module, schedule: Schedule, number: int) -> Iterator[tuple[PlainClient, Batch]]:
        """The batches of row `number` in order, each with a client whose dropout uses the batch's key."""
        for epoch in schedule.epochs:
            own = epoch.order[number, : epoch.sizes[number]]
            for count, padded in enumerate(own.split(schedule.width) if len(own) else ()):
                samples = padded[padded >= 0]
                key = keys.fold(epoch.noise[number], count)
                batch = self.engine.data.batch(samples, self.engine.dtype)
                if schedule.augment and isinstance(batch.x, Tensor):
                    black = self.engine.data.black(self.engine.dtype)
                    batch = batch._replace(x=augment.plain(schedule.augment, batch.x, black, key))
                yield PlainClient(module, self.engine.loss, key), batch


def _sgd(
    module: nn.Module,
    step: SGDStep,
    state: StepState,
    constants: StepState,
    batches: Iterator[tuple[PlainClient, Batch]],
) -> StepState:
    """The model and its optimiser's state after a step of torch's own optimiser for every batch.

    Parameters missing from the model are constants.
    """
    load(module, state["model"])
    parameters = {name: value for name, value in trainable(module).items() if name in state["model"]}
    own = state_of(state, "model")
    optimiser = torch_optimizers.make(step.optimizer, parameters, float(step.rate))
    torch_optimizers.load(optimiser, parameters, own)
    for client, batch in batches:
        optimiser.zero_grad()
        client.backward(Model(parameters), batch, step.objective, **constants)
        if step.optimizer.clip:
            nn.utils.clip_grad_norm_(parameters.values(), float(step.optimizer.clip))
        optimiser.step()
    model = Model({name: value.detach() for name, value in parameters.items()})
    return {"model": model, **named("model", torch_optimizers.read(optimiser, parameters, own))}


def _privately(
    step: PrivateStep, state: StepState, constants: StepState, batches: Iterator[tuple[PlainClient, Batch]]
) -> StepState:
    """The state after a private step for every batch."""
    inner, constants = step.step, dict(constants)
    if isinstance(inner, OptimizerStep):
        inner = with_optimizer(inner, TorchOptimizer(like=inner.optimizer))
    private = constants.pop(OWN)
    for client, batch in batches:
        everything = Counted(batch.x, batch.y, torch.ones(len(batch.y), dtype=torch.bool))
        state = dict(inner(PlainPrivateClient(client, step.clip, private, everything), state, Sealed(), **constants))
    return state


class PlainPrivateClient(PrivateGradients):
    """A client whose gradients are private: a backward pass for every sample."""

    def __init__(self, inner: PlainClient, clip: Number, private: Model, batch: Counted) -> None:
        super().__init__(clip, private, batch)
        self.inner, self.module = inner, inner.module

    def _private(self, params: Model, objective: ObjectiveWithAux, constants: Mapping[str, Model]) -> Model:
        total = {name: torch.zeros_like(value) for name, value in params.items()}
        count = len(self.batch.y)
        for number, sample in enumerate(Batch(self.batch.x, self.batch.y).pieces(count) if count else ()):
            own = replace(self.inner, key=keys.fold(self.inner.key, number))
            found = without_extra(own.gradient_and_aux(params, sample, objective, **constants))
            norm = torch.linalg.vector_norm(torch.cat([value.flatten().double() for value in found.values()]))
            if norm.isfinite():
                factor = min(1.0, float(self.clip) / (float(norm) + ROOM))
                total = {name: value + factor * found[name] for name, value in total.items()}
        return noised(Model(total), self.inner.key, self.clip, self.private)


def _buffers(module: nn.Module) -> Model:
    return Model(dict(module.named_buffers()))
