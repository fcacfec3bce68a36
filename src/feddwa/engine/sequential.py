"""The sequential twin: one client after another, an ordinary module, an ordinary optimiser.

This is the specification that the vectorised engine is held against, and the backend to debug with. It shares the
keyed draws with the engine (batch order, dropout masks) and nothing else: no vmap, no recording, no stacked operations.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feddwa.data.federated import Batch
from feddwa.engine import keys
from feddwa.engine.evaluate import SAMPLES_AT_ONCE, Scores, hits
from feddwa.engine.network import KeyedDropout, Loss, Objective, SGDStep, Step, task_loss, trainable
from feddwa.engine.rows import Row, Rows, State
from feddwa.engine.trainer import Engine, Schedule, Trainer


@dataclass
class PlainClient:
    """A client that is an ordinary module: it stands in for both the net of an objective and the client of a step."""

    module: nn.Module
    loss_function: Loss
    key: Tensor
    calls: int = 0

    def gradient(self, params: Row, batch: Batch, objective: Objective = task_loss, **constants: Row) -> Row:
        """The gradient by an ordinary backward pass, at parameters that need not be the module's."""
        leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
        self.backward(leaves, batch, objective, **constants)
        return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}

    def backward(self, params: Row, batch: Batch, objective: Objective, **constants: Row) -> None:
        """Leave the gradient in the parameters' `.grad`."""
        net = PlainNet(self.module, self.loss_function, keys.fold(self.key, self.calls))
        objective(net, params, batch, **constants).backward()
        self.calls += 1


@dataclass
class PlainNet:
    """The ordinary module inside an objective."""

    module: nn.Module
    loss_function: Loss
    key: Tensor
    calls: int = 0

    def __call__(self, params: Row, x: Tensor) -> Tensor:
        """Outputs for a batch (B, *shape)."""
        with KeyedDropout(keys.fold(self.key, self.calls)):
            self.calls += 1
            return torch.func.functional_call(self.module, dict(params), (x,))  # type: ignore[no-any-return]

    def loss(self, params: Row, batch: Batch) -> Tensor:
        """The task's loss, f_i in the papers."""
        return self.loss_function(self(params, batch.x), batch.y)


def load(module: nn.Module, values: Row) -> None:
    """Copy values into a module's parameters and buffers of those names."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)


def evaluate_one_by_one(engine: Engine, model: Rows, buffers: Rows, ids: Tensor, split: str = "test") -> Scores:
    """What `evaluate` computes, (m,) each, by an ordinary module: one client after another, losses sample by sample."""
    module, own = copy.deepcopy(engine.module).eval(), engine.data.splits[split]
    scores = torch.zeros(2, len(ids), dtype=torch.float64)
    for row, client in enumerate(ids.tolist()):
        load(module, {name: value[row] for name, value in buffers.items()})
        net = PlainNet(module, engine.loss, keys.key(0, "unused"))
        parameters = {name: value[row] for name, value in model.items()}
        for samples in own.index[client, : own.sizes[client]].split(SAMPLES_AT_ONCE[engine.data.device.type]):
            x, y = engine.data.batch(samples, engine.dtype)
            with torch.no_grad():
                outputs = net(parameters, x)
                losses = [engine.loss(outputs[i : i + 1], y[i : i + 1]) for i in range(len(y))]
            scores[0, row] += hits(outputs, y).sum().cpu()
            scores[1, row] += torch.stack(losses).double().sum().cpu()
    return Scores(*(scores / own.sizes[ids]))


class SequentialTrainer(Trainer):
    """Trains its rows one by one."""

    def _evaluate(self, model: Rows, buffers: Rows, split: str) -> Scores:
        return evaluate_one_by_one(self.engine, model, buffers, self.ids, split)

    def _advance(self, work: State, constants: State, schedule: Schedule) -> State:
        results = []
        for row, size in enumerate(schedule.sizes.tolist()):
            own, fixed = _row(work, row), _row(constants, row)
            draws = [(order[row, :size], noise[row]) for order, noise in schedule.orders]
            results.append(self._train_one(schedule.step, own, fixed, draws, schedule.width))
        return {
            part: {name: torch.stack([result[part][name] for result in results]) for name in rows}
            for part, rows in work.items()
        }

    def _train_one(
        self,
        step: Step,
        state: Mapping[str, Row],
        constants: Mapping[str, Row],
        draws: list[tuple[Tensor, Tensor]],
        width: int,
    ) -> Mapping[str, Row]:
        module = copy.deepcopy(self.engine.module).train()
        state = dict(state)
        load(module, state.pop("buffers"))
        if isinstance(step, SGDStep):
            load(module, state["model"])
            parameters = trainable(module)
            optimiser = torch.optim.SGD(parameters.values(), lr=step.rate)
        for order, noise in draws:
            for number, samples in enumerate(order.split(width)):
                batch = self.engine.data.batch(samples, self.engine.dtype)
                client = PlainClient(module, self.engine.loss, keys.fold(noise, number))
                if isinstance(step, SGDStep):
                    optimiser.zero_grad()
                    client.backward(parameters, batch, step.objective, **constants)
                    optimiser.step()
                else:
                    state = dict(step(client, state, batch, **constants))
        if isinstance(step, SGDStep):
            state["model"] = {name: value.detach() for name, value in parameters.items()}
        return {**state, "buffers": dict(module.named_buffers())}


def _row(state: Mapping[str, Mapping[str, Tensor]], row: int) -> dict[str, Row]:
    return {part: {name: value[row] for name, value in rows.items()} for part, rows in state.items()}
