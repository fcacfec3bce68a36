"""benchmarks/robustness.py: stored cells can be continued, defences are chosen as said, the page is what they give."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import robustness  # noqa: E402
import robustness_cells as cells  # noqa: E402
from robustness_tables import losses  # noqa: E402

del sys.path[0]


def outcome(*accuracy: float | None) -> cells.Outcome:
    """One seed with these clients."""
    known = [each for each in accuracy if each is not None]
    return cells.Outcome([sum(known) / len(known)], [list(accuracy)], [], [], [], [])


def test_a_stopped_grid_goes_on_with_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(cells.DATASETS, "digits", {"clients": 6, "rounds": 1})
    monkeypatch.setattr(cells, "SEEDS", (0,))
    asked = [
        cells.Cell("digits", "feddwa", "collusion", 0.4, "clip"),
        cells.Cell("digits", "fedavg", "backdoor", 0.4, choice=True),
    ]
    store = cells.Store(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        cells.compute_missing(store, asked[:1], pool)
        first = (tmp_path / "digits.jsonl").read_text()
        again = cells.Store(tmp_path)
        cells.compute_missing(again, asked, pool)
    assert (tmp_path / "digits.jsonl").read_text().startswith(first)
    assert cells.Store(tmp_path) == again
    assert again.keys() == set(asked)
    aimed, poisoned = (again[cell] for cell in asked)
    assert len(aimed.honest) == len(aimed.given) == len(aimed.victim) == 1
    assert aimed.accuracy[0].count(None) == 2
    assert aimed.accuracy[0][aimed.victim[0]] is not None
    assert aimed.honest[0] == pytest.approx(sum(each for each in aimed.accuracy[0] if each is not None) / 4, abs=0.01)
    assert len(poisoned.triggered) == len(poisoned.honest) == len(cells.CHOICE_SEEDS)


def test_the_best_worst_case_is_chosen_once_all_candidates_are_known(tmp_path):
    store = cells.Store(tmp_path)
    for place, defence in enumerate(cells.CANDIDATES["fedavg"]):
        assert store.chosen("fedavg") is None
        for cell in cells.choice_cells("fedavg", defence):
            store.add(cell, outcome(90 - place))
    mild, *rest = cells.choice_cells("fedavg", "clip")
    store[rest[-1]] = outcome(10)  # one bad case outweighs the best mean
    store[mild] = outcome(100)
    best = cells.choice_cells("fedavg", cells.NONE)[0]
    store[best] = outcome(85.5)
    assert store.chosen("fedavg") == "geometric-median"
    store[best] = outcome(88)
    store[cells.choice_cells("fedavg", "geometric-median")[0]] = outcome(88.5)
    assert store.chosen("fedavg") == cells.NONE  # equal at worst, better in the mean
    assert store.chosen("feddwa") is None


def test_points_lost_are_those_of_the_same_honest_clients(tmp_path):
    store, clean = cells.Store(tmp_path), cells.Cell("digits", "fedavg")
    store[clean] = outcome(90.0, 50.0, 70.0)
    store[replace(clean, attack="ipm", share=0.2, defence="clip")] = outcome(85.0, None, 70.0)
    assert losses(store, "digits", "fedavg", "clip") == {"ipm": pytest.approx(2.5)}
    assert losses(store, "digits", "fedavg", "none") == {}


def test_the_page_is_what_the_stored_cells_give():
    text, store = (robustness.DOCS / "robustness.md").read_text(encoding="utf-8"), cells.Store()
    assert robustness.renewed(text, store) == text
    for name in robustness.tables(store):
        assert text.count(f"<!-- {name} -->") == text.count(f"<!-- end {name} -->") == 1
