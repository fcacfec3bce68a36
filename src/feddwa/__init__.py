"""feddwa: personalised federated learning with dynamic weight adjustment, and the methods it is compared with."""

from feddwa import mixing
from feddwa.algorithms import ALGORITHMS, Algorithm, FedAvg, FedDWA, Local
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.experiment import Result, run, simulate

__version__ = "0.1.0"
__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "FedAvg",
    "FedDWA",
    "InputError",
    "Local",
    "Result",
    "RunConfig",
    "mixing",
    "run",
    "simulate",
]
