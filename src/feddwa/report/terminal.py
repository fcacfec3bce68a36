"""Terminal output: a console that prints text literally, and findings with their marks."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from feddwa.results.findings import Finding

MARKS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("warn", "yellow"), "error": ("bad", "red")}
WIDTH = 100  # of a line, however wide the terminal


def make_console(quiet: bool = False, width: int | None = None) -> Console:
    """A console for text that users have a part in: "[x]" in a path is no markup, and ":x:" no picture."""
    return Console(quiet=quiet, width=width, markup=False, emoji=False)


def show_finding(console: Console, finding: "Finding", whose: str = "") -> None:
    """Print a finding with its mark; `whose` (a method's name) precedes the text."""
    word, colour = MARKS[finding.level]
    text = Text(f"{word:>5}  ", style=colour)
    text.append(f"{whose}: {finding.text}" if whose else finding.text, style="default")
    console.print(_hanging(text, min(WIDTH, console.width)))


def _hanging(text: Text, width: int) -> Text:
    """Lines after the first begin where the first one's words do."""
    mark, words = text.divide([7])
    lines = words.wrap(Console(width=width), width - 8)
    return Text("\n       ").join([mark + lines[0], *lines[1:]]) if lines else mark
