"""Callbacks: what is to happen beside a run, told of every round. Trackers are callbacks.

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
    """What is recorded of a round, or of the models that the run delivers."""

    line: Line  # of metrics.jsonl
    clients: Line  # of clients.jsonl
    result: Round | None = None  # None: the delivered models; `result.info` may have P as "weights"


@dataclass(frozen=True)
class Run:
    """A run as callbacks know it. Of runs in lockstep each is told of by itself."""

    config: RunConfig
    path: Path | None  # the run directory; None where nothing is written
    past: Sequence[Line] = ()  # lines of metrics.jsonl that a run which goes on has behind it


class Callback:
    """What is to happen beside a run. Override what is of interest.

    A callback changes nothing of the run. One that raises stops the run, which can be resumed, and is named.
    After a kill, rounds since the last checkpoint come again: `run.past` tells from where the run goes on.
    """

    def on_begin(self, run: Run) -> None:
        """Before the first round, or the first one after a resume."""

    def on_round(self, run: Run, round: Entry) -> None:
        """After every round, and once more for the models that the run delivers."""

    def on_end(self, run: Run, summary: Mapping[str, Any] | None) -> None:
        """When the run directory is complete; summary: of the run, None where it was interrupted."""


class Callbacks:
    """All callbacks of one run."""

    def __init__(self, run: Run | None, each: Sequence[Callback]) -> None:
        self._run, self._each = run, each

    def round(self, entry: Entry) -> None:
        """Tell of a round."""
        self._tell("on_round", entry)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Tell of the end."""
        self._tell("on_end", summary)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Tell of the beginning, and where the enclosed rounds are interrupted of that."""
        try:
            self._tell("on_begin")
            yield
        except BaseException:
            for each in self._each:
                with suppress(Exception):  # what interrupted the run is to be heard
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
    """Take the callbacks that are no references out of the options of `feddwa.run`."""
    given = options.get("callbacks", ())
    require(isinstance(given, list | tuple), "callbacks", given, "a list of callbacks")
    for each in given:
        known = isinstance(each, str | Callback)
        require(known, "callbacks", each, "instances of feddwa.Callback, or references such as mypkg.mymodule:Mine")
    if given:
        options["callbacks"] = tuple(each for each in given if isinstance(each, str))
    return [each for each in given if isinstance(each, Callback)]


def numbers(line: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float | None]]:
    """Name -> value of everything in a line of metrics.jsonl that is a number: "before.all", "seconds.train"."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{before}{name}.")
        elif value is None or isinstance(value, int | float):
            yield f"{before}{name}", value
