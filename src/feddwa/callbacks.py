"""Callbacks: side effects of a run, called after every round. Trackers are callbacks.

class Early(feddwa.Callback):
    def on_round(self, run, round):
        print(run.config.seed, round.line["round"], round.line["before"]["all"])

feddwa.run(callbacks=[Early()])      or      feddwa run --callback mymodule:Early
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from feddwa.config import RunConfig
from feddwa.errors import InputError, require
from feddwa.federation import Round

Line = dict[str, Any]


class Entry(NamedTuple):
    """The record of a round, or of the run's final models."""

    line: Line  # of metrics.jsonl
    clients: Line  # of clients.jsonl
    result: Round | None = None  # None for the final models; `result.info` may have P as "weights"


@dataclass(frozen=True)
class Run:
    """A callback's view of a run. Runs in lockstep are reported separately."""

    config: RunConfig
    path: Path | None  # the run directory; None if nothing is written
    past: Sequence[Line] = ()  # lines of metrics.jsonl before a resume


class Callback:
    """A side effect of a run. Override the methods of interest.

    A callback does not change the run. One that raises stops the run, which can be resumed, and is named in the error.
    After a kill, rounds since the last checkpoint are repeated: `run.past` shows where the run continues.
    """

    def on_begin(self, run: Run) -> None:
        """Before the first round, or the first one after a resume."""

    def on_round(self, run: Run, round: Entry) -> None:
        """After every round, and once more for the final models."""

    def on_end(self, run: Run, summary: Mapping[str, Any] | None) -> None:
        """When the run directory is complete; summary: the run's, None if it was interrupted."""


class Callbacks:
    """All callbacks of one run."""

    def __init__(self, run: Run | None, each: Sequence[Callback]) -> None:
        self._run, self._each = run, each

    def round(self, entry: Entry) -> None:
        """Call `on_round`."""
        self._tell("on_round", entry)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Call `on_end`."""
        self._tell("on_end", summary)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Call `on_begin`, and `on_end` if the enclosed rounds are interrupted."""
        try:
            self._tell("on_begin")
            yield
        except BaseException:
            for each in self._each:
                with suppress(Exception):  # the original error must be raised
                    self._call(each, "on_end", None)
            raise

    def _tell(self, event: str, *facts: Any) -> None:
        for each in self._each:
            try:
                self._call(each, event, *facts)
            except InputError:
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                name = f"{type(each).__module__}:{type(each).__qualname__}"
                raise RuntimeError(f"callback {name}, {event}: {what}") from error

    def _call(self, each: Callback, event: str, *facts: Any) -> None:
        getattr(each, event)(self._run, *facts)


NOBODY = Callbacks(None, ())


def split_off(options: dict[str, Any]) -> list[Callback]:
    """Remove callbacks that are objects, not references, from the options of `feddwa.run`."""
    given = options.get("callbacks", ())
    require(isinstance(given, list | tuple), "callbacks", given, "a list of callbacks")
    for each in given:
        known = isinstance(each, str | Callback)
        require(known, "callbacks", each, "instances of feddwa.Callback, or references such as mypkg.mymodule:Mine")
    if given:
        options["callbacks"] = tuple(each for each in given if isinstance(each, str))
    return [each for each in given if isinstance(each, Callback)]


def numbers(line: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float | None]]:
    """Name -> value of every number in a line of metrics.jsonl: "before.all", "seconds.train"."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{before}{name}.")
        elif value is None or isinstance(value, int | float):
            yield f"{before}{name}", value
