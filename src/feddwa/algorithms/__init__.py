"""The algorithms, one file each. A newcomer is added here and nowhere else."""

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.feddwa import FedDWA
from feddwa.algorithms.local import Local

ALGORITHMS: dict[str, type[Algorithm]] = {
    "feddwa": FedDWA,
    "fedavg": FedAvg,
    "local": Local,
}

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "FedDWA", "Info", "Local", "Problem"]
