"""Training rows on their own clients' data: the engine, and the trainer that the client side of an algorithm holds."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from feddwa.data.federated import Batch, FederatedData
from feddwa.engine import keys
from feddwa.engine.evaluate import Scores, evaluate
from feddwa.engine.fast.program import Flat, Program
from feddwa.engine.fast.record import RecordedFunction
from feddwa.engine.memory import keep_freed_pages
from feddwa.engine.network import (
    FunctionalClient,
    Loss,
    Net,
    Objective,
    SGDStep,
    Step,
    frozen,
    label_loss,
    task_loss,
    trainable,
)
from feddwa.engine.rows import Row, Rows, State, count, repeat, take

Layout = tuple[tuple[str, tuple[str, ...]], ...]  # part -> names, in the order of the flat tensors
# Batch order of a split's epoch is keyed by purpose and split. Published runs drew the second half's as "validation".
STREAMS = {"second_half": "validation"}


@dataclass(frozen=True)
class Settings:
    """The local training that all algorithms share (plain SGD, no momentum, no decay)."""

    epochs: int = 1
    batch_size: int = 20
    lr: float = 0.01


@dataclass(frozen=True)
class Schedule:
    """What rows are to do: which step, on which samples, in which order."""

    step: Step
    orders: list[tuple[Tensor, Tensor]]  # an epoch: rows of the dataset (m, longest) and noise keys (m,)
    sizes: Tensor  # (m,) samples of each row's epoch, on the CPU
    width: int  # batch size


@dataclass
class Engine:
    """Everything that stays the same from round to round: network, data, settings, compiled programs."""

    module: nn.Module  # the architecture and its frozen parameters; the trainable ones are rows, given at every call
    data: FederatedData
    settings: Settings
    seed: int = 0
    loss: Loss = F.cross_entropy
    dtype: torch.dtype = torch.float32
    tensor_cores: bool = False  # whether a GPU may round the factors of float32 products to TensorFloat-32
    lockstep: int = 1  # federations that train in lockstep and share the memory
    programs: dict[object, Program] = field(default_factory=dict)
    scorers: dict[object, RecordedFunction] = field(default_factory=dict)
    flops: dict[object, int] = field(default_factory=dict)
    mapped_loss: Loss = field(init=False)  # the loss in the form in which it is mapped over rows

    def __post_init__(self) -> None:
        self.module = self.module.to(self.data.device, self.dtype)
        self.mapped_loss = label_loss if self.loss is F.cross_entropy and self.data.labelled else self.loss
        if self.data.device.type == "cpu":
            keep_freed_pages()
            # where a CPU has no bfloat16, oneDNN fails, whereupon PyTorch leaves it for good: runs to come would differ
            torch.backends.mkldnn.enabled = self.dtype != torch.bfloat16 or _has_bfloat16()  # type: ignore[assignment]
        else:  # the sequential twin's convolutions round as the stacked ones do, whose products `products` rules
            torch.backends.cudnn.allow_tf32 = self.tensor_cores

    def trainer(self, ids: Tensor, round: int) -> "Trainer":
        """The trainer of these clients in this round."""
        return Trainer(self, ids, round)

    def initial(self) -> tuple[Row, Row]:
        """Trainable parameters and buffers of the module as it was made."""
        parameters = {name: value.detach().clone() for name, value in trainable(self.module).items()}
        return parameters, {name: value.detach().clone() for name, value in self.module.named_buffers()}

    def complete(self, model: Rows) -> Rows:
        """Models (m, *shape) with the frozen parameters, which all rows share, in the order of the module."""
        whole = {**repeat(frozen(self.module), count(model)), **model}
        return {name: whole[name] for name, _ in self.module.named_parameters()}

    def advance(self, work: State, constants: State, schedule: Schedule) -> State:
        """Rows after all epochs of a schedule, vectorised. They stand in order of their number of full batches, so that
        the clients still at work are always the first a rows: one that has finished costs nothing."""
        sizes, width = schedule.sizes, schedule.width
        by_length = torch.argsort(sizes // width, descending=True, stable=True)
        sorted_already = bool((by_length == torch.arange(len(sizes))).all())
        pick = (lambda rows: rows) if sorted_already else (lambda rows: take(rows, by_length))
        work = {part: pick(rows) for part, rows in work.items()}
        fixed = {part: rows if _shared(rows) else pick(rows) for part, rows in constants.items()}
        program = self._program(schedule.step, work, fixed)
        program.load(_flatten(work), _flatten(fixed))
        self.module.train()
        with self.products():
            for index, noise in schedule.orders:
                place = by_length.to(index.device)
                for rows, samples, key in calls(index[place], noise[place], sizes[by_length].tolist(), width):
                    program.run(rows, samples, key)
        new = _unflatten(program.read(len(sizes)), _layout(work))
        back = torch.argsort(by_length)
        return new if sorted_already else {part: take(rows, back) for part, rows in new.items()}

    @contextlib.contextmanager
    def products(self) -> Iterator[None]:
        """Matrix products of networks on tensor cores or not; the server's products keep all their digits."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tensor_cores else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def _program(self, step: Step, work: State, constants: State) -> Program:
        layout, fixed = _layout(work), _layout(constants)
        known = (step, layout, fixed)
        if known not in self.programs:
            self.programs[known] = Program(_Vectorised(self, step, layout, fixed))
        return self.programs[known]

    def step_flops(self, step: Step, state: Mapping[str, Row], constants: Mapping[str, Row], samples: int) -> int:
        """FLOPs of one client's step on a batch, as `torch.utils.flop_counter` counts them (2 per multiply-add)."""
        known = (step, samples)
        if known not in self.flops:
            index = self.data.splits["train"].index[0, :1].expand(samples)
            batch, parts = self.data.batch(index, self.dtype), dict(state)
            buffers = parts.pop("buffers")
            with FlopCounterMode(display=False) as counter:
                client = FunctionalClient(self.module.train(), self.loss, buffers, keys.key(0, "flops"))
                step(client, parts, batch, **constants)
            self.flops[known] = counter.get_total_flops()
        return self.flops[known]

    def forward_flops(self, model: Row, buffers: Row) -> int:
        """FLOPs of the outputs for one sample."""
        if "forward" not in self.flops:
            batch = self.data.batch(self.data.splits["train"].index[0, :1], self.dtype)
            with FlopCounterMode(display=False) as counter:
                Net(self.module.eval(), self.loss, buffers, keys.key(0, "flops"))(model, batch.x)
            self.flops["forward"] = counter.get_total_flops()
        return self.flops["forward"]


@dataclass
class Trainer:
    """What the client side of an algorithm may do with its rows: train row i on the data of client ids[i]."""

    engine: Engine
    ids: Tensor  # (m,) int64, on the CPU
    round: int
    flops: Tensor = field(init=False)  # (m,) spent so far by each client

    def __post_init__(self) -> None:
        self.flops = torch.zeros(len(self.ids), dtype=torch.float64)

    @property
    def lr(self) -> float:
        """The run's learning rate."""
        return self.engine.settings.lr

    @property
    def epochs(self) -> int:
        """The run's local epochs, E."""
        return self.engine.settings.epochs

    @property
    def batch_size(self) -> int:
        """The run's batch size, B."""
        return self.engine.settings.batch_size

    @property
    def seed(self) -> int:
        """The run's seed, for keyed draws."""
        return self.engine.seed

    def sizes(self, split: str = "train") -> Tensor:
        """(m,) int64: samples of each client in a split of its data."""
        return self.engine.data.splits[split].sizes[self.ids]

    def sgd(
        self,
        model: Rows,
        memory: State,
        *,
        objective: Objective = task_loss,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
        purpose: str = "train",
        **constants: Rows,
    ) -> tuple[Rows, State]:
        """Mini-batch SGD on an objective: the trained models, and the memory with BatchNorm statistics moved on."""
        step = SGDStep(self.lr if lr is None else lr, objective)
        work: State = {"model": model}
        state, memory = self.train(step, work, memory, constants, epochs=epochs, steps=steps, purpose=purpose)
        return state["model"], memory

    def train(
        self,
        step: Step,
        state: State,
        memory: State,
        constants: State = MappingProxyType({}),
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        split: str = "train",
        purpose: str = "train",
    ) -> tuple[State, State]:
        """Any step, for whole epochs of mini-batches. `purpose` keys the batch order and the dropout masks.

        `steps` ends an epoch after so many batches; else its last short batch is kept. `step` must be hashable and the
        same from round to round (a function, a method of a frozen dataclass): its compiled program is found by it.
        """
        epochs = self.epochs if epochs is None else epochs
        width = batch_size or self.batch_size
        work = {**state, "buffers": memory["buffers"]}
        orders = [self._order(split, purpose, epoch) for epoch in range(epochs)]
        sizes = self.sizes(split) if steps is None else self.sizes(split).clamp(max=steps * width)
        self._count_flops(step, work, constants, epochs, width, sizes)
        new = dict(self._advance(work, constants, Schedule(step, orders, sizes, width)))
        return new, {**memory, "buffers": new.pop("buffers")}

    def losses(self, model: Rows, memory: State, split: str = "validation") -> Tensor:
        """(m,) float64: the mean loss of each model on its client's samples, with the client's BatchNorm statistics."""
        one = torch.zeros(1, dtype=torch.int64)
        first = ({name: value[0] for name, value in take(rows, one).items()} for rows in (model, memory["buffers"]))
        self.flops += self.sizes(split) * self.engine.forward_flops(*first)
        return self._evaluate(model, memory["buffers"], split).loss

    def _order(self, split: str, purpose: str, epoch: int) -> tuple[Tensor, Tensor]:
        """The epoch's sample order (m, longest) as rows of the dataset, and the noise key (m,) of every client."""
        own, device = self.engine.data.splits[split], self.engine.data.device
        ids = self.ids.to(device)
        stream = f"{purpose}/{STREAMS.get(split, split)}"
        key = keys.key(self.seed, stream, self.round, ids, epoch)
        order = keys.permutations(key, own.sizes[self.ids])
        return own.index[ids].gather(1, order), keys.fold(key, 1)

    def _count_flops(
        self, step: Step, work: State, constants: Mapping[str, Rows], epochs: int, width: int, sizes: Tensor
    ) -> None:
        first = {part: {name: value[0] for name, value in rows.items()} for part, rows in work.items()}
        fixed = {part: {name: value[0] for name, value in rows.items()} for part, rows in constants.items()}
        cost = {b: self.engine.step_flops(step, first, fixed, b) for b in {width, *(sizes % width).tolist()} if b}
        short = torch.tensor([cost.get(int(rest), 0) for rest in sizes % width], dtype=torch.float64)
        self.flops += epochs * (sizes // width * cost[width] + short)

    def _advance(self, work: State, constants: State, schedule: Schedule) -> State:
        """All epochs of the schedule."""
        return self.engine.advance(work, constants, schedule)

    def _evaluate(self, model: Rows, buffers: Rows, split: str) -> Scores:
        """Scores of every row on its client's samples."""
        return evaluate(self.engine, model, buffers, self.ids, split)


def calls(index: Tensor, noise: Tensor, sizes: list[int], width: int) -> Iterator[tuple[int | Tensor, Tensor, Tensor]]:
    """The calls of one epoch: (rows, their samples, their keys). Rows are sorted by descending number of full batches.

    First the full batches, of the first a rows each time; then the short ones, all rows with equally many samples left
    together, so that no batch is padded and BatchNorm sees exactly what the plain loop shows it.
    """
    full = [size // width for size in sizes]
    step_keys = keys.fold(noise.unsqueeze(1), torch.arange(max(full) + 1, device=noise.device))  # (m, steps)
    active = len(full)
    for step in range(max(full)):
        while full[active - 1] <= step:
            active -= 1
        yield active, index[:active, step * width : (step + 1) * width], step_keys[:active, step]
    for rest in sorted({size % width for size in sizes} - {0}):
        rows = torch.tensor([row for row, size in enumerate(sizes) if size % width == rest])
        start = torch.tensor([full[row] for row in rows.tolist()])
        columns = (start * width).unsqueeze(1) + torch.arange(rest)
        chosen = rows.to(index.device)
        samples = index[chosen].gather(1, columns.to(index.device))
        everybody = len(rows) == len(sizes)
        yield len(rows) if everybody else chosen, samples, step_keys[chosen, start.to(index.device)]


@dataclass(frozen=True)
class _Vectorised:
    """The step of one client, mapped over rows, from flat tensors to flat tensors."""

    engine: Engine
    step: Step
    layout: Layout
    fixed: Layout

    def __call__(self, work: Flat, constants: Flat, index: Tensor, keys: Tensor) -> Flat:
        batch = self.engine.data.batch(index, self.engine.dtype)
        new = torch.vmap(self._one)(_unflatten(work, self.layout), _unflatten(constants, self.fixed), batch, keys)
        return _flatten({part: new[part] for part, _ in self.layout})

    def _one(self, work: Mapping[str, Row], constants: Mapping[str, Row], batch: Batch, key: Tensor) -> State:
        state = dict(work)
        client = FunctionalClient(self.engine.module, self.engine.mapped_loss, state.pop("buffers"), key)
        new = self.step(client, state, batch, **constants)
        return {**new, "buffers": client.buffers}


def _has_bfloat16() -> bool:
    """Whether oneDNN, where it is there, multiplies bfloat16 on this CPU."""
    return not torch.backends.mkldnn.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _shared(rows: Rows) -> bool:
    """Whether all rows are one and the same memory, so that their order does not matter."""
    return all(value.stride(0) == 0 for value in rows.values())


def _layout(state: State) -> Layout:
    return tuple((part, tuple(rows)) for part, rows in state.items())


def _flatten(state: State) -> list[Tensor]:
    return [value for rows in state.values() for value in rows.values()]


def _unflatten(flat: Flat, layout: Layout) -> State:
    tensors = iter(flat)
    return {part: {name: next(tensors) for name in names} for part, names in layout}
