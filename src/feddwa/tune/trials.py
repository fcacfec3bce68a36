"""Trials: federations that differ in numbers, trained in lockstep and scored on validation data.

No trial sees a test sample: the split "test" of its engine is the validation share of the training data.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch.nn import functional as F

from feddwa.build import make_engine, make_federation, program_kind
from feddwa.config import RunConfig
from feddwa.data.federated import HELD_OUT
from feddwa.data.task import Task
from feddwa.engine import Engine
from feddwa.engine.fast import lockstep
from feddwa.engine.memory import rows_that_fit
from feddwa.engine.rows import repeat
from feddwa.engine.steps import SGDStep
from feddwa.federation import Federation
from feddwa.recipe import settings_of
from feddwa.results.measure import ACCURACY, LOSS, Measure
from feddwa.scoring import next_token
from feddwa.tune.study import Outcome

KEPT = 3  # halving keeps one of this number of trials


@dataclass
class _Member:
    """One trial of a batch during training."""

    config: RunConfig
    engine: Engine
    protected: bool  # continues whatever its score
    federation: Federation | None = None
    curve: dict[int, float] = field(default_factory=dict)
    gradients: float = 0.0
    failed: str = ""
    stopped: bool = False

    def advance(self, until: int) -> None:
        """Train to the end of a round, and score the models."""
        try:
            if self.federation is None:
                self.federation = make_federation(self.config, self.engine)
            sample = sample_flops(self.engine)
            while self.federation.round < until:
                self.gradients += float(self.federation.step().costs.flops.sum()) / sample
            self.federation.evaluate_all()
            scores, measure = self.federation.scores, measure_of(self.engine)
            self.failed = "" if scores.loss.isfinite().any() else "no model has a finite loss"
            self.curve[until] = float(100 * scores.accuracy.nanmean() if measure is ACCURACY else scores.loss.nanmean())
        except ArithmeticError as error:  # from a server whose models have diverged
            self.failed = f"{type(error).__name__}: {error}"

    def outcome(self) -> Outcome:
        """The trial's outcome."""
        return Outcome(self.curve, self.gradients, self.stopped, self.failed)


def train(
    configs: Sequence[RunConfig], task: Task, rungs: Sequence[int], protected: Sequence[int] = ()
) -> list[Outcome]:
    """Train trials of one method in lockstep to the rounds `rungs`.

    After each of these except the last, only the best third and the trials at the positions `protected` continue.
    Configurations are completed and have the same `validation`.
    """
    first = judged_on_validation(make_engine(configs[0], task))
    configs = [
        replace(config, eval_every=rungs[-1] + 1, eval_clients=0) for config in configs
    ]  # evaluate at the rungs only
    members = [
        _Member(config, replace(first, settings=settings_of(config)), place in protected)
        for place, config in enumerate(configs)
    ]
    stack = _stack(members, task)
    going = members
    for until in rungs:
        _advance(stack, going, until)
        going = [member for member in going if not member.failed]
        if until != rungs[-1]:
            judged = sorted((each for each in going if not each.protected), key=partial(_rank, until))
            for member in judged[math.ceil(len(judged) / KEPT) :]:
                member.stopped = True
            going = [member for member in going if not member.stopped]
    return [member.outcome() for member in members]


def _rank(until: int, member: _Member) -> float:
    """Sort key; lower is better."""
    score = -measure_of(member.engine).sign * member.curve[until]
    return score if math.isfinite(score) else math.inf


def _stack(members: Sequence[_Member], task: Task) -> Engine | None:
    """The engine that trains the rows of all; cached with the task, for its compiled programs."""
    if len(members) == 1 or members[0].engine.sequential:
        return None
    engines = [member.engine for member in members]
    kind = program_kind(members[0].config, engines[0])
    stack: Engine = task.keep(("trials", kind), lambda: lockstep.stacked_engine(engines))
    for member, engine in zip(members, lockstep.lockstep_engines(engines), strict=True):
        member.engine = engine
    return stack


def _advance(stack: Engine | None, members: Sequence[_Member], until: int) -> None:
    """Train some members to a round."""
    if stack is None:
        for member in members:
            member.advance(until)
        return
    engines = [member.engine for member in members if isinstance(member.engine, lockstep.LockstepEngine)]
    lockstep.run_in_lockstep(stack, engines, [partial(member.advance, until) for member in members])


def judged_on_validation(engine: Engine) -> Engine:
    """An engine whose test samples are replaced by those held out of training."""
    splits = dict(engine.data.splits)
    return replace(engine, data=replace(engine.data, splits=splits | {"test": splits.pop(HELD_OUT)}))


def measure_of(engine: Engine) -> Measure:
    """The measure by which trials are compared."""
    y, scored = engine.data.y, engine.loss in (F.cross_entropy, next_token)
    return ACCURACY if not y.is_floating_point() and (y.ndim == 1 or (y.ndim == 2 and scored)) else LOSS


def sample_flops(engine: Engine) -> float:
    """FLOPs of the gradient of one sample, the unit of budgets."""
    parameters, buffers = engine.initial()
    batch = engine.settings.batch_size
    state = {"model": repeat(parameters, 1), "buffers": repeat(buffers, 1)}
    return engine.step_flops(SGDStep(0.0), state, {}, batch) / batch


def rungs_of(sampler: str, rounds: int) -> list[int]:
    """The rounds after which trials are scored: with halving a ninth, a third and all of them; otherwise the last."""
    steps = (KEPT**2, KEPT, 1) if sampler == "halving" else (1,)
    return sorted({max(1, rounds // step) for step in steps})


def batch_that_fits(engine: Engine, most: int) -> int:
    """Number of trials that fit into the free memory."""
    return max(1, min(most, rows_that_fit(engine) // engine.data.clients))


def batches(total: int, size: int) -> Iterator[int]:
    """`total` in batches of `size`; the last one has the rest."""
    yield from (min(size, total - start) for start in range(0, total, size))
