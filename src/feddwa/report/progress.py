"""Progress of long jobs: bars that say how good, how far and how long in terminals and notebooks, else plain lines."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from feddwa.report.notebook import Board
from feddwa.report.tally import Line, Tally
from feddwa.results.units import human_seconds

Observer = Callable[..., None]  # takes a line, and of several seeds in lockstep also which it is of, as `seed`

PLAIN_EVERY = 10.0  # seconds between two plain lines
SHOWN = 8  # finished runs that stay on the screen


@contextmanager
def progress(console: Console, name: str, rounds: int, quiet: bool = False) -> Iterator[Observer]:
    """Show the lines of metrics.jsonl of one run as they come."""
    with jobs(console, 1, quiet=quiet) as job, job(name, rounds) as observe:
        yield observe


@contextmanager
def jobs(
    console: Console, count: int, what: str = "runs", quiet: bool = False, ends: bool = True
) -> Iterator[Callable[..., Any]]:
    """Several runs one after another: `with jobs(console, 3) as job, job("feddwa", rounds) as observe: ...`.

    ends: whether the end of every run is told where there is no terminal; not where somebody else tells it.
    """
    if quiet:
        yield _silent
    elif console.is_terminal:
        with _Board(console, count, what) as board:
            yield board.job
    elif console.is_jupyter:
        yield _NotebookJobs().job
    else:
        yield _PlainJobs(console, count, ends).job


@contextmanager
def decoding(quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr while images are decoded; it disappears at the end."""
    console = Console(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        yield lambda done, total: None
        return
    columns = TextColumn("decoding images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, visible=False)
        yield lambda done, total: bars.update(task, completed=done, total=total, visible=True)


@contextmanager
def _silent(name: str, rounds: int) -> Iterator[Observer]:
    yield lambda line, seed=0: None


class _Board:
    """Terminal bars: one for all runs if there are several, one per run, and the current run's state."""

    def __init__(self, console: Console, count: int, what: str) -> None:
        self._bars = Progress(
            _Mark(),
            TextColumn("{task.description:<10}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}", markup=False),
            _Clock(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._done, self._stopped = ("✓", "✗") if console.encoding.startswith("utf") else ("*", "x")
        self._details = Text(style="dim", no_wrap=True, overflow="ellipsis")
        self._live = Live(Group(self._bars, self._details), console=console, refresh_per_second=8)
        self._finished: list[TaskID] = []
        self._all = self._bars.add_task("all", total=count, unit=what, note="", over="", took="") if count > 1 else None

    def __enter__(self) -> "_Board":
        self._live.start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._details.plain = ""
        if self._all is not None:
            self._end(self._all, self._done if error is None else self._stopped)
        self._live.stop()

    @contextmanager
    def job(self, name: str, rounds: int) -> Iterator[Observer]:
        """A run: show its lines as they come."""
        tally = Tally(name, rounds)
        before = 0.0 if self._all is None else self._bars.tasks[self._all].completed
        task = self._bars.add_task(name, total=rounds, unit="rounds", note="", over="", took=tally.took())

        def observe(line: Line, seed: int = 0) -> None:
            tally.add(line, seed)
            self._bars.update(task, completed=tally.round, note=tally.score, took=tally.took())
            if self._all is not None:
                self._bars.update(self._all, completed=before + tally.round / rounds)
            self._details.plain = f"  {tally.details()}"

        mark, over = self._done, True
        try:
            yield observe
        except BaseException as error:
            mark, over = self._stopped, isinstance(error, Exception)  # one that fails is over, too
            self._bars.update(task, note=f"stopped after round {tally.round}")
            raise
        finally:
            self._end(task, mark)
            self._finished.append(task)
            if self._all is not None and over:
                self._bars.update(self._all, completed=round(before) + 1)
            for old in self._finished[:-SHOWN]:  # a screen has no room for all that is over
                self._bars.update(old, visible=False)

    def _end(self, task: TaskID, mark: str) -> None:
        self._bars.stop_task(task)
        self._bars.update(task, over=mark)


class _Mark(SpinnerColumn):
    """Turns while a run is under way; then says whether it came to its end."""

    def render(self, task: Task) -> RenderableType:
        """A mark of `over`, if there is one."""
        return Text(task.fields["over"]) if task.fields["over"] else self.spinner.render(task.get_time())


class _Clock(ProgressColumn):
    """Remaining time, then the run's duration; for several runs the elapsed time with set-up."""

    max_refresh = 0.5

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        """In words."""
        if task.fields["over"]:
            return Text(task.fields["took"] or f"{human_seconds(task.elapsed or 0.0)} total")
        return Text("" if task.time_remaining is None else f"{human_seconds(task.time_remaining)} left")


class _NotebookJobs:
    """Bars in the output of a notebook's cell."""

    def __init__(self) -> None:
        self._board = Board()

    @contextmanager
    def job(self, name: str, rounds: int) -> Iterator[Observer]:
        """A run: show its lines as they come."""
        tally, number = Tally(name, rounds), self._board.add()

        def show(left: str, now: bool = False) -> None:
            note = f"{tally.score}, {tally.details()}, {left}"
            self._board.update(number, name, tally.round, rounds, note, now)

        def observe(line: Line, seed: int = 0) -> None:
            tally.add(line, seed)
            show(f"{human_seconds(tally.left())} left")

        try:
            yield observe
        finally:
            show(tally.took(), now=True)


class _PlainJobs:
    """A line now and then, and one at the end of each run."""

    def __init__(self, console: Console, count: int, ends: bool) -> None:
        self._console, self._count, self._ends, self._done = console, count, ends, 0

    @contextmanager
    def job(self, name: str, rounds: int) -> Iterator[Observer]:
        """Report a run's state from time to time."""
        tally, shown = Tally(name, rounds), time.monotonic()
        place = f" ({self._done + 1} of {self._count})" if self._count > 1 else ""

        def observe(line: Line, seed: int = 0) -> None:
            nonlocal shown
            tally.add(line, seed)
            if tally.done:
                if self._ends:
                    self._print(f"{name}: done, {tally.score}, {tally.details()}, {tally.took()}")
            elif time.monotonic() - shown > PLAIN_EVERY:
                shown = time.monotonic()
                where = f"{name}{place}: round {tally.round}/{rounds}"
                self._print(f"{where}, {tally.score}, {tally.details()}, {human_seconds(tally.left())} left")

        try:
            yield observe
        finally:
            self._done += 1

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
