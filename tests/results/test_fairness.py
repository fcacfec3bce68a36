"""The worst tenth, the spread and who would be better off alone, by hand."""

import numpy as np
import pytest

from feddwa.results.fairness import fairness


def test_by_hand():
    scores = np.array([50.0, 60, 70, 80, 90, np.nan])
    found = fairness(scores, gain=np.array([-1.0, 2, 0, 3, -4, np.nan]))
    assert found.worst_tenth == 50.0  # of five clients one
    assert found.std == pytest.approx(200**0.5)
    assert found.below_local == 40.0


def test_of_losses_the_highest_are_the_worst():
    found = fairness(np.arange(20.0), sign=-1)
    assert found.worst_tenth == 18.5
    assert found.below_local is None


def test_of_nobody_there_is_none():
    assert fairness(np.full(3, np.nan)) is None
