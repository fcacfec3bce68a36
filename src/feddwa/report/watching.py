"""Progress of runs that Python starts: `feddwa.run(callbacks=[feddwa.Progress()])`, in terminals and notebooks."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from feddwa.callbacks import Callback, Entry, Run
from feddwa.plugins import label
from feddwa.report.progress import Observer, progress
from feddwa.report.terminal import make_console


class Progress(Callback):
    """Shows how far runs are and how good their models: a bar in a terminal or a notebook, plain lines elsewhere.

    Runs in lockstep share a bar; those that come one after the other have one each.
    """

    def __init__(self) -> None:
        self._open, self._under_way = ExitStack(), 0
        self._observe: Observer | None = None

    def on_begin(self, run: Run) -> None:
        """Show the bar unless a run of the same stack already has."""
        if self._observe is None:
            console = make_console()
            shown = progress(console, label(run.config.algorithm), run.config.rounds or 0)
            self._observe = self._open.enter_context(shown)
        self._under_way += 1

    def on_round(self, run: Run, round: Entry) -> None:
        """Move it."""
        if self._observe is not None:
            self._observe(round.line, run.config.seed)

    def on_end(self, run: Run, summary: Mapping[str, Any] | None) -> None:
        """Stop updating when the last run of the stack ends."""
        self._under_way -= 1
        if self._under_way == 0:
            self._open.close()
            self._observe = None
