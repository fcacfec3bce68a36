"""Does it reproduce? FedDWA's ranks, cells close to the paper's numbers, and missing columns, from the results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feddwa.results.compare import interval
from feddwa.results.store import Store
from feddwa_reproduction.grid import Column, Experiment
from feddwa_reproduction.specs import paper
from feddwa_reproduction.summary import GAP, Standing, cells_of, standing, why_not_run
from feddwa_reproduction.table import Table

COMPARISONS = ("table1", "table2")  # the paper's tables that compare methods


@dataclass(frozen=True)
class Verdict:
    """Outcome of the paper's columns. A cell is a method in a column for which the paper prints a number."""

    columns: int
    places: dict[str, Standing]  # column with results -> FedDWA's rank
    missing: dict[str, str]  # column without results -> the reason
    cells: int
    run: int
    near: int  # cells run whose mean is within GAP points of the paper's number
    claimed: int  # columns in which the paper has FedDWA first


def verdict(store: Store) -> Verdict:
    """Count over both tables, without columns that the paper lacks or has with another alpha."""
    own = [(each, column) for each in map(paper().__getitem__, COMPARISONS) for column in _printed(each)]
    found = {column.name: cells_of(each, column, store, "paper") for each, column in own}
    places = {name: place for name, cells in found.items() if (place := standing(cells)) is not None}
    apart = [
        abs(summary.measured.mean - number)
        for each, column in own
        for row, summary in found[column.name].items()
        if (number := each.number(column, row)) is not None
    ]
    return Verdict(
        columns=len(own),
        places=places,
        missing={column.name: why_not_run(column) for _, column in own if not found[column.name]},
        cells=sum(len(each.published) for each in map(paper().__getitem__, COMPARISONS)),
        run=len(apart),
        near=sum(distance <= GAP for distance in apart),
        claimed=sum(_claims_first(each, column) for each, column in own),
    )


def _printed(experiment: Experiment) -> list[Column]:
    """The columns that the paper prints."""
    return [column for column in experiment.columns if column.numbers == column.name]


def _claims_first(experiment: Experiment, column: Column) -> bool:
    numbers = {row.name: number for row in experiment.rows if (number := experiment.number(column, row)) is not None}
    return numbers.get("feddwa") == max(numbers.values())


def headline(found: Verdict) -> str:
    """The answer in three sentences."""
    first = sum(place.place == 1 for place in found.places.values())
    lead = (
        f"**FedDWA is first in {first} of the {len(found.places)} columns of Tables 1 and 2 that were run**; the paper "
        f"has it first in {found.claimed} of {found.columns}."
    )
    places = _listed([str(place.place) for place in found.places.values()])
    of = _listed(sorted({str(place.of) for place in found.places.values()}))
    tied = sum(place.tied and place.place > 1 for place in found.places.values())
    told = [
        f"Its places are {places} of {of} methods; in {tied} of the columns the seeds do not tell it from the first."
    ]
    near = f"{found.near} of the {found.run} cells that were run are within {GAP:g} points of the paper's number."
    return " ".join([lead, *(told if found.places else []), near, _left(found)])


def _left(found: Verdict) -> str:
    """Columns without results, grouped by reason."""
    columns: dict[str, list[str]] = {}
    for column, reason in found.missing.items():
        columns.setdefault(reason, []).append(column)
    told = "; ".join(f"{', '.join(own)} ({reason})" for reason, own in columns.items())
    count = f"{len(found.missing)} columns with {found.cells - found.run} of the {found.cells} cells were not run"
    return f"{count}: {told}." if found.missing else f"All {found.cells} cells were run."


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def places_table(found: Verdict) -> Table:
    """A row per column with results: the leader, and FedDWA's distance to the best other method."""
    rows = []
    for name, own in found.places.items():
        ends = interval(own.behind)
        told = "" if ends is None else f"{ends.low:.2f} to {ends.high:.2f}"
        numbers = (f"{own.place} of {own.of}", f"{own.behind.mean:.2f}", told, str(len(own.behind.values)))
        rows.append((name, own.rival.label, *numbers))
    header = ("column", "best other method", "FedDWA's place", "behind, points", "95 % CI", "seeds")
    note = "Best round of the paper's metric. An interval that includes 0: the seeds do not tell the two apart."
    return Table("FedDWA's place", header, rows, note)


def extent_table(store: Store) -> Table:
    """A row per experiment with a link to its page: how many of its columns and cells have results."""
    rows = []
    for each in paper().values():
        page = f"[{each.title}](reproduction/{each.name}.md)"
        if not each.trains:
            rows.append((page, "calculated", "calculated"))
            continue
        found = [len(cells_of(each, column, store, "paper")) for column in each.columns]
        total = len(each.columns) * len(each.rows)
        rows.append((page, _share(found, len(each.columns)), f"{sum(found)} of {total}"))
    note = "A page each. With the columns that the paper does not have: EMNIST letters, and alpha = 0.1 in Table 2."
    return Table("What was run", ("table or figure", "columns", "cells"), rows, note)


def _share(found: Iterable[int], total: int) -> str:
    return f"{sum(count > 0 for count in found)} of {total}"
