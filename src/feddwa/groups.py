"""Groups of algorithms: their kinds, the methods of the paper, and all, as `feddwa compare --algorithms` takes them.

all      every algorithm of this package
@paper   those of the paper's tables
@KIND    those of a kind, @global for example
"""

from collections.abc import Iterable

from feddwa.built_in import entries
from feddwa.errors import unknown

ALL = "all"
KINDS = {  # values of `Algorithm.kind`, in the order of lists
    "baseline": "what joining has to beat",
    "global": "one model for all",
    "personal": "a model for each client, from or beside a global one",
    "shared-body": "some layers shared, the others each client's own",
    "collaboration": "models for each client, from those of clients like it",
    "other": "methods that name no kind",
}


def by_kind() -> dict[str, list[str]]:
    """Kind -> names of this package's algorithms by year; those without a year come first."""
    known = entries("algorithm")
    found = {kind: [name for name, entry in known.items() if entry.facts["kind"] == kind] for kind in KINDS}
    return {
        kind: sorted(names, key=lambda name: known[name].facts.get("year", 0)) for kind, names in found.items() if names
    }


def groups() -> dict[str, list[str]]:
    """Group -> names of its algorithms."""
    known = entries("algorithm")
    paper = [name for name, entry in known.items() if "order" in entry.facts]
    return {ALL: list(known), "@paper": paper, **{f"@{kind}": names for kind, names in by_kind().items()}}


def expanded(names: Iterable[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names with every group replaced by its algorithms, and the names that come from a group alone.

    A name from a group is dropped if it was given before; a name given twice is kept twice.
    """
    known, given = groups(), tuple(names)
    found: list[str] = []
    for name in given:
        if name.startswith("@") and name not in known:
            raise unknown("--algorithms", name, known)
        taken = {*given, *found}
        found += [each for each in known[name] if each not in taken] if name in known else [name]
    return tuple(found), frozenset(found) - frozenset(given)
