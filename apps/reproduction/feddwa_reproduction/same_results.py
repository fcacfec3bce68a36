"""Compare two folders of results, cell by cell and number by number: exit status 1 where anything differs.

python -m feddwa_reproduction.same_results OLD NEW

A folder has JSONL files of `feddwa.results.store`, or a file per run, <dataset>/<cell>-s<seed>.json, in the form in
which results were published before them. `git archive dd398c4 results | tar x -C DIRECTORY` gives such a folder.

Every result becomes a flat mapping from a name ("series.before.all.17") to a value. P of single rounds (weights,
preferred) may be left out of NEW: those that it has must be equal, and how many it has is told.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feddwa.errors import InputError
from feddwa.results import checks
from feddwa.results.record import PUBLISHED

Key = tuple[str, int]  # cell, seed
Values = dict[str, Any]  # name -> number or text

ASPECTS = {  # beginning of a name -> what it is called in the report
    "config": "settings", "seed": "seeds", "series": "series", "clients": "clients", "costs": "costs",
    "in_group": "in-group shares", "groups": "in-group shares", "made": "provenance",
    "weights": "weights", "preferred": "weights",
}  # fmt: skip
NAMES = {  # of the older form -> now
    "series.all": "series.before.all",
    "series.paper": "series.before.participants_weighted",
    "series.after": "series.after.participants_weighted",
    "mass": "in_group.weight",
    "partners": "in_group.partners",
    "partners_by_affinity": "in_group.partners_by_affinity",
    "dtype": "config.dtype",
    **{name: f"costs.{name}" for name in ("bytes_down", "bytes_up", "flops", "server_flops", "seconds", "jobs")},
}
OPTIONAL = "weights"  # the aspect of which NEW may have less


def read_values(folder: Path) -> dict[Key, Values]:
    """Every result of a folder, flat."""
    found = {}
    for path in sorted(folder.glob(f"*{PUBLISHED}")):
        for content in checks.read_lines(path, whole=True):
            found[content["cell"], content["seed"]] = dict(_flat(content))
    for path in sorted(folder.glob("*/*.json")):
        cell, _, seed = path.stem.rpartition("-s")
        found[cell, int(seed)] = _older(json.loads(path.read_text(encoding="utf-8")))
    if not found:
        raise InputError(f"{folder}: no results in it; must have {PUBLISHED} files, or <dataset>/<cell>-s<seed>.json")
    return found


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """("a.b.0", value) of every number and text inside; an empty list or mapping has none."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _older(record: Mapping[str, Any]) -> Values:
    """A result in the older form, under the names of now."""
    plain = dict(record)
    (package, _, commit), (machine, _, torch) = plain.pop("code").partition(", "), plain.pop("hardware").partition(", ")
    versions = dict(text.split(" ", 1) for text in (package, torch))
    dirty = commit.endswith("-dirty")
    made = {"commit": commit.removesuffix("-dirty"), "dirty": dirty, "hardware": machine, "versions": versions}
    return {_renamed(name): value for name, value in _flat({**plain, "made": made})}


def _renamed(name: str) -> str:
    own = next((old for old in NAMES if name == old or name.startswith(f"{old}.")), None)
    return name if own is None else NAMES[own] + name.removeprefix(own)


def compare(old: Mapping[Key, Values], new: Mapping[Key, Values]) -> tuple[dict[str, Counter[str]], list[str]]:
    """By aspect how many values are equal, different, only in OLD and only in NEW; and the first of what differs."""
    counts = {aspect: Counter[str]() for aspect in ASPECTS.values()}
    wrong = [f"only in OLD: {key}" for key in old if key not in new]
    wrong += [f"only in NEW: {key}" for key in new if key not in old]
    for key in old.keys() & new.keys():
        one, two = old[key], new[key]
        for name in one | two:
            aspect = ASPECTS.get(name.partition(".")[0])
            if aspect is None:  # the version of the form, the cell's name, findings
                continue
            state = _state(one, two, name)
            counts[aspect][state] += 1
            if state != "equal" and not (aspect == OPTIONAL and state == "only in OLD"):
                wrong.append(f"{state}: {key} {name}: {one.get(name)} and {two.get(name)}")
    return counts, sorted(wrong)


def _state(one: Values, two: Values, name: str) -> str:
    if name not in two:
        return "only in OLD"
    if name not in one:
        return "only in NEW"
    return "equal" if (type(one[name]), one[name]) == (type(two[name]), two[name]) else "different"


def main(arguments: list[str]) -> int:
    """Print the counts; 0 where all is the same, 1 where it is not, 2 where it cannot be read."""
    try:
        if len(arguments) != 2:
            raise InputError("must be: python -m feddwa_reproduction.same_results OLD NEW")
        old, new = (read_values(Path(folder)) for folder in arguments)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for name, found in (("OLD", old), ("NEW", new)):
        print(f"{name}: {len({cell for cell, _ in found}):,} cells, {len(found):,} cells and seeds")
    counts, wrong = compare(old, new)
    for aspect, own in counts.items():
        states = ("equal", "different", "only in OLD", "only in NEW")
        print(f"{aspect:<16}" + "  ".join(f"{own[state]:>9,} {state}" for state in states))
    for text in wrong[:20]:
        print(text)
    print(f"{len(wrong):,} differences" if wrong else "the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
