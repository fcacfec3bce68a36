"""feddwa: personalised federated learning with dynamic weight adjustment, and the methods it is compared with."""

import os

# Before torch is loaded: its threads wait by spinning, so that on two cores of which one has other work to do the demo
# takes 52 s. Sleeping they take 2.8 s there, and on idle cores the same as before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it once, at its first allocation: see engine/memory.py

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
