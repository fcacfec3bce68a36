"""Numbers at their edges: no distance, one client, one class, one sample, too many partners, other precisions."""

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa.algorithms import ALGORITHMS
from feddwa.mixing import dwa_weights, inverse_weights, mix, squared_distances
from tests.conftest import ANYWHERE


def clients(sizes, classes=3, seed=0):
    """One (x, y, x_test, y_test) per size."""
    rng = np.random.default_rng(seed)
    made = []
    for size in sizes:
        y = rng.integers(0, classes, size + 4)
        x = (rng.normal(size=(size + 4, 5)) + y[:, None]).astype(np.float32)
        made.append((x[4:], y[4:], x[:4], np.r_[y[:3], classes - 1]))
    return made


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Linear(8, 3))


def check(result: feddwa.Result, missing=()) -> None:
    assert set(result.summary["missing"]) <= set(missing), result.summary["missing"]
    assert all(value.isfinite().all() for value in result.models.values() if value.is_floating_point())
    assert result.summary["accuracy"]["last"] is not None


@pytest.mark.parametrize("name", ANYWHERE)
def test_one_client_alone(name):
    check(feddwa.run(model=network(), dataset=clients([20]), algorithm=name, rounds=2, batch_size=5, out=False))


@pytest.mark.parametrize("name", ANYWHERE)
def test_cohorts_of_one(name):
    result = feddwa.run(
        model=network(),
        dataset=clients([20, 12, 9]),
        algorithm=name,
        rounds=4,
        batch_size=5,
        participation=0.34,
        out=False,
    )
    check(result)
    assert all(weights.shape == (1, 1) for _, _, weights in result.weights)


@pytest.mark.parametrize("name", ANYWHERE)
def test_clients_of_one_class_and_of_one_sample(name):
    data = clients([20, 1, 15, 2])
    for number in (0, 2):
        x, y, *test = data[number]
        data[number] = (x, np.full_like(y, number), *test)
    if ALGORITHMS[name].validation or ALGORITHMS[name].halves:
        data = [data[0], data[2], *clients([4, 5])]  # it splits the training data, so one sample is too few
    check(feddwa.run(model=network(), dataset=data, algorithm=name, rounds=3, batch_size=5, out=False))


@pytest.mark.parametrize("sizes", [[6, 11, 20], [1, 10, 20]])
def test_batchnorm_of_single_values_is_refused_in_one_line(sizes):
    with pytest.raises(
        feddwa.InputError, match=f"--batch-size 5: client 0 has {sizes[0]} training samples, so a batch of"
    ):
        feddwa.run(model=network(norm=True), dataset=clients(sizes), rounds=2, batch_size=5, out=False)
    check(feddwa.run(model=network(norm=True), dataset=clients([7, 10, 20]), rounds=2, batch_size=5, out=False))


@pytest.mark.parametrize("batchnorm", ["local", "mean", "all-local"])
def test_batchnorm_of_one_image_has_many_values(batchnorm):
    """A client with one image, and BatchNorm over its pixels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))
    data = [
        (torch.randn(n, 1, 5, 5), torch.arange(n) % 3, torch.randn(2, 1, 5, 5), torch.tensor([0, 2])) for n in (1, 6, 9)
    ]
    check(feddwa.run(model=model, dataset=data, rounds=2, batch_size=5, batchnorm=batchnorm, out=False))


@pytest.mark.parametrize("top_k", [1, 3, 1000])
def test_more_partners_than_clients(top_k):
    result = feddwa.run(
        model=network(),
        dataset=clients([9, 9, 9]),
        algorithm=feddwa.FedDWA(top_k=top_k),
        rounds=2,
        batch_size=5,
        participation=0.67,
        out=False,
    )
    check(result)
    for _, _, weights in result.weights:
        assert np.allclose(weights.sum(1), 1)
        assert ((weights > 0).sum(1) <= top_k).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_distance_at_all(dtype):
    same = torch.ones(4, 30, dtype=dtype)
    weights = dwa_weights(same, same, 2)
    assert torch.equal(weights.sum(1), torch.ones(4, dtype=torch.float64))
    assert torch.equal((weights > 0).sum(1), torch.full((4,), 2))
    mixed = mix(weights, {"w": same})["w"]
    assert mixed.dtype == dtype
    assert torch.equal(mixed, same)


def test_distances_at_the_ends_of_the_range():
    tiny = inverse_weights(torch.tensor([[5e-324, 1.0], [1e300, 1e308]], dtype=torch.float64), 2)
    assert torch.allclose(tiny.sum(1), torch.ones(2, dtype=torch.float64))
    assert tiny.isfinite().all()
    large = torch.tensor([[0.0, 1.0], [1e12, -1e12]])
    assert squared_distances(large, large).isfinite().all()


@pytest.mark.parametrize("name", ANYWHERE)
def test_float64_and_bfloat16(name, tmp_path):
    """The same run in three precisions: each keeps its type, and they agree as far as their digits go."""
    rng, y = np.random.default_rng(0), np.arange(120) % 3
    np.savez(tmp_path / "d.npz", x=(rng.normal(size=(120, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32), y=y)
    options = {"dataset": str(tmp_path / "d.npz"), "partition": "iid", "clients": 4, "rounds": 3, "lr": 0.1}
    made = {
        dtype: feddwa.run(
            algorithm=name, dtype=dtype, out=str(tmp_path / dtype), batch_size=10, device="cpu", **options
        )
        for dtype in ("float64", "float32", "bfloat16")
    }
    exact = made["float64"].models
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 0.05)):
        check(made[dtype])
        for key, value in made[dtype].models.items():
            assert value.dtype == getattr(torch, dtype)
            assert float((value.double() - exact[key]).abs().max()) < tolerance * float(exact[key].abs().max() + 1), key


def test_bfloat16_is_resumed_bit_for_bit(tmp_path):
    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    options = {"clients": 8, "rounds": 3, "batch_size": 20, "dtype": "bfloat16", "device": "cpu"}
    whole = feddwa.run(out=str(tmp_path / "whole"), **options)
    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out=str(tmp_path / "cut"), observe=stop, **options)
    again = feddwa.resume(tmp_path / "cut")
    assert all(torch.equal(value, again.models[name]) for name, value in whole.models.items())


def test_a_run_is_the_same_after_one_in_bfloat16(tmp_path):
    """For which PyTorch may change how it computes, for the whole process."""

    def models(name, **options):
        options |= {"clients": 4, "rounds": 1, "batch_size": 20, "device": "cpu", "out": str(tmp_path / name)}
        return feddwa.run(**options).models

    before = models("before", model="digits-cnn")
    models("between", dtype="bfloat16")
    after = models("after", model="digits-cnn")
    assert all(torch.equal(value, after[name]) for name, value in before.items())
