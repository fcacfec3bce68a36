"""Which updates are out of proportion: huge ones are refused, long ones are not. Lengths by an oracle in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddwa import run, updates
from feddwa.attacks.attackers import Attackers
from feddwa.config import RunConfig


def messages(lengths, model):
    """Uploads whose updates have these lengths, and the downloads: models of length `model`."""
    rng = np.random.default_rng(0)
    start, way = (np.stack([each / np.linalg.norm(each) for each in rng.normal(size=(len(lengths), 12))]) for _ in "ab")
    start, end = model * start, model * start + np.asarray(lengths)[:, None] * way
    split = lambda rows: {"w": torch.tensor(rows[:, :8]).reshape(-1, 2, 4), "b": torch.tensor(rows[:, 8:])}  # noqa: E731
    return {"model": split(end)}, {"model": split(start)}


def oversized(lengths, model=1.0):
    upload, download = messages(lengths, model)
    return updates.oversized(upload, download, (), len(lengths)).tolist()


@pytest.mark.parametrize("cohort", [2, 3, 4, 5, 6, 20])
def test_huge_updates_are_found_while_fewer_than_half_send_them(cohort):
    hostile = (cohort - 1) // 2
    assert oversized([0.5] * (cohort - hostile) + [1e11] * hostile) == [False] * (cohort - hostile) + [True] * hostile


def test_the_shorter_half_of_two_decides():
    assert oversized([0.5, 1e11]) == [False, True]
    assert oversized([1e11]) == [False]  # there is nobody to compare it with


def test_nothing_shorter_than_the_model_is_refused():
    """An honest client of a small federation: 108 times the median, 0.7 of its model's length."""
    assert oversized([0.0064, 0.0065, 0.0065, 0.0066, 0.7]) == [False] * 5
    assert oversized([0.0, 0.0, 0.0, 0.99]) == [False] * 4
    assert oversized([0.0064, 0.0065, 0.0065, 0.0066, 1.1]) == [False] * 4 + [True]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9), st.floats(0, 1e3))
def test_the_rule_is_that_of_its_words(lengths, model):
    upload, download = messages(lengths, model)
    flat = lambda part: np.concatenate([each.numpy().reshape(len(lengths), -1) for each in part.values()], 1)  # noqa: E731
    true = np.linalg.norm(flat(upload["model"]) - flat(download["model"]), axis=1)
    limit = np.maximum(np.linalg.norm(flat(download["model"]), axis=1), 100 * np.sort(true)[(len(true) - 1) // 2])
    clear = np.abs(true - limit) > 1e-6 * limit
    found = updates.oversized(upload, download, (), len(lengths)).numpy()
    assert (found == (true > limit))[clear].all()


def test_other_numbers_may_differ_by_more():
    """Counts depend on how much data a client has, and begin nowhere."""
    counts = {"counts": {"n": torch.tensor([[0.0], [0.0], [900.0], [3.0]])}}
    assert not updates.oversized(counts, {}, (), 4).any()
    counts["counts"]["n"][2] = 1e11
    assert updates.oversized(counts, {}, (), 4).tolist() == [False, False, True, False]
    assert not updates.oversized({}, {}, (), 4).any()
    assert updates.oversized({"counts": {"n": torch.zeros(0, 3)}}, {}, (), 0).shape == (0,)
    assert not updates.oversized({"who": {"n": torch.arange(4)[:, None] * 10**12}}, {}, (), 4).any()


def test_the_simulator_refuses_the_same(tmp_path, monkeypatch):
    """Two of six send 1e11; the others' models are those of a run in which the two diverge."""
    found = {}
    for value in (1e11, torch.nan):

        def sent(self, cohort, download, upload, differences, value=value):
            hostile = torch.isin(cohort.ids, torch.tensor([2, 3]))
            return {
                part: {
                    name: torch.where(hostile.reshape(-1, *[1] * (each.ndim - 1)), torch.full_like(each, value), each)
                    for name, each in rows.items()
                }
                for part, rows in upload.items()
            }

        monkeypatch.setattr(Attackers, "sent", sent)
        found[value] = run(RunConfig(clients=6, rounds=2, out=str(tmp_path / str(value))))
    huge, diverged = found.values()
    assert [line["missing"] for line in huge.metrics[:2]] == [{"out of proportion": [2, 3]}] * 2
    honest = [0, 1, 4, 5]
    assert all(torch.equal(value[honest], diverged.models[name][honest]) for name, value in huge.models.items())
