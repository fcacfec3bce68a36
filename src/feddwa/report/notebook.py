"""Progress in a notebook cell whose output is replaced in place; needs no widgets."""

import time
from html import escape
from typing import Any

EVERY = 0.2  # seconds between two states that are shown


class Board:
    """Bars of a cell, a line each."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # a notebook has it

        self._html, self._lines, self._shown = HTML, list[str](), time.monotonic()
        self._handle: Any = display(HTML(""), display_id=True)

    def add(self) -> int:
        """A line more; its number."""
        self._lines.append("")
        return len(self._lines) - 1

    def update(self, number: int, name: str, done: int, total: int, note: str, now: bool) -> None:
        """How far a line is; now: even where the last state has only just been shown."""
        bar = f'<progress value="{done}" max="{total}" style="vertical-align:middle"></progress>'
        self._lines[number] = f"<div>{escape(name)} {bar} {done}/{total} rounds, {escape(note)}</div>"
        if now or time.monotonic() - self._shown > EVERY:
            self._shown = time.monotonic()
            self._handle.update(self._html("".join(self._lines)))
