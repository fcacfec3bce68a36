"""FedPAC: heads that are combined by bias and variance, and features that are held at the mean of their class."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from feddwa.algorithms import FedAvg, FedPAC, FedRep
from feddwa.algorithms import fedpac as module
from feddwa.algorithms.fedpac import Aligned
from feddwa.algorithms.simplex import combinations, least_on_simplex, project_to_simplex
from feddwa.data.federated import Batch
from feddwa.engine.network import FunctionalClient
from feddwa.errors import InputError
from feddwa.sides import problem_of
from tests.algorithms.conftest import after, difference, federation, models
from tests.conftest import conv_net, plain_net, small_data


def forms(m, seed, noise=1e-3):
    """Quadratic forms of m clients in groups, whose variances are small beside what is between the groups."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(4, 6))[np.arange(m) % 4] + 0.1 * rng.normal(size=(m, 6))
    far = means[:, None] - means[None]  # (i, j, 6)
    return torch.from_numpy(np.einsum("ijf,ikf->ijk", far, far) + np.diag(noise * rng.uniform(0.5, 2, m)))


@pytest.mark.parametrize("m", [1, 2, 7, 40])
def test_the_minimum_meets_the_conditions_of_optimality(m):
    """Q a is the same number wherever a is positive, and no smaller elsewhere."""
    for seed in range(5):
        q = forms(m, seed)
        a = least_on_simplex(q)
        slopes = (q @ a.unsqueeze(2)).squeeze(2)
        level = (a * slopes).sum(1, keepdim=True)
        assert (a >= 0).all()
        torch.testing.assert_close(a.sum(1), torch.ones(m).double())
        torch.testing.assert_close(slopes.where(a > 0, level), level.expand_as(a), rtol=1e-9, atol=1e-12)
        assert (slopes >= level * (1 - 1e-9)).all()


def test_descent_is_still_far_from_the_minimum_after_a_thousand_steps():
    q = forms(12, 0)
    rate = 1 / torch.linalg.eigvalsh(q)[:, -1:]
    exact, a = least_on_simplex(q), torch.full((12, 12), 1 / 12).double()
    for _ in range(1000):
        a = project_to_simplex(a - rate * (q @ a.unsqueeze(2)).squeeze(2))
    assert (a - exact).abs().max() > 0.1
    least, reached = (torch.einsum("kj,kjl,kl->k", each, q, each) for each in (exact, a))
    assert (least < reached).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_search_ends_where_hardly_anything_is_definite(seed):
    """Clients alike, more of them than dimensions, next to no variance: each finds a combination of its own mean."""
    rng = np.random.default_rng(seed)
    points = torch.from_numpy(rng.normal(size=(9, 2)).round(1)[rng.integers(0, 9, 15)])
    far = points.unsqueeze(1) - points
    found = least_on_simplex(torch.einsum("ijf,ikf->ijk", far, far) + 1e-12 * torch.eye(15))
    torch.testing.assert_close(found @ points, points, rtol=0, atol=1e-5)
    assert combinations(points.unsqueeze(1), torch.zeros(15)).isfinite().all()
    even = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(combinations(torch.zeros(3, 1, 2), torch.zeros(3)), even)


def random_moments(m):
    return torch.randn(m, 3, 5).double(), torch.rand(m).double() + 0.5


def test_clients_whose_means_agree_weigh_heads_by_inverse_variance():
    means, variances = random_moments(5)
    found = combinations(means[:1].expand(5, -1, -1), variances)
    torch.testing.assert_close(found, (1 / variances / (1 / variances).sum()).expand(5, -1))


def test_a_client_that_knows_its_mean_exactly_keeps_its_head():
    means, _ = random_moments(4)
    torch.testing.assert_close(combinations(means, torch.zeros(4)), torch.eye(4).double())
    assert combinations(means[:1], torch.ones(1)).tolist() == [[1.0]]


def test_combinations_depend_neither_on_the_scale_of_features_nor_on_who_is_who():
    means, variances = random_moments(6)
    means[5], variances[5] = means[2], variances[2]  # two clients with the same data
    found = combinations(means, variances)
    torch.testing.assert_close(combinations(3 * means, 9 * variances), found)
    torch.testing.assert_close(found[5], found[2])
    order = torch.randperm(6)
    torch.testing.assert_close(combinations(means[order], variances[order]), found[order][:, order])
    assert not ((found > 0) & (found < 1e-3)).any()


def test_without_alignment_and_combination_this_is_fedrep(monkeypatch):
    monkeypatch.setattr(module, "combinations", lambda means, variances: torch.eye(len(means)).double())
    for policy in ("local", "mean", "all-local"):
        options = {"network": conv_net, "participation": 0.5, "batchnorm": policy}
        ends = [models_after(each, **options) for each in (FedPAC(0.0), FedRep(head_epochs=1))]
        assert difference(*ends) < 1e-12


def models_after(algorithm, rounds=3, **options):
    run = federation(algorithm, **options)
    after(run, rounds)
    return models(run)


def test_alignment_begins_in_the_second_round():
    ends = [[models_after(FedPAC(lam), rounds) for lam in (0.0, 5.0)] for rounds in (1, 2)]
    assert difference(*ends[0]) == 0
    assert difference(*ends[1]) > 1e-6


def test_alignment_is_a_mean_over_samples_and_features():
    network = plain_net().double()
    params = {name: value.detach() for name, value in network.named_parameters()}
    x, y = torch.randn(6, 64).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    target = torch.randn(10, 12).double()
    client = FunctionalClient(network, nn.functional.cross_entropy, {}, torch.tensor(0))
    constants = {"target": {"means": target}}
    pulled, plain = (client.gradient(params, Batch(x, y), Aligned(lam), **constants) for lam in (2.0, 0.0))
    features = (x @ params["1.weight"].T + params["1.bias"]).relu()
    slope = 2 * 2.0 * (features - target[y]) * (features > 0) / features.numel()
    torch.testing.assert_close(pulled["1.bias"] - plain["1.bias"], slope.sum(0))
    assert torch.equal(pulled["3.weight"], plain["3.weight"])


def test_the_mean_of_a_class_that_nobody_has_stays_and_heads_of_absent_clients_wait():
    run = federation(FedPAC(), data=small_data((20, 20, 20, 20, 20)), participation=0.4)
    run.step()
    everybody = torch.arange(5)
    before, cohort = run.server, run.step().cohort.ids
    away = everybody[~torch.isin(everybody, cohort)]
    assert torch.equal(run.server["head"]["3.weight"][away], before["head"]["3.weight"][away])
    upload = {
        "body": {name: value.expand(1, *value.shape) for name, value in run.server["body"].items()},
        "head": {name: value[:1] for name, value in run.server["head"].items()},
        "moments": {"mean": torch.randn(1, 10, 12).double(), "variance": torch.ones(1).double()},
        "classes": {"means": torch.randn(1, 10, 12).double(), "counts": torch.eye(10)[:1].double() * 4},
    }  # of a client that has class 0 alone
    new, _ = run.algorithm.server(run.server, run.all_clients().only(torch.tensor([0])), upload)
    assert torch.equal(new["classes"]["means"][0], upload["classes"]["means"][0, 0])
    assert torch.equal(new["classes"]["means"][1:], run.server["classes"]["means"][1:])
    assert torch.equal(new["classes"]["known"], run.server["classes"]["known"])


def test_a_head_without_a_body_and_targets_that_are_no_classes_are_refused():
    def linear():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    with pytest.raises(InputError, match="algorithm fedpac: needs a network with layers below the last"):
        federation(FedPAC(), linear)
    problem = replace(problem_of(federation(FedAvg()).engine), label_counts=None)
    with pytest.raises(InputError, match="algorithm fedpac: needs class labels"):
        FedPAC().setup(problem)
