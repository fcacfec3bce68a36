"""Writes what the pages say about every algorithm from its class: python docs/algorithm_index.py

The tables of docs/algorithms/README.md, and a page for an algorithm that has none. Sentences in the first table
that are there already stay as they are; a new algorithm has its `summary`.
"""

import re
from pathlib import Path

from feddwa.algorithms import ALGORITHMS, Algorithm
from feddwa.built_in import Entry, entries, fields_text
from feddwa.cli.listing import amount_in_words, passes_in_words
from feddwa.groups import by_kind
from feddwa.params import fields_of

FOLDER = Path(__file__).parent / "algorithms"
ROW = re.compile(r"^\| \[(\w+)\]\(\w+\.md\) \| [\w-]+ \| [\w-]+ \| (.+?) \| .*\|\n", re.MULTILINE)
KEPT = re.compile(r"^\| `\w+` \| .*\|\n", re.MULTILINE)


def index(page: str) -> str:
    """The page with one row for every algorithm in either table: by kind, in it by year."""
    said, known = dict(ROW.findall(page)), entries("algorithm")
    names = [(kind, name) for kind, own in by_kind().items() for name in own]
    rows = [
        f"| [{name}]({name}.md) | {kind} | {known[name].facts.get('year', '-')} | "
        f"{said.get(name, known[name].facts['summary'])} | {traffic(known[name])} | {cost(known[name])} |\n"
        for kind, name in names
    ]
    kept = [f"| `{name}` | {' | '.join(told(known[name]))} |\n" for _, name in names]
    return _replaced(KEPT, _replaced(ROW, page, rows), kept)


def _replaced(row: re.Pattern[str], page: str, rows: list[str]) -> str:
    """A page with its rows of one table replaced."""
    place = row.search(page)
    assert place is not None
    return page[: place.start()] + "".join(rows) + row.sub("", page[place.start() :])


def traffic(entry: Entry) -> str:
    """Models down + up."""
    return f"{entry.facts['models_down']} + {entry.facts['models_up']}"


def cost(entry: Entry) -> str:
    """Passes over a client's data."""
    return passes_in_words(entry.facts)


def told(entry: Entry) -> list[str]:
    """What a client keeps, what the server learns of it, and what is evaluated."""
    kept = amount_in_words(entry.facts, "kept").replace("0 models", "-")
    return [kept, *(str(entry.facts[key]) for key in ("discloses", "evaluated"))]


def new_page(name: str, kind: type[Algorithm]) -> str:
    """A page to begin with: what the class says, its hyper-parameters, a command."""
    texts = fields_text(kind)
    rows = [f"| `{key}` | {_literal(usual)} | {texts[key]} |" for key, (_, usual) in fields_of(kind).items()]
    table = ["| parameter | default | meaning |", "| --- | --- | --- |", *rows, ""] if rows else []
    command = ["```", f"feddwa run --algorithm {name}", "```"]
    return "\n".join([f"# {kind.title}", "", f"{kind.summary.capitalize()}.", "", *table, *command, ""])


def _literal(value: object) -> str:
    return str(value).lower() if value in (None, True, False) else str(value)


def main() -> None:
    """Write what is missing or out of date."""
    page = FOLDER / "README.md"
    page.write_text(index(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, kind in ALGORITHMS.items():
        if not (FOLDER / f"{name}.md").exists():
            (FOLDER / f"{name}.md").write_text(new_page(name, kind), encoding="utf-8")


if __name__ == "__main__":
    main()
