"""The engine: all that stays the same from round to round (network, data, settings, compiled programs), and training.

`Engine.advance` trains a stack of models, vectorised: the step of one client, mapped over rows.
"""

import contextlib
import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from feddwa.data.federated import Batch, FederatedData
from feddwa.engine import augment, keys
from feddwa.engine.fast.program import Flat, Program
from feddwa.engine.fast.record import RecordedFunction
from feddwa.engine.network import Client, FunctionalClient, Loss, Net, Step, frozen, label_loss, trainable
from feddwa.engine.numbers import numbers, template, with_numbers
from feddwa.engine.optimizers import PLAIN, Optimizer
from feddwa.engine.private import Counted, PrivateStep, SamplePrivacy
from feddwa.engine.rate_schedule import CONSTANT, RateSchedule
from feddwa.engine.rows import count, repeat, row, row_of_parts, take_parts
from feddwa.engine.score import Rated, Sums, score_rows
from feddwa.engine.types import Model, Parts, Stack, StepState
from feddwa.ranks import Ranks

Metric = Callable[[Tensor, Tensor], Any]  # (outputs (n, ...), targets (n, ...)) of a client's test set -> a number
T = TypeVar("T")
Layout = tuple[tuple[str, tuple[str, ...]], ...]  # part -> names, in the order of the flat tensors
NUMBERS = "numbers:"  # the constants' part with the numbers of a step


@dataclass(frozen=True)
class Settings:
    """The local training that all algorithms share; the defaults are the paper's plain SGD."""

    epochs: int = 1
    batch_size: int = 20
    lr: float = 0.01
    optimizer: Optimizer = PLAIN
    keep_optimizer: bool = False  # whether clients keep the optimiser's state between rounds
    schedule: RateSchedule = CONSTANT  # learning rate over rounds
    local_steps: int | None = None  # batches per local epoch; None: as many as the data fill
    drop_last: bool = False  # whether an epoch ends before its last, short batch
    augment: tuple[str, ...] = ()  # random changes of training images: names of feddwa.engine.augment
    private: SamplePrivacy | None = None  # sample-level differential privacy


class Epoch(NamedTuple):
    """An epoch of m rows."""

    order: Tensor  # (m, longest) rows of the dataset; meaningless beyond a row's size
    noise: Tensor  # (m,) the rows' keys
    sizes: Tensor  # (m,) samples of each row, on the CPU


@dataclass(frozen=True)
class Schedule:
    """The work of m rows: a step, its samples and their order."""

    step: Step
    epochs: list[Epoch]
    rows: int  # m
    width: int  # batch size
    augment: tuple[str, ...] = ()  # random changes of the samples
    numbers: Stack = field(default_factory=dict)  # (m,) each: the step's numbers if it is a template

    def lifted(self) -> "Schedule":
        """The schedule with the step's numbers as tensors (m,)."""
        rows, device = self.rows, self.epochs[0].order.device if self.epochs else None
        values = numbers(self.step).items()
        lifted = {name: torch.full((rows,), value, dtype=torch.float64, device=device) for name, value in values}
        return self if self.numbers else replace(self, step=template(self.step), numbers=lifted)


@dataclass
class Engine:
    """Network, data, settings and compiled programs of a federation."""

    module: nn.Module  # the architecture and its frozen parameters; the trainable ones are rows, given at every call
    data: FederatedData
    settings: Settings
    seed: int = 0
    loss: Loss = F.cross_entropy
    dtype: torch.dtype = torch.float32
    tensor_cores: bool = False  # whether a GPU may round the factors of float32 products to TensorFloat-32
    sequential: bool = False  # whether clients are trained one after another, by the plain loop
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # further metrics of test data
    lockstep: int = 1  # number of federations that train in lockstep and share the memory
    ranks: Ranks | None = None  # processes that share a round's clients; None: this one trains all
    lifted: set[object] = field(default_factory=set)  # templates of steps with changing numbers
    programs: dict[object, Program] = field(default_factory=dict)
    scorers: dict[object, RecordedFunction] = field(default_factory=dict)
    flops: dict[object, int] = field(default_factory=dict)
    mapped_loss: Loss = field(init=False)  # the loss that is mapped over rows

    def __post_init__(self) -> None:
        self.module = self.module.to(self.data.device, self.dtype)
        self.mapped_loss = label_loss if self.loss is F.cross_entropy and self.data.labelled else self.loss
        if self.data.device.type == "cpu":
            _keep_freed_pages()
            # on a CPU without bfloat16 oneDNN fails, and PyTorch then disables it for good: later runs would differ
            torch.backends.mkldnn.enabled = self.dtype != torch.bfloat16 or _has_bfloat16()  # type: ignore[assignment]
        else:  # the sequential twin's convolutions round as the stacked ones do, whose products `products` rules
            torch.backends.cudnn.allow_tf32 = self.tensor_cores

    def initial(self) -> tuple[Model, Model]:
        """The module's initial trainable parameters and buffers."""
        named = trainable(self.module).items(), self.module.named_buffers()
        parameters, buffers = ({name: value.detach().clone() for name, value in values} for values in named)
        return Model(parameters), Model(buffers)

    def complete(self, model: Stack) -> Stack:
        """Models (m, *shape) with the frozen parameters, shared by all rows, in the module's order."""
        whole = {**repeat(frozen(self.module), count(model)), **model}
        return {name: whole[name] for name, _ in self.module.named_parameters()}

    def advance(self, work: Parts, constants: Parts, schedule: Schedule) -> Parts:
        """Rows after all epochs of a schedule, vectorised. Rows are sorted by their number of full batches, so that the
        clients still training are always the first a rows and finished ones cost nothing.
        """
        schedule = schedule.lifted() if self.settings.schedule.varies else schedule
        width, none = schedule.width, torch.zeros(schedule.rows, dtype=torch.int64)
        by_length = torch.argsort(
            sum((epoch.sizes // width for epoch in schedule.epochs), none), descending=True, stable=True
        )
        work = take_parts(work, by_length)
        constants = take_parts({**constants, NUMBERS: schedule.numbers}, by_length)
        program = self._program(schedule, work, constants)
        program.load(_flatten(work), _flatten(constants))
        with self.products():
            for epoch in schedule.epochs:
                place = by_length.to(epoch.order.device)
                own = epoch.order[place], epoch.noise[place], epoch.sizes[by_length].tolist()
                for rows, samples, key in calls(*own, width):
                    program.run(rows, samples, key)
        new = _unflatten(program.read(schedule.rows), _layout(work))
        return take_parts(new, torch.argsort(by_length))

    def enter(self, round: int) -> None:
        """Begin a round: federations in lockstep wait for those that are behind."""

    def shared(self, round: int, name: object, make: Callable[[], T]) -> T:
        """The result of `make` for a round (0: for all rounds), a pure function of seed, data and `name`.

        Federations in lockstep with the same seed and data, as the trials of a search, compute it once.
        """
        return make()

    def score(self, asked: Rated) -> Sums:
        """Score rows on their samples, vectorised."""
        return score_rows(self, asked)

    @contextlib.contextmanager
    def products(self) -> Iterator[None]:
        """Let the network's matrix products use tensor cores if set; the server's products stay in full precision."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tensor_cores else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def _program(self, schedule: Schedule, work: Parts, constants: Parts) -> Program:
        known = schedule.step, schedule.augment, _layout(work), _layout(constants)
        if known not in self.programs:
            self.programs[known] = Program(_Vectorised(self, *known))
        return self.programs[known]

    def step_flops(self, step: Step, state: Parts, constants: Parts, samples: int) -> int:
        """FLOPs of one client's step on a batch, as `torch.utils.flop_counter` counts them (2 per multiply-add).

        state, constants: (m, ...); only the first row is used.
        """

        def client() -> Client:
            buffers = row(state["buffers"], 0)
            return FunctionalClient(self.module.train(), self.loss, buffers, keys.key(0, "flops"))

        return self.flops_of(client, step, state, constants, samples)

    def flops_of(self, client: Callable[[], Client], step: Step, state: Parts, constants: Parts, samples: int) -> int:
        """FLOPs of a step of the client that `client` makes; counted once per step, trained parts and number of
        samples.
        """
        known = (template(step), samples, _layout(state))
        if known not in self.flops:
            index = self.data.splits["train"].index[0, :1].expand(samples)
            batch, parts = self.data.batch(index, self.dtype), row_of_parts(state, 0)
            del parts["buffers"]
            with FlopCounterMode(display=False) as counter:
                step(client(), parts, batch, **row_of_parts(constants, 0))
            self.flops[known] = counter.get_total_flops()
        return self.flops[known]

    def forward_flops(self, model: Model, buffers: Model) -> int:
        """FLOPs of a forward pass of one sample."""
        if "forward" not in self.flops:
            batch = self.data.batch(self.data.splits["train"].index[0, :1], self.dtype)
            with FlopCounterMode(display=False) as counter:
                Net(self.module.eval(), self.loss, buffers, keys.key(0, "flops"))(model, batch.x)
            self.flops["forward"] = counter.get_total_flops()
        return self.flops["forward"]


def calls(index: Tensor, noise: Tensor, sizes: list[int], width: int) -> Iterator[tuple[int | Tensor, Tensor, Tensor]]:
    """The calls of one epoch: (rows, their samples, their keys).

    First the full batches: rows are sorted by descending number of them, and each call takes the first a rows. Then the
    short ones, grouped by number of remaining samples, so that no batch is padded and BatchNorm sees the same batches
    as in the plain loop.
    """
    full = [size // width for size in sizes]
    step_keys = keys.fold(noise.unsqueeze(1), torch.arange(max(full) + 1, device=noise.device))  # (m, steps)
    in_order = all(one >= other for one, other in itertools.pairwise(full))
    for step in range(max(full)):
        active = [row for row, count in enumerate(full) if count > step]
        rows = len(active) if in_order else torch.tensor(active, device=index.device)
        chosen = slice(rows) if isinstance(rows, int) else rows
        yield rows, index[chosen, step * width : (step + 1) * width], step_keys[chosen, step]
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
    augment: tuple[str, ...]
    layout: Layout
    fixed: Layout

    def __call__(self, work: Flat, constants: Flat, index: Tensor, keys: Tensor) -> Flat:
        self.engine.module.train()  # set at every call: engines share programs, and each has its own module
        data, dtype = self.engine.data, self.engine.dtype
        batch = Counted.at(data, index, dtype) if isinstance(self.step, PrivateStep) else data.batch(index, dtype)
        everybody: Callable[..., Parts] = torch.vmap(self._one)  # of stacks, where _one has models
        new = everybody(_unflatten(work, self.layout), _unflatten(constants, self.fixed), batch, keys)
        return _flatten({part: new[part] for part, _ in self.layout})

    def _one(self, work: StepState, constants: StepState, batch: Batch | Counted, key: Tensor) -> StepState:
        state, fixed = dict(work), dict(constants)
        client = FunctionalClient(self.engine.module, self.engine.mapped_loss, state.pop("buffers"), key)
        step = with_numbers(self.step, fixed.pop(NUMBERS))
        if self.augment and isinstance(batch.x, Tensor):
            black = self.engine.data.black(self.engine.dtype)
            batch = batch._replace(x=augment.stacked(self.augment, batch.x, black, key))
        new = step(client, state, batch, **fixed)
        return {**new, "buffers": client.buffers}


def _layout(parts: Parts) -> Layout:
    return tuple((part, tuple(stack)) for part, stack in parts.items())


def _flatten(parts: Parts) -> list[Tensor]:
    return [value for stack in parts.values() for value in stack.values()]


def _unflatten(flat: Flat, layout: Layout) -> Parts:
    tensors = iter(flat)
    return {part: {name: next(tensors) for name in names} for part, names in layout}


def _has_bfloat16() -> bool:
    """Whether oneDNN, if present, multiplies bfloat16 on this CPU."""
    return not torch.backends.mkldnn.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def _keep_freed_pages() -> None:
    """Ask glibc to serve large blocks from the heap and to keep them when freed; other platforms do nothing.

    By default every large tensor is mapped, faulted in page by page and unmapped at each step, which costs more than
    its arithmetic. (`feddwa/__init__.py` also asks torch for huge pages.)
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_mmap_max, m_trim_threshold = -4, -1
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
