"""One case under watch: a time limit, warnings as errors, and what is a finding."""

import contextlib
import os
import random
import signal
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case, Target

LIMIT = 20.0  # seconds of CPU time that a case may take


class Hang(BaseException):
    """A case that does not end."""


@dataclass(frozen=True)
class Answer:
    """What became of a case."""

    target: str
    seed: int
    refusal: str  # "" where it was accepted
    problem: str  # "" where this was right
    seconds: float  # of CPU time
    case: Case

    @property
    def name(self) -> str:
        """What brings it back."""
        return f"{self.target}:{self.seed}"

    @property
    def outcome(self) -> str:
        """One word."""
        return "finding" if self.problem else "refused" if self.refusal else "accepted"


def attempt(target: Target, seed: int, limit: float = LIMIT) -> Answer:
    """Draw the case of a seed and try it."""
    with _in(target.folder):
        case = target.draw(random.Random(zlib.crc32(target.name.encode()) + (seed << 32)))
        return again(target, case, seed, limit)


def again(target: Target, case: Case, seed: int = -1, limit: float = LIMIT) -> Answer:
    """Try a case."""
    refusal = problem = ""
    begun = time.process_time()
    try:
        with _in(target.folder), _ends(limit), warnings.catch_warnings():
            warnings.simplefilter("error")
            refusal = target.check(case)
    except Hang:
        problem = f"does not end within {limit:g} s of CPU time"
    except Exception:
        problem = traceback.format_exc()
    return Answer(target.name, seed, refusal, problem, time.process_time() - begun, case)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    """With a folder as the current one."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)


@contextlib.contextmanager
def _ends(limit: float) -> Iterator[None]:
    """Raise Hang in what takes longer than so many seconds of CPU time."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit, 1.0)  # again: somebody may have swallowed the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
