"""feddwa: personalised federated learning with dynamic weight adjustment, and the methods it is compared with."""

import os

# Both are read once, when torch is loaded and when it first allocates. How long a thread spins before it sleeps: on two
# cores of which one has other work to do, torch's default made the demo 15 times slower. Huge pages: engine/memory.py.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from feddwa import mixing
from feddwa.algorithms import ALGORITHMS, Algorithm
from feddwa.algorithms.fedavg import FedAvg
from feddwa.algorithms.feddwa import FedDWA
from feddwa.algorithms.local import Local
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.experiment import Result, resume, run, simulate

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
    "resume",
    "run",
    "simulate",
]
