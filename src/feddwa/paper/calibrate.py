"""ClusterFL's tolerances, which the paper tuned and did not print: measured, by the same rule in every column.

A cluster splits where the norm of its mean update is below eps1 and the largest norm above eps2. The original's 1.6 is
longer than any update of the paper's networks at rate 0.01, so that nothing would ever split. The rule: eps1 stays the
original's 0.4; eps2 is 0.8 of the largest norm in the ten rounds from which on splits are allowed, of a federation that
never splits, seed 0.
"""

import dataclasses
from dataclasses import dataclass
from statistics import median

from feddwa.algorithms import ClusterFL
from feddwa.build import make_engine
from feddwa.config import RunConfig
from feddwa.federation import Federation
from feddwa.paper import run

ROUNDS, LATE = 30, 10  # splits are allowed after round 20
SHARE = 0.8


@dataclass(frozen=True)
class Norms:
    """Norms of updates, round by round."""

    mean: list[float]  # of the mean update
    largest: list[float]  # of any client's update

    @property
    def eps2(self) -> float:
        """What the rule gives, to two digits."""
        return round(SHARE * median(self.largest[-LATE:]), 2)


def update_norms(config: RunConfig, rounds: int = ROUNDS) -> Norms:
    """Train without splits and look at the updates."""
    config = dataclasses.replace(config, algorithm="clusterfl", seed=0, param=_partition_only(config)).resolved()
    engine = make_engine(config, run.task(config))
    federation = Federation(ClusterFL(eps1=0.0), engine, config.participation, batchnorm=config.batchnorm)
    reports = [federation.step().info for _ in range(rounds)]
    return Norms([float(r["mean_norm"].max()) for r in reports], [float(r["max_norm"].max()) for r in reports])


def _partition_only(config: RunConfig) -> tuple[str, ...]:
    return tuple(entry for entry in config.param if entry.startswith(f"{config.partition}."))
