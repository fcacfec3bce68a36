"""One switch for BatchNorm, the same for every algorithm."""

import numpy as np
import pytest
import torch

from feddwa.algorithms import ALGORITHMS, FedAvg, FedDWA, Local
from feddwa.config import POLICIES
from feddwa.engine import Engine, Settings
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.sides import network_of
from tests.conftest import SIZES, conv_net, plain_net, small_data

SCALE, SHIFT = "3.weight", "3.bias"  # of conv_net's BatchNorm
MEAN, VARIANCE = "3.running_mean", "3.running_var"
N = len(SIZES)


def federation(algorithm, policy, network=conv_net, sizes=SIZES, **options) -> Federation:
    data = small_data(sizes)
    data = algorithm.split(data, np.random.default_rng(0))
    engine = Engine(network_of(algorithm, network(), 0), data, Settings(1, 10, 0.05), dtype=torch.float64)
    return Federation(algorithm, engine, batchnorm=policy, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"), [(name, policy) for name, kind in ALGORITHMS.items() for policy in kind.policies]
)
def test_every_algorithm_runs_under_every_policy_on_both_backends(name, policy):
    results = []
    for options in ({"sequential": True}, {"chunk": 2}):
        run = federation(ALGORITHMS[name](), policy, sizes=(13, 20, 3, 10), participation=0.75, **options)
        for _ in range(3):
            run.step()
        results.append(run.personal(run.all_clients()))
    for one, other in zip(*results, strict=True):
        for key, value in one.items():
            assert value.isfinite().all()
            assert torch.allclose(value, other[key], rtol=1e-8, atol=1e-10), key


@pytest.mark.parametrize("policy", POLICIES)
def test_without_batchnorm_the_policy_changes_nothing(policy):
    expected, found = federation(FedDWA(), "local", plain_net), federation(FedDWA(), policy, plain_net)
    one, other = expected.step(), found.step()
    assert torch.equal(one.info["weights"], other.info["weights"])
    assert one.costs.bytes_up == other.costs.bytes_up


def test_local_statistics_stay_while_scale_and_shift_are_averaged():
    run = federation(FedAvg(), "local")
    run.step()
    model, buffers = run.personal(run.all_clients())
    assert (model[SCALE] == model[SCALE][0]).all()
    assert not torch.allclose(buffers[MEAN], buffers[MEAN][0].expand(N, -1), atol=1e-3)


def test_mean_sends_the_same_average_to_everybody():
    local, mean = federation(FedAvg(), "local"), federation(FedAvg(), "mean")
    plain, counted = local.step(), mean.step()
    own = local.memory["buffers"][MEAN]  # after one round from the same start: what the clients of both runs measured
    expected = (torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)) @ own
    buffers = mean.personal(mean.all_clients())[1]
    assert torch.allclose(buffers[MEAN], expected.expand(N, -1))
    assert counted.costs.bytes_up - plain.costs.bytes_up == 8 * 12  # mean and variance of 6 channels, float64
    assert counted.costs.bytes_down - plain.costs.bytes_down == 8 * 12


def test_all_local_keeps_scale_and_shift_at_home():
    run = federation(FedAvg(), "all-local")
    model = run.engine.initial()[0]
    size = 8 * sum(value.numel() for name, value in model.items() if name not in (SCALE, SHIFT))
    result = run.step()
    assert result.costs.bytes_up == result.costs.bytes_down == size
    assert SCALE not in run.server["model"]
    personal = run.personal(run.all_clients())[0]
    assert (personal["0.weight"] == personal["0.weight"][0]).all()
    assert not torch.allclose(personal[SCALE], personal[SCALE][0].expand(N, -1), atol=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
def test_local_training_is_the_same_under_every_policy(policy):
    expected, found = federation(Local(), "local"), federation(Local(), policy)
    for run in (expected, found):
        run.step()
        run.step()
    one, other = expected.personal(expected.all_clients()), found.personal(found.all_clients())
    assert all(torch.equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in a)


def test_feddwa_alone_with_itself_is_local_under_all_local():
    dwa, local = federation(FedDWA(top_k=1), "all-local"), federation(Local(), "local")
    for run in (dwa, local):
        run.step()
        run.step()
    one, other = dwa.personal(dwa.all_clients())[0], local.personal(local.all_clients())[0]
    assert all(torch.allclose(one[name], other[name], rtol=1e-12) for name in one)


@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, policy) for name, kind in ALGORITHMS.items() for policy in POLICIES if policy not in kind.policies],
)
def test_a_policy_that_would_mix_up_a_clients_models_is_refused_where_there_is_batchnorm(name, policy):
    title = ALGORITHMS[name].title
    with pytest.raises(InputError, match=f"--batchnorm {policy}: does not suit {title}, .*; take {'local'}"):
        federation(ALGORITHMS[name](), policy)
    if name != "fedbn":
        federation(ALGORITHMS[name](), policy, plain_net).step()


@pytest.mark.parametrize("policy", ALGORITHMS["fedbn"].policies)
def test_fedbn_is_fedavg_under_all_local_bit_for_bit(policy):
    expected, found = federation(FedAvg(), "all-local"), federation(ALGORITHMS["fedbn"](), policy)
    for _ in range(3):
        one, other = expected.step(), found.step()
        assert (one.costs.bytes_up, one.costs.bytes_down) == (other.costs.bytes_up, other.costs.bytes_down)
        assert torch.equal(one.after.loss, other.after.loss)
    for left, right in zip(expected.personal(expected.all_clients()), found.personal(found.all_clients()), strict=True):
        assert all(torch.equal(value, right[name]) for name, value in left.items())


def test_fedbn_refuses_a_network_without_batchnorm():
    with pytest.raises(InputError, match="algorithm fedbn: needs a network with BatchNorm layers"):
        federation(ALGORITHMS["fedbn"](), "local", plain_net)
