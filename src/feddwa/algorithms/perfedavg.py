"""Per-FedAvg: a global initial model that adapts in one client step (Fallah et al., NeurIPS 2020).

Every client minimises f_i(v - a grad f_i(v)). A meta step takes three independent batches D, D', D'':

    u  = v - a grad f(v; D);   q = grad f(u; D')
    FO (first order)    v = v - b q
    HF (Hessian-free)   v = v - b (q - a h),   h = [grad f(v + delta q; D'') - grad f(v - delta q; D'')] / (2 delta)
    server              w = sum_{k in S_t} (n_k / n) v_k
    evaluated           w adapted on the client's *training* data with rate a, and thrown away

Crosses the network: w down, v_k up, two model sizes. A meta step is 2 gradients (FO) or 4 (HF).

Where the paper, its code and others differ: FedDWA's paper names no variant, rates or adaptation. We take FO, a = b =
the run's rate, and adapt for one epoch (adapt_steps limits it; others take one batch). A batch is drawn 2 (FO) or 3
(HF) times as large and cut into D, D', D''; 2 or 3 times the epochs give the number of steps of FedAvg. A last batch
with fewer than two samples per part is dropped. The average is weighted by size, as in all methods of this family and
common codes; the original weighs clients equally. A widespread code adapts on *test* batches, which we never do. a = 0
is FedAvg with rate b on the batches D'.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from feddwa.algorithms.fedavg import FedAvg
from feddwa.data.federated import Batch
from feddwa.engine import Memory, Message, Stack, StepState, Trainer
from feddwa.engine.network import Client, descend
from feddwa.engine.numbers import Number
from feddwa.engine.optimizers import PLAIN
from feddwa.engine.steps import OptimizerStep
from feddwa.errors import require
from feddwa.params import Repeats, Tunable


@dataclass(frozen=True)
class MetaStep(OptimizerStep):
    """One meta step of one client: the optimiser's step along the meta gradient. The inner step is plain."""

    variant: str
    inner: Number  # a
    meta: Number  # b
    delta: Number

    @property
    def parts(self) -> int:
        """Batches that a step consumes."""
        return 2 if self.variant == "fo" else 3

    def __call__(self, client: Client, state: StepState, batch: Batch) -> StepState:
        """One step on the parts of a batch."""
        if len(batch.y) < 2 * self.parts:
            return state
        batches, model = batch.pieces(self.parts), state["model"]
        ahead = descend(model, client.gradient(model, batches[0]), self.inner)  # u
        gradient = client.gradient(ahead, batches[1])  # q
        if self.variant == "hf":
            up = client.gradient(descend(model, gradient, -self.delta), batches[2])
            down = client.gradient(descend(model, gradient, self.delta), batches[2])
            gradient = descend(gradient, descend(up, down, 1.0), self.inner / (2 * self.delta))  # q - a h
        return self.descend(state, {"model": gradient}, self.meta)


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Per-FedAvg, first order by default."""

    title = "per-FedAvg"
    summary = "a global initial model that adapts well (MAML)"
    kind, year = "personal", 2020
    order = 7
    global_model = False
    passes = 2
    evaluation_passes = 1
    evaluated = "the global model, adapted to its data"

    variant: Literal["fo", "hf"] = "fo"
    """First order (fo) or Hessian-free (hf)."""
    inner_lr: Annotated[float | None, Tunable(1e-3, 1, log=True)] = None
    """a: rate of the inner step; none = the run's rate."""
    meta_lr: float | None = None
    """b: rate of the meta step; none = the run's rate; the original's README has 0.001."""
    delta: float = 1e-3
    """Step of the Hessian-free difference."""
    adapt_steps: Repeats | None = None
    """Batches of adaptation before evaluation; none = one epoch."""

    def __post_init__(self) -> None:
        for name, rate in {"inner_lr": self.inner_lr, "meta_lr": self.meta_lr}.items():
            require(rate is None or 0 <= rate < math.inf, f"--param {name}", rate, "a finite number, 0 or more")
        require(0 < self.delta < math.inf, "--param delta", self.delta, "a finite number above 0")
        used = self.variant == "hf" or self.delta == type(self).delta
        require(
            used, "--param delta", self.delta, f"{type(self).delta} unless variant=hf, which alone has a difference"
        )
        require(
            self.adapt_steps is None or self.adapt_steps >= 1, "--param adapt_steps", self.adapt_steps, "at least 1"
        )

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """As many meta steps as FedAvg has steps."""
        step = MetaStep(self.variant, trainer.rate(self.inner_lr), trainer.rate(self.meta_lr), self.delta)
        epochs, width = trainer.epochs * (1 if trainer.local_steps else step.parts), step.parts * trainer.batch_size
        return trainer.train(step, {"model": download["model"]}, memory, epochs=epochs, batch_size=width)

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The global model, adapted on training data by plain steps, like the inner step."""
        lr, steps = trainer.rate(self.inner_lr), self.adapt_steps
        return trainer.sgd(download["model"], memory, epochs=1, steps=steps, lr=lr, purpose="adapt", optimizer=PLAIN)
