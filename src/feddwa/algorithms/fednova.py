"""FedNova: clients that make different numbers of steps, averaged by step (Wang et al., NeurIPS 2020).

    client  a_k = how often each of its gradients counts in v_k - w: with plain SGD the number of its steps, K_k
    server  w = w + tau sum_{k in S_t} p_k (v_k - w) / a_k,   tau = sum_{k in S_t} p_k a_k,   p_k = n_k / n

Crosses the network: w down, v_k and the number a_k up, two model sizes and a number.

FedAvg weighs a client that makes twice the steps twice as much, on top of its data size, and so converges away from the
minimum of the objective; here every update counts as tau steps, the mean. If clients have equally many batches, a_k is
the same and FedNova is FedAvg. With momentum rho, a gradient also moves the model in later steps: a_k is the sum over t
of (1 - rho^t) / (1 - rho), and with Nesterov's K_k + rho times that. Adam has no such numbers and is refused. Steps
count, not samples: the last short batch is one. The weights tau p_k / a_k need not sum to 1: they act on updates v_k -
w, and w has the remaining weight, which P does not show. The official code's server momentum, 0 by default, is
FedAvgM's and left out.
"""

from dataclasses import dataclass

from torch import Tensor

from feddwa.algorithms.base import Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.engine import Cohort, Memory, Message, ServerState, Trainer
from feddwa.engine.optimizers import SGD
from feddwa.engine.rows import row
from feddwa.errors import require
from feddwa.mixing import mix


@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedNova for local SGD."""

    title = "FedNova"
    summary = "FedAvg by normalised updates: unequal local steps do not bias it"
    kind, year = "global", 2020
    discloses = "its trained model, its number of steps"
    numbers_up = 1

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """FedAvg's."""
        settings = problem.settings
        known = isinstance(settings.optimizer, SGD) and not settings.keep_optimizer
        name = type(settings.optimizer).__name__.lower() + " with a state that is kept" * settings.keep_optimizer
        require(
            known,
            "--optimizer",
            name,
            "sgd, reset every round, for algorithm fednova, which needs to know how often each gradient counts",
        )
        return super().setup(problem)

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from the global model, and the number of steps they took."""
        upload, memory = super().client(trainer, download, memory)
        optimizer = trainer.engine.settings.optimizer
        assert isinstance(optimizer, SGD)
        count = gradient_uses(trainer.steps().double(), float(optimizer.momentum), optimizer.nesterov)
        return {**upload, "steps": {"count": count}}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean of normalised updates, scaled to tau steps."""
        sizes, steps = cohort.sizes.double(), upload["steps"]["count"].cpu()
        shares = sizes / sizes.sum()
        weights = ((shares * steps).sum() * shares / steps).unsqueeze(0)  # (1, m)
        mixed, rest = row(mix(weights, upload["model"]), 0), 1 - float(weights.sum())
        model = {name: rest * value + mixed[name] for name, value in server["model"].items()}
        return {"model": model}, {"weights": weights.expand(len(cohort), -1)}


def gradient_uses(steps: Tensor, momentum: float, nesterov: bool) -> Tensor:
    """a_k from K_k: how often each of a round's gradients moves the model, summed over the gradients."""
    heavy: Tensor = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    return steps + momentum * heavy if nesterov else heavy
