"""Draws depend on their key and on nothing else."""

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddwa.engine import keys

PURPOSES = st.sampled_from(["train", "guidance", "cohort"])


def test_golden_values():
    """Literal numbers: a change of the generator would silently change every published run."""
    assert keys.key(0, "train", 1, torch.arange(2)).tolist() == GOLDEN_KEYS
    assert keys.permutations(keys.key(0, "train", 1, torch.arange(1)), torch.tensor([6]))[0].tolist() == GOLDEN_ORDER


GOLDEN_KEYS = [8358925800671009170, -242215899476743572]
GOLDEN_ORDER = [3, 5, 1, 4, 0, 2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernel_mixes_alike(monkeypatch):
    """As on a GPU, by Triton's interpreter; mapped over keys, too."""
    several = keys.key(0, "train", 1, torch.arange(700))
    expected = keys.mix(several), torch.vmap(lambda key: keys.bits(key, 5))(several)
    monkeypatch.setattr(keys, "implementation", lambda z: "kernels")
    assert torch.equal(keys.mix(several), expected[0])
    assert torch.equal(torch.vmap(lambda key: keys.bits(key, 5))(several), expected[1])


@given(st.integers(0, 2**63 - 1), PURPOSES, st.integers(0, 1000), st.integers(1, 50))
def test_a_clients_key_does_not_depend_on_the_others(seed, purpose, round, clients):
    together = keys.key(seed, purpose, round, torch.arange(clients))
    alone = torch.cat([keys.key(seed, purpose, round, torch.tensor([i])) for i in range(clients)])
    assert torch.equal(together, alone)
    assert len(set(together.tolist())) == clients


def test_purposes_and_rounds_have_keys_of_their_own():
    drawn = {int(keys.key(s, p, r)) for s in range(5) for p in ("a", "b", "c") for r in range(20)}
    assert len(drawn) == 5 * 3 * 20


def test_uniform_is_uniform():
    draws = keys.uniform(keys.key(3, "noise"), torch.Size([500, 400])).double().numpy()
    assert 0 <= draws.min() < 1e-4
    assert 1 - 1e-4 < draws.max() < 1
    counts = np.histogram(draws, bins=100, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 160  # chi-square with 99 degrees of freedom, p = 1e-4
    assert abs(np.corrcoef(draws.ravel()[:-1], draws.ravel()[1:])[0, 1]) < 0.01


def test_draws_of_neighbouring_clients_are_uncorrelated():
    draws = keys.bits(keys.key(0, "x", torch.arange(200)), 2000).numpy() >> 11
    correlation = np.corrcoef(draws) - np.eye(200)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(2000)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 99))
def test_permutations_are_permutations_and_independent_of_the_other_rows(sizes, seed):
    key = keys.key(seed, "order", torch.arange(len(sizes)))
    orders = keys.permutations(key, torch.tensor(sizes))
    for row, size in enumerate(sizes):
        assert sorted(orders[row, :size].tolist()) == list(range(size))
        alone = keys.permutations(key[row : row + 1], torch.tensor([size]))
        assert torch.equal(orders[row, :size], alone[0])


def test_every_position_is_equally_likely():
    orders = keys.permutations(keys.key(0, "order", torch.arange(6000)), torch.full((6000,), 6))
    counts = torch.stack([torch.bincount(orders[:, place], minlength=6) for place in range(6)]).double()
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-square with 25 degrees of freedom, p = 1e-4


def test_a_sample_is_sorted_distinct_and_within_bounds():
    for round in range(50):
        ids = keys.sample(keys.key(1, "cohort", round), 30, 7).tolist()
        assert ids == sorted(set(ids))
        assert len(ids) == 7
        assert set(ids) <= set(range(30))


def test_a_seed_for_foreign_generators_is_never_negative():
    assert all(0 <= keys.seed_of(keys.key(seed, "init")) < 2**63 for seed in range(200))


@pytest.mark.parametrize("count", [0, 1, 7, 1 << 15, (1 << 15) + 3])
def test_draws_in_pieces_are_those_at_once(count):
    """Of several keys, mapped or not, also where a key's draws are none or more than a piece."""
    own = keys.key(3, "pieces", torch.arange(3))
    at_once = ((keys.bits(own, count) >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24
    mapped = torch.vmap(lambda key: keys.uniform(key, torch.Size([count])))(own)
    assert torch.equal(mapped, at_once)
    assert torch.equal(keys.uniform(own[1], torch.Size([count])), at_once[1])
