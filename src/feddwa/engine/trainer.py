"""The trainer: operations on a stack of models for the client side of an algorithm."""

from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from feddwa.engine.batches import Batches
from feddwa.engine.engine import Engine, Epoch, Schedule
from feddwa.engine.evaluate import Scores, evaluate
from feddwa.engine.network import Completed, Objective, Statistic, Step, task_loss
from feddwa.engine.optimizers import PLAIN, Optimizer
from feddwa.engine.private import PrivateStep, plain, refuse, refused
from feddwa.engine.rows import only, repeat, row, scale, take, zeros
from feddwa.engine.steps import OptimizerStep, SGDStep, named, state_of, with_optimizer
from feddwa.engine.totals import AddStatistic, add_gradient, no_total
from feddwa.engine.types import Memory, Parts, Stack
from feddwa.errors import InputError, require


@dataclass
class Trainer:
    """Trains and scores m models at once: row i on the data of client ids[i]."""

    engine: Engine
    ids: Tensor  # (m,) int64, on the CPU
    round: int
    flops: Tensor = field(init=False)  # (m,) spent so far by each client
    accounted: bool = field(init=False, default=True)  # whether the run's accountant covers private training
    private_steps: dict[str, Tensor] = field(init=False, default_factory=dict)  # split -> (m,) private steps so far
    _drawn: int = field(init=False, default=0)  # private trainings so far
    _trained: dict[str, Parts] = field(init=False, default_factory=dict)  # name -> the optimiser's

    def __post_init__(self) -> None:
        self.flops = torch.zeros(len(self.ids), dtype=torch.float64)
        self._orders = Batches(self.engine, self.ids, self.round)

    @property
    def lr(self) -> float:
        """The run's learning rate in this round."""
        return self.rate(None)

    def rate(self, own: float | None) -> float:
        """An algorithm's own rate (None: the run's), under the run's schedule."""
        settings = self.engine.settings
        return (settings.lr if own is None else own) * settings.schedule.factor(self.round)

    @property
    def local_steps(self) -> int | None:
        """Batches per local epoch; None: as many as the data fill."""
        return self.engine.settings.local_steps

    @property
    def epochs(self) -> int:
        """The run's local epochs, E."""
        return self.engine.settings.epochs

    def half_steps(self, place: int) -> int | None:
        """Steps of the first or second half (place 0 or 1) of an epoch that is trained in two halves."""
        return None if self.local_steps is None else (self.local_steps + 1 - place) // 2

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
        return self._orders.sizes(split)

    def steps(self) -> Tensor:
        """(m,) int64: each client's number of steps in the local epochs of a round."""
        if self.local_steps is not None:
            return torch.full((len(self.ids),), self.epochs * self.local_steps)
        sizes, width = self.sizes(), self.batch_size
        sizes = self._orders.whole("train", width) if self.engine.settings.drop_last else sizes
        return self.epochs * -(-sizes // width)

    def sgd(
        self,
        model: Stack,
        memory: Memory,
        *,
        objective: Objective = task_loss,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
        purpose: str = "train",
        optimizer: Optimizer | None = None,
        name: str = "model",
        continued: bool = False,
        fixed: Stack | None = None,
        **constants: Stack,
    ) -> tuple[Stack, Memory]:
        """Mini-batch descent on an objective by the run's optimiser: the trained models, and the memory with updated
        BatchNorm statistics. `epochs`, `lr` and `optimizer` default to the run's; for the others see `train`.

        fixed: the constant parameters, with `model` holding the others: a head, for example, while the body is trained.
        """
        if fixed is not None:
            objective, constants = Completed(objective), {**constants, "fixed": fixed}
        step, own = SGDStep(self.lr if lr is None else lr, objective), {"model": model}
        state, memory = self.train(
            step, own, memory, constants, epochs=epochs, steps=steps, purpose=purpose, optimizer=optimizer, name=name,
            continued=continued,
        )  # fmt: skip
        return state["model"], memory

    def train(
        self,
        step: Step,
        state: Parts,
        memory: Memory,
        constants: Parts = MappingProxyType({}),
        *,
        epochs: int | None = None,
        steps: int | None = None,
        local_steps: int | None = None,
        batch_size: int | None = None,
        samples: Tensor | None = None,
        split: str = "train",
        purpose: str = "train",
        optimizer: Optimizer | None = None,
        name: str = "model",
        continued: bool = False,
    ) -> tuple[Parts, Memory]:
        """Any step, for epochs of mini-batches. `purpose` keys the batch order and the dropout masks.

        An epoch is the client's samples in a new order, without the last, short batch under `--drop-last`; `steps` ends
        it after that many batches. Under `--local-steps` S an epoch is S batches, from as many orders as needed;
        local_steps: another S. samples: (m,) on the CPU, the number of samples of an epoch, the first of its order; a
        row with 0 samples is unchanged. `step` must be hashable and equal from round to round (a function, a method of
        a frozen dataclass, numbers as in `engine/numbers.py`), because it is the key of its compiled program.

        The optimiser of an `OptimizerStep` is the run's, unless another is given. Its state starts from zeros, or with
        `--optimizer-state keep` from the client's memory under `name`, which replaces the part "model"
        (`Algorithm.optimized`). continued: continue the round's last training of that name, including its optimiser
        state.
        """
        optimizer = self.engine.settings.optimizer if optimizer is None else optimizer
        if not isinstance(step, OptimizerStep) and optimizer != PLAIN:
            raise InputError(
                f"--optimizer: {getattr(step, '__name__', type(step).__name__)}, a step of this algorithm, takes none: "
                "derive it from feddwa.engine.steps.OptimizerStep, or train by plain SGD"
            )
        step = with_optimizer(step, optimizer)
        epochs = self.epochs if epochs is None else epochs
        width = batch_size or self.batch_size
        local_steps = self.local_steps if local_steps is None else local_steps
        sizes = self._orders.whole(split, width) if self.engine.settings.drop_last else self.sizes(split)
        if self.engine.settings.private is not None:
            if samples is not None:
                raise refused("uses a part of each client's samples")
            each = -(-sizes // width)
            count = epochs * (each if steps is None else each.clamp(max=steps))
            if steps is None and local_steps is not None:
                count = torch.full((len(self.ids),), epochs * local_steps)
            schedule, own = self._private_schedule(step, split, purpose, count, width)
            return self._run(schedule, state, memory, {**constants, **own}, name, continued)
        sizes = sizes if samples is None else sizes.minimum(samples)
        if steps is None and samples is None and local_steps is not None:
            batches = self._orders.single(split, purpose, sizes, width, epochs * local_steps)
        else:
            sizes = sizes if steps is None else sizes.clamp(max=steps * width)
            batches = self._orders.epochs(split, purpose, sizes, epochs)
        schedule = Schedule(step, batches, len(self.ids), width, self.engine.settings.augment)
        return self._run(schedule, state, memory, constants, name, continued)

    def _private_schedule(
        self, step: Step, split: str, purpose: str, count: Tensor, width: int
    ) -> tuple[Schedule, Parts]:
        """`count` (m,) private steps in Poisson batches, and their constants."""
        private, augment = self.engine.settings.private, self.engine.settings.augment
        assert private is not None
        if not self.accounted:
            raise refused("continues before its models are used")
        self._drawn += 1  # every training of a round has its own draws
        made = self.private_steps[split] = self.private_steps.get(split, 0) + count
        if private.steps is not None:
            allowed = torch.tensor(private.steps.get(split, (0,) * self.engine.data.clients))[self.ids]
            if (made > allowed).any():
                raise refused(f"makes more steps in round {self.round} than in the first ones")
        epochs, padded, expected = self._orders.poisson(split, f"{purpose}/{split}/{self._drawn}", count, width)
        schedule = Schedule(PrivateStep(step, private.clip), epochs, len(self.ids), padded, augment)
        return schedule, private.constants(self.ids, expected, self.engine.data.device)

    def _run(
        self,
        schedule: Schedule,
        state: Parts,
        memory: Memory,
        constants: Parts,
        name: str = "model",
        continued: bool = False,
    ) -> tuple[Parts, Memory]:
        """The state after a schedule, and the memory with updated BatchNorm statistics and optimiser state."""
        states = self._optimizer_states(plain(schedule.step), state, memory, name, continued)
        own = {key: stack for part, slots in states.items() for key, stack in named(part, slots).items()}
        work = {**state, **own, "buffers": memory["buffers"]}
        self._count_flops(work, constants, schedule)
        new = dict(self._advance(work, constants, schedule))
        memory = {**memory, "buffers": new.pop("buffers")}
        own = {key: new.pop(key) for key in own}
        for part in states:
            slots, whose = state_of(own, part), name if part == "model" else part
            self._trained[whose] = slots
            kept = {key: stack for key, stack in named(whose, slots).items() if key in memory}
            memory |= {key: {**memory[key], **stack} for key, stack in kept.items()}
        return new, memory

    def _optimizer_states(
        self, step: Step, state: Parts, memory: Memory, name: str, continued: bool
    ) -> dict[str, Parts]:
        """The optimiser's state at the start of a training: part -> slot -> name -> (m, *shape)."""
        begin, settings = dict[str, Parts](), self.engine.settings
        if not isinstance(step, OptimizerStep) or step.optimizer.stateless:
            return begin
        for part in step.moves:
            fresh, whose = step.optimizer.init(row(state[part], 0)), name if part == "model" else part
            kept = state_of(memory, whose)
            if continued:
                require(whose in self._trained, "continued", whose, "a model that was trained before in this round")
                begin[part] = self._trained[whose]
            elif fresh and settings.keep_optimizer and step.optimizer == settings.optimizer:
                self._check_kept(whose, kept)
                begin[part] = {slot: only(kept[slot], names) for slot, names in fresh.items()}
            else:
                begin[part] = {slot: repeat(own, len(self.ids)) for slot, own in fresh.items()}
        return {part: slots for part, slots in begin.items() if slots}

    def _check_kept(self, whose: str, kept: Parts) -> None:
        """Check that the algorithm has declared a model whose state clients keep, and that each model has its own
        state.
        """
        why = "clients train two models under this name in a round" if whose in self._trained else "is not declared"
        if whose in self._trained or not kept:
            raise InputError(
                f"--optimizer-state keep: the state of {whose!r}: {why}; give the training that has it a name of its "
                "own (`name=...`), and list all names in the algorithm's `optimized`"
            )

    def losses(self, model: Stack, memory: Memory, split: str = "validation") -> Tensor:
        """(m,) float64: the mean loss of each model on its client's samples, with the client's BatchNorm statistics."""
        refuse(self.engine.settings, "measures losses")
        first = (row(take(stack, torch.zeros(1, dtype=torch.int64)), 0) for stack in (model, memory["buffers"]))
        self.flops += self.sizes(split) * self.engine.forward_flops(*first)
        return self._evaluate(model, memory["buffers"], split).loss

    def gradients(self, model: Stack, memory: Memory, split: str, purpose: str) -> Stack:
        """(m, *shape): the gradient of each model's mean loss on its client's samples, in training mode.

        BatchNorm statistics stay unchanged.
        """
        refuse(self.engine.settings, "computes a gradient of all its samples")
        start, fixed = {"total": zeros(model)}, {"model": model}
        epochs = self._orders.epochs(split, purpose, self.sizes(split), 1)
        schedule = Schedule(add_gradient, epochs, len(self.ids), self.batch_size)
        state, _ = self._run(schedule, start, memory, fixed)
        return scale(1 / self.sizes(split).clamp(min=1).double(), state["total"])

    def sums(self, statistic: Statistic, model: Stack, memory: Memory, split: str = "train", **fixed: Stack) -> Stack:
        """name -> (m, *shape) float64: a statistic of each model, summed over all samples of its client.

        One pass in evaluation mode: BatchNorm uses the client's statistics; dropout and augmentation are off.
        `statistic` must be hashable and equal from round to round, as steps are (see `train`).
        """
        refuse(self.engine.settings, "computes a statistic of its samples")
        constants, index = {"model": model, **fixed}, self.engine.data.splits[split].index
        order = index[self.ids.to(index.device)]
        epoch = Epoch(order, torch.zeros_like(order[:, 0]), self.sizes(split))
        schedule = Schedule(AddStatistic(statistic), [epoch], len(self.ids), self.batch_size)
        start = {"total": no_total(self.engine, statistic, memory, constants)}
        return self._run(schedule, start, memory, constants)[0]["total"]

    def _count_flops(self, work: Parts, constants: Parts, schedule: Schedule) -> None:
        """Add the cost of a schedule to each client: full batches, and a last, short one."""
        width = schedule.width
        sizes = torch.stack([epoch.sizes for epoch in schedule.epochs] or [torch.zeros(schedule.rows)]).long()
        rest = sizes % width  # (epochs, m)
        for samples in {width, *rest.flatten().tolist()} - {0}:
            batches = sizes // width if samples == width else rest == samples
            self.flops += batches.sum(0) * self._step_flops(schedule.step, work, constants, samples)

    def _step_flops(self, step: Step, state: Parts, constants: Parts, samples: int) -> int:
        """FLOPs of one client's step; state, constants: (m, ...), of which only the first row is used."""
        return self.engine.step_flops(step, state, constants, samples)

    def _advance(self, work: Parts, constants: Parts, schedule: Schedule) -> Parts:
        """All epochs of the schedule."""
        return self.engine.advance(work, constants, schedule)

    def _evaluate(self, model: Stack, buffers: Stack, split: str) -> Scores:
        """Scores of every row on its client's samples."""
        return evaluate(self.engine, model, buffers, self.ids, split)
