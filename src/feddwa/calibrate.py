"""Measure ClusterFL's tolerance eps2, which the paper tuned but did not publish, by one rule for all runs.

A cluster splits if the norm of its mean update is below eps1 and the largest norm above eps2. The original's 1.6 is
longer than any update of the paper's networks at rate 0.01, so nothing would ever split. Our rule keeps the original's
eps1 = 0.4 and sets eps2 to 0.8 of the largest norm in the first ten rounds that allow splits, in a federation that
never splits (median over these rounds). The tables use the values of seed 0; a comparison measures on its own data.
"""

from dataclasses import dataclass

from feddwa.algorithms.clusterfl import LATE, ClusterFL, tolerance
from feddwa.build import make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.data.task import Task
from feddwa.errors import InputError


@dataclass(frozen=True)
class Norms:
    """Norms of updates in each round with an accepted update."""

    mean: list[float]  # norm of the mean update
    largest: list[float]  # largest norm of a client's update
    warmup: int  # rounds before the first in which a split is allowed

    @property
    def eps2(self) -> float | None:
        """eps2 by the rule, to two digits; None if no updates counted."""
        return tolerance(self.largest, self.warmup)


def update_norms(config: RunConfig, task: Task) -> Norms:
    """Train a resolved configuration of ClusterFL without splits, ten rounds longer than its warm-up."""
    if config.privacy.active:
        raise InputError(
            "--dp: ClusterFL's eps2 would be measured on data outside of the mechanism; give --param eps2=..."
        )
    engine, warmup = make_engine(config, task), int(vars(config.make_algorithm())["warmup"])
    federation = make_federation(config, engine, ClusterFL(eps1=0.0, warmup=warmup))
    infos = [federation.step().info for _ in range(warmup + LATE)]
    known = [info for info in infos if "max_norm" in info]
    return Norms(
        [float(info["mean_norm"].max()) for info in known], [float(info["max_norm"].max()) for info in known], warmup
    )
