"""ClusterFL's tolerance eps2, which the paper tuned and did not print: measured, by the same rule everywhere.

A cluster splits where the norm of its mean update is below eps1 and the largest norm above eps2. The original's 1.6 is
longer than any update of the paper's networks at rate 0.01, so that nothing would ever split. The rule: eps1 stays the
original's 0.4; eps2 is 0.8 of the largest norm in the ten rounds from which on splits are allowed, of a federation that
never splits (median over these rounds). The tables' values are those of seed 0; a comparison measures on its own data.
"""

from dataclasses import dataclass

from feddwa.algorithms.clusterfl import LATE, ClusterFL, tolerance
from feddwa.build import make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.data.task import Task
from feddwa.errors import InputError


@dataclass(frozen=True)
class Norms:
    """Norms of updates, of every round in which an update counted."""

    mean: list[float]  # of the mean update
    largest: list[float]  # of any client's update
    warmup: int  # rounds before the first in which a split is allowed

    @property
    def eps2(self) -> float | None:
        """What the rule gives, to two digits; None where updates did not count."""
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
