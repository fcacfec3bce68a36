"""feddwa: personalised federated learning with dynamic weight adjustment, and the methods it is compared with."""

import os

# Both are read once, when torch is loaded and when it first allocates. Threads that spin while they wait make the demo
# take 52 s instead of 2.8 s on two cores of which one has other work to do. Huge pages: see engine/memory.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

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
