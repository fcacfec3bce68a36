"""docs/reproduction.md and the README's paragraph about it, written from the results alone."""

import os
import re
import textwrap
from importlib import resources
from pathlib import Path

from feddwa.paper.figures import draw
from feddwa.paper.specs import Experiment, experiments, tuned
from feddwa.paper.store import Store
from feddwa.paper.summary import GAP, Gap, gaps
from feddwa.paper.tables import Table, findings, tables_of
from feddwa.paper.verdict import extent_table, headline, places_table, verdict

MARKED = re.compile(r"(<!-- reproduction -->\n).*?(<!-- end -->)", re.DOTALL)  # the README's paragraph


def write_page(store: Store, folder: Path) -> list[Path]:
    """Write reproduction.md and its figures; the same results give the same bytes.

    A README.md beside the folder with the marks of the paragraph about the reproduction gets that, too.
    """
    figures, found = folder / "reproduction", verdict(store)
    frame = resources.files(__package__).joinpath("frame.md").read_text(encoding="utf-8")
    tables = "\n".join([*markdown(places_table(found)), "", *markdown(extent_table(store))])
    parts = [frame.format(tuned=tuned_text(), headline=wrapped(headline(found)), tables=tables)]
    written: list[Path] = []
    for experiment in experiments().values():
        drawn = draw(experiment, store, figures)
        parts.append(section(experiment, store, [path.relative_to(folder) for path in drawn]))
        written += drawn
    page = folder / "reproduction.md"
    folder.mkdir(parents=True, exist_ok=True)
    _replace(page, "\n".join(parts))
    readme = folder.parent / "README.md"
    if readme.is_file() and MARKED.search(text := readme.read_text(encoding="utf-8")):
        told = wrapped(headline(found))
        _replace(readme, MARKED.sub(lambda marks: f"{marks[1]}{told}\n{marks[2]}", text))
    return [page, *written]


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def wrapped(text: str) -> str:
    """Lines as long as those that are written by hand."""
    return "\n".join(textwrap.wrap(text, 119, break_long_words=False, break_on_hyphens=False))


def section(experiment: Experiment, store: Store, figures: list[Path]) -> str:
    """One table or figure of the paper."""
    lines = [f"## {experiment.title}", "", "```sh", f"feddwa reproduce {experiment.name}", "```", ""]
    if experiment.claims:
        lines += ["The paper says:", "", *(f"- {claim}" for claim in experiment.claims)]
    if told := findings(experiment, store):
        lines += ["", "We find:", "", *(f"- {text}" for text in told)]
    for table in tables_of(experiment, store):
        lines += ["", *markdown(table)]
    for path in figures:
        lines += ["", f"![{experiment.title}]({path.as_posix()})"]
    if experiment.remarks:
        lines += ["", *(f"- {remark}" for remark in experiment.remarks)]
    if told := explanations(gaps(experiment, store)):
        lines += ["", f"Cells more than {GAP:g} points from the paper's number, and why:", "", *told]
    return "\n".join([*lines, ""])


def explanations(found: list[Gap]) -> list[str]:
    """A line per reason, with the cells that it is for."""
    by_reason: dict[str, list[str]] = {}
    for gap in found:
        cell = f"{gap.column.name} {gap.row.label} {gap.ours:.2f} against {gap.paper:.2f}"
        by_reason.setdefault(gap.reason or "No reason is known yet.", []).append(cell)
    return [f"- {reason} ({'; '.join(cells)})" for reason, cells in by_reason.items()]


def markdown(table: Table) -> list[str]:
    """A table with its title and note."""
    lines = [f"### {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    lines.append("| " + " | ".join(table.header) + " |")
    lines.append("| " + " | ".join(["---", *["---:"] * (len(table.header) - 1)]) + " |")
    for row in table.rows:
        lines.append("| " + " | ".join(f"**{cell[:-1]}**" if cell.endswith("*") else cell for cell in row) + " |")
    return lines


def tuned_text() -> str:
    """ClusterFL's tolerances in words."""
    rule = "eps1 = 0.4 as in the original, eps2 by one rule (`feddwa reproduce clusterfl-norms`)"
    found = [f"{values[0]} on {column}" for column, own in tuned().items() for values in own.values()]
    return (
        f"{rule}: {', '.join(found)}; elsewhere it has to be measured first"
        if found
        else f"the original's, 0.4 and 1.6; {rule}"
    )
