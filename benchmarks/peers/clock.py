"""The clock of every runner in this folder, used in the peer's process. Imports torch and nothing of feddwa.

A round lasts from the sampling of its clients to the server's new state. Evaluation within it is taken off. On a GPU
the clock waits for the device before it is read.
"""

import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

START = "FIELD_START"  # environment variable: when the process was started, in seconds since the epoch
RESULT = "result.json"  # what a runner leaves in its folder


class Clock:
    """Seconds and steps of rounds, seconds of evaluations. Steps: of the process's torch optimisers unless told."""

    def __init__(self, skip: Callable[[Any], bool] = lambda optimizer: False) -> None:
        """skip: whose steps do not count, such as a server's optimiser."""
        self.rounds: list[float] = []
        self.steps: list[int] = []
        self.evaluations: list[float] = []
        self.setup = 0.0
        self._begun: float | None = None
        self._counted, self._evaluated = 0, 0.0
        self._hook = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._count(skip(optimizer)))

    def begin(self) -> None:
        """Begin a round."""
        if not self.rounds:
            self.setup = since_start()
        self._counted, self._evaluated, self._begun = 0, 0.0, now()

    def end(self, steps: int | None = None) -> None:
        """End the round; steps: of all its clients, if other processes made them."""
        assert self._begun is not None
        self.rounds.append(now() - self._begun - self._evaluated)
        self.steps.append(self._counted if steps is None else steps)
        self._begun = None

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Exclude the enclosed work from the round."""
        start = now()
        yield
        self.evaluations.append(now() - start)
        self._evaluated += self.evaluations[-1]

    def write(self, folder: Path, accuracy: float, packages: Iterable[str], **facts: Any) -> None:
        """Write the result and stop counting: see `leave`. packages: whose versions to record."""
        self._hook.remove()
        measured = {"rounds": self.rounds, "steps": self.steps, "evaluations": self.evaluations, "setup": self.setup}
        known = {"python": platform.python_version(), "torch": torch.__version__, **versions(packages)}
        leave(folder, **measured, accuracy=accuracy, versions=known, **facts)

    def _count(self, skipped: bool) -> None:
        self._counted += not skipped


def since_start() -> float:
    """Seconds since this process was started, imports included."""
    return time.time() - float(os.environ[START])


def leave(folder: Path, **result: Any) -> None:
    """Write the measurements: rounds, steps, evaluations, setup, versions, and accuracy.

    The accuracy is that of the last global model on all test samples, in percent.
    """
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")


def now() -> float:
    """Seconds, after the device has finished its work."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def task_in(folder: Path) -> dict[str, Any]:
    """The numbers of the task (`forms.write_facts`)."""
    facts: dict[str, Any] = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    return facts


def around(owner: Any, name: str, before: Callable[[], None] | None = None, after: Callable[..., None] | None = None):  # type: ignore[no-untyped-def]
    """Call `before()` ahead of a method and `after(its first argument, its result)` behind it."""
    method = getattr(owner, name)

    @wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before()
        result = method(*args, **kwargs)
        if after is not None:
            after(args[0], result)
        return result

    setattr(owner, name, wrapped)


def timed(owner: Any, name: str, clock: Clock) -> None:
    """Count a method's time as evaluation."""
    method = getattr(owner, name)

    @wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with clock.evaluation():
            return method(*args, **kwargs)

    setattr(owner, name, wrapped)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Name -> version of packages that are installed as such."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def replace_missing(names: Iterable[str]) -> list[str]:
    """Put modules that raise when they are used where packages that only other work needs cannot be imported.

    The names of these.
    """
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError):  # RuntimeError: a torchvision that was built for another torch
            sys.modules[name] = _Missing(name)
            missing.append(name)
    return missing


class _Missing(ModuleType):
    """A stand-in for a missing package: its names can be imported and raise when called."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        package = self.__name__

        def unusable(*args: Any, **kwargs: Any) -> NoReturn:
            raise ImportError(f"{package}.{name}: the package {package} is not installed")

        return unusable
