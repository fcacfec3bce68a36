"""Many cases in several processes for some minutes: what was tried, what was found, and what is kept for the next time.

The targets get equal shares of CPU time. A process that hangs or dies is replaced, and its case is a finding. FOLDER
keeps `answers.jsonl`, a case of every distinct answer, which the next campaign tries first, and `findings/`.
"""

import json
import multiprocessing
import os
import re
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from feddwa.workers import end_with
from tests.fuzz.attempt import Answer, attempt
from tests.fuzz.case import Target

PATIENCE = 120.0  # seconds that a case may take, before its process is killed
MEMORY = 12 * 2**30  # bytes of address space of a process
APART = 1_000_000  # between the case numbers of two seeds

Kept = dict[str, str]  # target and answer without its numbers -> TARGET:SEED


@dataclass
class Job:
    """A process that tries cases, seen from the one that watches."""

    number: int
    pipe: Connection
    process: multiprocessing.process.BaseProcess
    case: tuple[str, int] | None = None  # under way
    since: float = 0.0


@dataclass
class Campaign:
    """So many minutes of cases, drawn from a seed."""

    kinds: Sequence[type[Target]]
    minutes: float
    seed: int
    folder: Path
    jobs: int = 2
    patience: float = PATIENCE
    answers: list[Answer] = field(default_factory=list)
    starts: int = 0  # processes that were begun

    def run(self) -> None:
        """Try cases until the time is over."""
        ends, kept = time.monotonic() + 60 * self.minutes, self._kept()
        running = [self._start(number, ends, kept) for number in range(self.jobs)]
        while running:
            ready = wait([job.pipe for job in running], timeout=0.5)
            for job in list(running):
                try:
                    while job.pipe in ready and job.pipe.poll():
                        self._take(job, job.pipe.recv())
                    late = job.case is not None and time.monotonic() - job.since > self.patience
                except EOFError:
                    late = False
                else:
                    if not late:
                        continue
                running.remove(job)
                if self._over(job, late) and time.monotonic() < ends:
                    running.append(self._start(job.number, ends, {}))
        self._keep(kept)

    def _start(self, number: int, ends: float, kept: Kept) -> Job:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe(duplex=False)
        first = self.seed * APART + self.starts * (APART // 50)
        names = list(kept.values())[number :: self.jobs]
        log = self.folder / f"process-{number}.log"
        self.starts += 1
        process = context.Process(target=work, args=(self.kinds, first, ends, names, theirs, str(log)), daemon=True)
        process.start()
        theirs.close()
        return Job(number, mine, process)

    def _take(self, job: Job, told: Answer | tuple[str, int]) -> None:
        if isinstance(told, Answer):
            self.answers.append(told)
            job.case = None
        else:
            job.case, job.since = told, time.monotonic()

    def _over(self, job: Job, late: bool) -> bool:
        """End a process that hangs, or look why one has ended; whether another has to take its place."""
        job.process.kill() if late else None
        job.process.join()
        if job.case is None and job.process.exitcode == 0:
            return False
        why = f"did not end within {self.patience:g} s" if late else f"its process died ({job.process.exitcode})"
        name, seed = job.case or ("no case", self.seed)
        self.answers.append(Answer(name, seed, "", why, 0.0, {}))
        return job.case is not None  # one that has not come so far would not the next time

    def _kept(self) -> Kept:
        file = self.folder / "answers.jsonl"
        (self.folder / "findings").mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.is_file() else []
        return {found["answer"]: found["case"] for found in map(json.loads, lines)}

    def _keep(self, kept: Kept) -> None:
        for answer in self.answers:
            kept.setdefault(alike(answer), answer.name)
            if answer.problem:
                content = {"target": answer.target, "case": answer.case, "problem": answer.problem}
                file = self.folder / "findings" / f"{answer.target}-{answer.seed}.json"
                file.write_text(json.dumps(content, indent=1) + "\n")
        lines = (json.dumps({"answer": key, "case": name}) for key, name in kept.items())
        (self.folder / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))


def alike(answer: Answer) -> str:
    """The same for answers of a target that differ by names and numbers alone."""
    text = answer.problem.strip().rpartition("\n")[2] or answer.refusal
    return f"{answer.target} {answer.outcome} " + re.sub(r"'[^']*'|\"[^\"]*\"|[-\w./]*\d[-\w./]*", "#", text)[:120]


def work(
    kinds: Sequence[type[Target]], first: int, ends: float, kept: Iterable[str], pipe: Connection, log: str
) -> None:
    """Try cases until the time is over; what is printed on the way goes to a log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    end_with(os.getppid())
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory(prefix="feddwa-fuzz-") as folder:
        targets: dict[str, Target] = {}
        spent = {kind.name: 0.0 for kind in kinds}  # seconds of CPU time
        for name, seed in _turns(spent, first, ends, kept):
            if name not in targets:  # what it damages is made when it has its first turn
                targets |= prepared([kind for kind in kinds if kind.name == name], Path(folder))
            pipe.send((name, seed))
            answer = attempt(targets[name], seed)
            spent[name] += answer.seconds
            pipe.send(answer)
    pipe.close()


def _turns(spent: Mapping[str, float], first: int, ends: float, kept: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The next case, time and again: those that were kept, then always of the target that has had the least time."""
    numbers = dict.fromkeys(spent, first)
    for name in kept:
        target, _, seed = name.partition(":")
        if time.monotonic() < ends and target in numbers:
            yield target, int(seed)
    while time.monotonic() < ends:
        name = min(numbers, key=lambda each: spent[each])
        yield name, numbers[name]
        numbers[name] += 1


def prepared(kinds: Sequence[type[Target]], folder: Path) -> dict[str, Target]:
    """Targets by name, each in a folder of its own, with a cache and without data of this machine."""
    os.environ["FEDDWA_CACHE"] = str(folder / "cache")
    os.environ.pop("FEDDWA_DATA", None)
    found, before = {}, Path.cwd()
    for kind in kinds:
        own = folder / kind.name
        own.mkdir()
        os.chdir(own)
        found[kind.name] = target = kind()
        target.prepare(own)
        os.chdir(before)
    return found
