"""A table as text: the same rows for the terminal and for the pages."""

from collections.abc import Sequence
from dataclasses import dataclass

MISSING = "not run here"


@dataclass(frozen=True)
class Table:
    """Rows of text: a name, then numbers. A trailing "*" marks an emphasised number."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def markdown(table: Table) -> list[str]:
    """Its header and rows."""
    return [
        "| " + " | ".join(table.header) + " |",
        "| " + " | ".join(["---", *["---:"] * (len(table.header) - 1)]) + " |",
        *("| " + " | ".join(map(_emphasised, row)) + " |" for row in table.rows),
    ]


def _emphasised(cell: str) -> str:
    return f"**{cell[:-1]}**" if cell.endswith("*") else cell
