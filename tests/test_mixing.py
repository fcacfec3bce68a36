"""The server's arithmetic against brute force in float64."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from feddwa import mixing
from feddwa.errors import InputError
from feddwa.mixing import dwa_weights, inverse_weights, mix, squared_distances


def brute_force(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack([(row.double() - b.double()).square().sum(1) for row in a])


def nearby_models(m: int, d: int, spread: float, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Two stacks of models that differ by `spread` of their norm."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(d, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, m, d, generator=generator, dtype=torch.float64)
    return tuple((base + spread * part).to(dtype) for part in noise)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_are_accurate_however_close_the_models(spread, dtype):
    a, b = nearby_models(12, 100_003, spread, dtype)
    error = (squared_distances(a, b) / brute_force(a, b) - 1).abs().max()
    assert error < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("size", [60_000, 700_000])
@pytest.mark.parametrize("ratio", [1.0, 0.8, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-5])
def test_a_guidance_model_close_to_one_local_model_among_distant_ones(ratio, size):
    """FedDWA's own case: d_ii is one epoch of drift, d_ij the distance between strangers."""
    b = nearby_models(10, size, 0.1)[0]
    a = b + ratio * 0.1 * torch.randn(b.shape, generator=torch.Generator().manual_seed(1))
    error = (squared_distances(a, b) / brute_force(a, b) - 1).abs().max()
    assert error < 1e-6


def test_one_model_far_out_costs_no_accuracy():
    """Nor time: of a hundred pairs only each model with itself is computed from its differences."""
    b = nearby_models(10, 700_000, 0.1)[0]
    b[0] *= 1.5  # five times as far from the others as they are from their mean
    computed = []
    with pytest.MonkeyPatch.context() as patch:
        pairs = mixing._distances_of_pairs
        patch.setattr(
            mixing, "_distances_of_pairs", lambda a, b, i, j: computed.extend(i[-1].tolist()) or pairs(a, b, i, j)
        )
        distances = squared_distances(b, b)
    apart = ~torch.eye(10, dtype=torch.bool)
    assert (distances / brute_force(b, b) - 1)[apart].abs().max() < 1e-6
    assert not distances.diagonal().any()
    assert sorted(computed) == list(range(10))


def test_stacks_and_matrices_give_the_same():
    a, b = nearby_models(5, 600, 0.1, torch.float64)
    split = [{"w": x[:, :400].reshape(5, 20, 20), "b": x[:, 400:]} for x in (a, b)]
    assert torch.allclose(squared_distances(*split), squared_distances(a, b), rtol=1e-12)
    assert torch.allclose(dwa_weights(*split, 3), dwa_weights(a, b, 3), rtol=1e-9)


def test_chunks_do_not_change_the_result(monkeypatch):
    a, b = nearby_models(6, 5000, 0.1, torch.float64)
    whole, mixed = squared_distances(a, b), mix(torch.rand(6, 6).double(), {"w": a})
    monkeypatch.setattr(mixing, "WIDTH", {"cpu": 700})
    monkeypatch.setattr(mixing, "BLOCK", {"cpu": 300})
    assert torch.allclose(squared_distances(a, b), whole, rtol=1e-12)
    torch.manual_seed(0)
    weights = torch.rand(3, 6)
    assert torch.allclose(mix(weights, {"w": a})["w"], weights.double() @ a, rtol=1e-12)
    assert mixed["w"].shape == a.shape


def test_half_precision_models_are_widened_first():
    a, b = nearby_models(4, 3000, 0.1, torch.bfloat16)
    assert (squared_distances(a, b) / brute_force(a, b) - 1).abs().max() < 1e-6
    assert mix(torch.eye(4), {"w": a})["w"].dtype == torch.bfloat16


def test_memory_stays_within_a_fifth_of_the_stacks():
    m, d = 64, 400_000
    a, b = torch.randn(m, d), torch.randn(m, d)
    stacks = 2 * m * d * 4
    assert _peak(lambda: squared_distances(a, b)) < 0.2 * stacks
    assert _peak(lambda: mix(torch.rand(m, m), {"w": a})) < 0.2 * stacks + m * d * 4  # and the result itself


def _peak(function) -> int:
    """Bytes that torch holds at once on top of what it held before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        function()
    held = peak = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert peak > 0
    return peak


@given(st.integers(1, 8), st.integers(1, 10), st.integers(0, 1000))
def test_rows_are_distributions_over_the_nearest(m, top_k, seed):
    rng = np.random.default_rng(seed)
    distances = torch.from_numpy(rng.uniform(0.1, 5, (m, m)))
    weights = inverse_weights(distances, top_k)
    assert torch.allclose(weights.sum(1), torch.ones(m, dtype=torch.float64))
    assert (weights >= 0).all()
    assert ((weights > 0).sum(1) == min(top_k, m)).all()
    assert torch.allclose(inverse_weights(7.5 * distances, top_k), weights)
    for row, own in zip(weights, distances, strict=True):
        assert own[row > 0].max() <= own[row == 0].min() if (row == 0).any() else True


def test_the_weights_minimise_the_papers_objective():
    distances = torch.tensor([[0.5, 2.0, 1.0, 4.0]], dtype=torch.float64)
    found = minimize(
        lambda p: (p**2 * distances[0].numpy()).sum(),
        np.full(4, 0.25),
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        tol=1e-14,
    )
    assert np.allclose(inverse_weights(distances, 4)[0].numpy(), found.x, atol=1e-6)


def test_by_hand():
    local = torch.tensor([[0.0], [1.0], [3.0]])
    guidance = torch.tensor([[0.5], [1.0 + 2**-20], [10.0]])
    weights = dwa_weights(guidance, local, 2)
    assert torch.allclose(weights[0], torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))  # both at 0.25
    assert weights[1, 1] > 0.999999
    assert torch.allclose(weights[2], torch.tensor([0, 1 / 81, 1 / 49], dtype=torch.float64) / (1 / 81 + 1 / 49))


def test_zero_distance_takes_the_limit():
    local = torch.tensor([[1.0, 2.0], [1.0, 2.0], [5.0, 5.0]])
    weights = dwa_weights(local, local, 3)
    assert weights.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]
    assert dwa_weights(local, local, 1).tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]  # ties: the smaller number
    same = torch.full((4, 7), 0.1)
    assert torch.allclose(dwa_weights(same, same, 9), torch.full((4, 4), 0.25, dtype=torch.float64))


def test_distances_of_any_size_do_not_overflow():
    for scale in (1e-150, 1e150):
        weights = inverse_weights(torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64) * scale**2, 2)
        assert torch.allclose(weights, torch.tensor([[2 / 3, 1 / 3, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_named(poison):
    a, b = nearby_models(5, 50, 0.1)
    b[3, 7] = poison
    with pytest.raises(InputError, match="local model of client 3"):
        dwa_weights(a, b, 2)
    a[2, 7], b[3, 7] = poison, 0.0
    with pytest.raises(InputError, match="guidance model of client 2"):
        dwa_weights(a, b, 2)


def test_bad_requests_are_told():
    a, b = nearby_models(3, 10, 0.1)
    with pytest.raises(InputError, match="top_k: got 0, must be at least 1"):
        dwa_weights(a, b, 0)
    with pytest.raises(InputError, match="same names and shapes"):
        squared_distances(a, b[:, :9])
    with pytest.raises(InputError, match="same names and shapes"):
        squared_distances({"w": a}, {"v": b})


def test_mixing_by_the_identity_changes_nothing():
    rows = {"w": torch.randn(4, 3, 5), "steps": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    mixed = mix(torch.eye(4), rows)
    assert all(torch.equal(mixed[name], rows[name]) for name in rows)


def test_nothing_python_sized_is_kept():
    tracemalloc.start()
    a, b = nearby_models(20, 20_000, 0.1)
    squared_distances(a, b)
    assert tracemalloc.get_traced_memory()[0] < 1_000_000
    tracemalloc.stop()
