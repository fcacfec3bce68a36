"""Sketches keep inner products: without bias, with the variance that the formula says, the same for everybody."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddwa import sketch as sketches
from feddwa.mixing import squared_distances
from feddwa.sketch import sketch, sketched_distances

DRAWS = 2000


def products(x, y, size, draws=DRAWS):
    """<S(x), S(y)> under many projections."""
    rows = {"w": torch.stack([x, y])}
    found = [sketch(rows, size, seed=0, round=number) for number in range(draws)]
    return torch.stack([own[0] @ own[1] for own in found]).numpy()


def variance(x, y, size):
    """The variance of <S(x), S(y)> that the module's docstring states, for x and y (d,)."""
    return (x.square().sum() * y.square().sum() + (x @ y).square() - 2 * (x * y).square().sum()) / size


@pytest.mark.parametrize("size", [4, 64])
def test_mean_and_variance_are_those_of_the_formula(size):
    rng = np.random.default_rng(size)
    x = torch.as_tensor(rng.normal(size=40))
    y = 0.5 * x + torch.as_tensor(rng.standard_t(3, size=40))
    found, expected = products(x, y, size), float(variance(x, y, size))
    assert abs(found.mean() - float(x @ y)) < 4 * math.sqrt(expected / DRAWS)
    assert found.var() == pytest.approx(expected, rel=0.2)


def test_the_error_of_the_documented_size_is_within_its_bound():
    """k = 2 / (eps^2 delta) = 320 for eps = 0.25 and delta = 0.1."""
    rng = np.random.default_rng(0)
    x, y = (torch.as_tensor(rng.normal(size=500)) for _ in range(2))
    wrong = np.abs(products(x, y, 320, 300) - float(x @ y)) > 0.25 * float(x.norm() * y.norm())
    assert wrong.mean() <= 0.1


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**62), st.floats(-3, 3))
def test_sketches_are_linear_and_depend_on_names_alone(d, size, seed, factor):
    rng = np.random.default_rng(d)
    x, y, other = (torch.as_tensor(rng.normal(size=(2, d))) for _ in range(3))
    one = sketch({"w": x + factor * y}, size, seed, 1)
    torch.testing.assert_close(one, sketch({"w": x}, size, seed, 1) + factor * sketch({"w": y}, size, seed, 1))
    both = sketch({"v": other, "w": x}, size, seed, 1)
    torch.testing.assert_close(both, sketch({"v": other}, size, seed, 1) + sketch({"w": x}, size, seed, 1))


def test_pieces_do_not_show(monkeypatch):
    x = {"w": torch.randn(3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}
    whole = sketch(x, 8, 1, 2)
    monkeypatch.setattr(sketches, "WIDTH", 4)
    torch.testing.assert_close(sketch(x, 8, 1, 2), whole)


def test_distances_from_sketches_are_within_the_theory_of_the_exact_ones():
    """Only the product with the guidance step is estimated, so that is all that can be wrong; never below zero."""
    generator = torch.Generator().manual_seed(0)
    local = {"w": torch.randn(6, 300, dtype=torch.float64, generator=generator)}
    step = {"w": 0.3 * torch.randn(6, 300, dtype=torch.float64, generator=generator)}
    exact = squared_distances({"w": local["w"] + step["w"]}, local)
    lengths, errors = step["w"].square().sum(1), []
    for number in range(60):
        found = sketched_distances(local, sketch(step, 200, number, 1), lengths, seed=number, round=1)
        assert (found >= 0).all()
        torch.testing.assert_close(found.diagonal(), exact.diagonal())
        errors.append(found - exact)
    spread = torch.stack(errors).square().mean(0).sqrt()
    for i in range(6):
        for j in set(range(6)) - {i}:
            theory = 2 * math.sqrt(variance(step["w"][i], local["w"][i] - local["w"][j], 200))
            assert 0.6 * theory < spread[i, j] < 1.5 * theory
