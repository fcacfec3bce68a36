"""Write docs/reproduction.md and its pages, tables of other pages and the README's paragraph from the results."""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from feddwa.errors import unknown
from feddwa.results.store import Store
from feddwa.storage import write_whole
from feddwa_reproduction.figures import draw
from feddwa_reproduction.grid import Experiment
from feddwa_reproduction.specs import HERE, beyond, paper, protocols
from feddwa_reproduction.summary import GAP, Gap, gaps
from feddwa_reproduction.table import Table, markdown
from feddwa_reproduction.tables import findings, tables_of
from feddwa_reproduction.verdict import extent_table, headline, places_table, verdict

README = re.compile(r"(<!-- reproduction -->\n).*?(<!-- end -->)", re.DOTALL)  # its paragraph
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)  # of other pages
BACK = "[Does it reproduce?](../reproduction.md) has the answer, and what the numbers mean."
BEYOND = ("beyond", "field", "natural")  # pages with tables of beyond.toml


def write_pages(store: Store, folder: Path) -> list[Path]:
    """Write reproduction.md, its pages and figures, and fill the tables of other pages where they are.

    The same results give the same bytes.

    A README.md beside the folder with the marks of the paragraph about the reproduction gets that, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    filled = [
        path
        for name, known in (*((page, beyond()) for page in BEYOND), ("protocols", protocols()))
        for path in fill(folder / f"{name}.md", known, store)
    ]
    return [*_write_reproduction(store, folder), *filled]


def _write_reproduction(store: Store, folder: Path) -> list[Path]:
    found, own = verdict(store), folder / "reproduction"
    frame = (HERE / "frame.md").read_text(encoding="utf-8")
    tables = "\n".join([*titled(places_table(found)), "", *titled(extent_table(store))])
    overview = folder / "reproduction.md"
    write_whole(overview, frame.format(tuned=tuned_text(), headline=wrapped(headline(found)), tables=tables))
    written = [overview]
    own.mkdir(exist_ok=True)
    for experiment in paper().values():
        drawn = draw(experiment, store, own)
        page = own / f"{experiment.name}.md"
        write_whole(page, section(experiment, store, [path.relative_to(own) for path in drawn]))
        written += [page, *drawn]
    readme = folder.parent / "README.md"
    if readme.is_file() and README.search(text := readme.read_text(encoding="utf-8")):
        told = wrapped(headline(found))
        write_whole(readme, README.sub(lambda marks: f"{marks[1]}{told}\n{marks[2]}", text))
    return written


def fill(page: Path, known: Mapping[str, Experiment], store: Store) -> list[Path]:
    """Fill every <!-- table: NAME --> mark with its table and figures."""
    drawn = list[Path]()
    if not page.is_file():
        return []

    def filled(marks: re.Match[str]) -> str:
        if marks[2] not in known:
            raise unknown(f"{page}: table", marks[2], known)
        chosen = known[marks[2]]
        own = draw(chosen, store, page.with_suffix(""))
        drawn.extend(own)
        lines = [line for table in tables_of(chosen, store) for line in ("", *markdown(table))]
        for path in own:
            lines += ["", f"![{chosen.title}]({path.relative_to(page.parent).as_posix()})"]
        return marks[1] + "\n".join(lines) + "\n" + marks[3]

    write_whole(page, TABLE.sub(filled, page.read_text(encoding="utf-8")))
    return [page, *drawn]


def wrapped(text: str) -> str:
    """Wrap text to the width of the pages."""
    return "\n".join(textwrap.wrap(text, 119, break_long_words=False, break_on_hyphens=False))


def section(experiment: Experiment, store: Store, figures: list[Path]) -> str:
    """The page of a table or figure of the paper."""
    lines = [f"# {experiment.title}", "", BACK, "", "```sh", f"feddwa reproduce {experiment.name}", "```", ""]
    if experiment.claims:
        lines += ["The paper says:", "", *(f"- {claim}" for claim in experiment.claims)]
    if told := findings(experiment, store):
        lines += ["", "We find:", "", *(f"- {text}" for text in told)]
    for table in tables_of(experiment, store):
        lines += ["", *titled(table)]
    for path in figures:
        lines += ["", f"![{experiment.title}]({path.as_posix()})"]
    if experiment.remarks:
        lines += ["", *(f"- {remark}" for remark in experiment.remarks)]
    if told := explanations(gaps(experiment, store)):
        lines += ["", f"Cells more than {GAP:g} points from the paper's number, and why:", "", *told]
    return "\n".join([*lines, ""])


def explanations(found: list[Gap]) -> list[str]:
    """A line per reason, with its cells."""
    by_reason: dict[str, list[str]] = {}
    for gap in found:
        cell = f"{gap.column.name} {gap.row.label} {gap.ours:.2f} against {gap.paper:.2f}"
        by_reason.setdefault(gap.reason or "No reason is known yet.", []).append(cell)
    return [f"- {reason} ({'; '.join(cells)})" for reason, cells in by_reason.items()]


def titled(table: Table) -> list[str]:
    """A table with its title and note."""
    return [f"## {table.title}", "", *([table.note, ""] if table.note else []), *markdown(table)]


def tuned_text() -> str:
    """A sentence with ClusterFL's tolerances."""
    rule = "eps1 = 0.4 as in the original, eps2 by one rule (`feddwa reproduce clusterfl-norms`)"
    tuned = {column.name: column.tuned for each in paper().values() for column in each.columns}
    found = [f"{values[0]} on {name}" for name in sorted(tuned) for values in tuned[name].values()]
    return f"{rule}: {', '.join(found)}; elsewhere it has to be measured first"
