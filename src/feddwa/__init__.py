"""feddwa: personalised federated learning with dynamic weight adjustment, and the methods it is compared with.

The names below are imported on first use, so that `feddwa --version` does not load torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Both are read once, when torch is loaded and when it first allocates. How long a thread spins before it sleeps: on two
# cores of which one has other work to do, torch's default made the demo 15 times slower. Huge pages: engine/engine.py.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from feddwa import mixing
    from feddwa.algorithms import ALGORITHMS, Algorithm, FedAvg, FedDWA, Local
    from feddwa.callbacks import Callback
    from feddwa.config import RunConfig
    from feddwa.entry import compare, run
    from feddwa.errors import InputError
    from feddwa.experiment import resume
    from feddwa.report.watching import Progress
    from feddwa.result import Comparison, Result, Results

__version__ = "0.2.0"
__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Callback",
    "Comparison",
    "FedAvg",
    "FedDWA",
    "InputError",
    "Local",
    "Progress",
    "Result",
    "Results",
    "RunConfig",
    "compare",
    "mixing",
    "resume",
    "run",
]

_HOMES = {  # module -> the public names that it defines
    "feddwa.algorithms": ("ALGORITHMS", "Algorithm", "FedAvg", "FedDWA", "Local"),
    "feddwa.callbacks": ("Callback",),
    "feddwa.config": ("RunConfig",),
    "feddwa.errors": ("InputError",),
    "feddwa.entry": ("compare", "run"),
    "feddwa.experiment": ("resume",),
    "feddwa.report.watching": ("Progress",),
    "feddwa.result": ("Comparison", "Result", "Results"),
}


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it."""
    if name == "mixing":
        return import_module("feddwa.mixing")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'feddwa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
