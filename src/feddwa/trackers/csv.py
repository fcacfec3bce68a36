"""A run as a table: rounds.csv in the run directory, one row a round.

Columns are what the first row has, "round" first; one that comes later is appended on the right.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddwa.callbacks import Callback, Entry, Run, numbers
from feddwa.storage import write_whole

FILE = "rounds.csv"


class Tracker(Callback):
    """Writes rounds.csv: all of it when a run begins or goes on, then a row at a time."""

    def on_begin(self, run: Run) -> None:
        """Write the rounds that there are."""
        assert run.path is not None
        self._path, self._columns = run.path / FILE, ["round"]
        self._rows = [dict(numbers(line)) for line in run.past]
        self._write(self._rows)

    def on_round(self, run: Run, round: Entry) -> None:
        """Append a row."""
        row = dict(numbers(round.line))
        self._rows.append(row)
        if set(row) <= set(self._columns):
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._text([row]))
        else:
            self._write(self._rows)

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The whole file, with every column that a row has."""
        self._columns = list(dict.fromkeys([*self._columns, *(name for row in rows for name in row)]))
        write_whole(Path(self._path), ",".join(self._columns) + "\r\n" + self._text(rows))

    def _text(self, rows: Sequence[Mapping[str, Any]]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self._columns).writerows(rows)
        return text.getvalue()
