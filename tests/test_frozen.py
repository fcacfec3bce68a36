"""Frozen parameters (requires_grad=False) stay as they are and cost nothing: every algorithm, every backend."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa import models
from feddwa.algorithms import ALGORITHMS, FedAvg, FedDWA
from feddwa.build import load_task
from feddwa.config import POLICIES, RunConfig
from feddwa.engine.fast import record
from feddwa.engine.network import frozen, trainable
from feddwa.engine.rows import tensors
from feddwa.errors import InputError
from feddwa.experiment import run_tasks
from feddwa.models import small
from tests.algorithms.conftest import after, federation
from tests.conftest import SIZES as ALL_SIZES
from tests.conftest import conv_net, small_data

SIZES = (13, 20, 3, 10)


def half_frozen() -> nn.Module:
    """Frozen: a convolution before and one behind trainable layers, BatchNorm's scale, a bias."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 1),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.ReLU(),
        nn.Linear(8, 10),
    )
    for name in ("0.weight", "0.bias", "3.weight", "5.weight", "5.bias", "7.bias"):
        network.get_parameter(name).requires_grad_(False)
    return network


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_frozen_parameters_stay_with_every_algorithm_on_both_backends(name):
    results = []
    for options in ({"sequential": True}, {"chunk": 3}):
        run = federation(ALGORITHMS[name](), half_frozen, small_data(SIZES), participation=0.75, **options)
        fixed, moving = frozen(run.engine.module), trainable(run.engine.module)
        start = {key: value.clone() for key, value in fixed.items()}
        for _ in range(3):
            run.step()
        seen = {key.partition("/")[2] for key, _ in (*tensors(run.server), *tensors(run.memory))}
        assert not seen & start.keys()  # neither in the server's state nor in a client's memory
        model, _ = run.personal(run.all_clients())
        assert list(model) == [key for key, _ in run.engine.module.named_parameters()]
        for key, value in start.items():
            assert torch.equal(model[key], value.expand(len(SIZES), *value.shape)), key
            assert torch.equal(fixed[key], value), key
        for key in moving:
            assert not torch.equal(model[key], moving[key].expand(len(SIZES), *moving[key].shape)), key
        results.append(model)
    for key, value in results[0].items():
        assert torch.allclose(value, results[1][key], rtol=1e-8, atol=1e-10), key


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_for_batchnorm_leaves_frozen_scales_alone(policy):
    run = federation(FedDWA(), half_frozen, small_data(SIZES), batchnorm=policy)
    costs = run.step().costs
    model, _ = run.personal(run.all_clients())
    assert (model["3.weight"] == 1).all()
    size = 8 * sum(value.numel() for value in trainable(run.engine.module).values())
    more = {"local": 0, "mean": 8 * 12, "all-local": -8 * 6}[policy]  # statistics of 6 channels; the shift of 6
    assert (costs.bytes_down, costs.bytes_up) == (size + more, 2 * size + more * (2 if policy == "all-local" else 1))


def test_traffic_and_flops_are_those_of_the_trainable_parameters():
    whole, head = federation(FedAvg(), conv_net), federation(FedAvg(), head_only)
    all_costs, own_costs = whole.step().costs, head.step().costs
    assert own_costs.bytes_up == own_costs.bytes_down == 8 * (16 * 10 + 10)
    forward = head.engine.forward_flops(*head.engine.initial())
    samples = torch.tensor(ALL_SIZES)
    assert torch.equal(own_costs.flops, samples * (forward + 2 * 16 * 10))  # one gradient: that of the head's weight
    assert (own_costs.flops < 0.6 * all_costs.flops).all()


def head_only() -> nn.Module:
    """The whole network frozen but for its last layer."""
    network = conv_net()
    for name, value in network.named_parameters():
        value.requires_grad_(name.startswith("9."))
    return network


def test_the_optimiser_of_the_sequential_backend_holds_trainable_parameters_only(monkeypatch):
    held = []
    sgd = torch.optim.SGD
    monkeypatch.setattr(
        torch.optim, "SGD", lambda own, *rest, **kinds: held.append(list(own)) or sgd(held[-1], *rest, **kinds)
    )
    federation(FedAvg(), head_only, small_data(SIZES), sequential=True).step()
    assert len(held) == len(SIZES)
    assert all([tuple(value.shape) for value in own] == [(10, 16), (10,)] for own in held)


def own_clients() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(30, 1, 8, 8)).astype("float32"), rng.integers(0, 10, 30)) for _ in range(4)]


@pytest.mark.parametrize("backend", ["vectorised", "sequential"])
def test_models_that_come_out_are_complete_state_dictionaries(backend):
    model = half_frozen()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = feddwa.run(model=model, dataset=own_clients(), rounds=2, batch_size=10, lr=0.1, backend=backend, out=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for client in range(4):
        own = half_frozen()
        own.load_state_dict({name: rows[client] for name, rows in {**result.models, **result.buffers}.items()})
        assert torch.equal(own.get_parameter("0.weight"), before["0.weight"])
        assert not torch.equal(own.get_parameter("9.weight"), before["9.weight"])


def test_a_model_without_anything_to_train_is_refused():
    frozen_model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
    with pytest.raises(InputError, match=r"model: all of its 650 parameters are frozen \(requires_grad=False\)"):
        feddwa.run(model=frozen_model, dataset=own_clients(), rounds=1, out=False)
    with pytest.raises(InputError, match="model: has no parameters"):
        feddwa.run(model=nn.Flatten(), dataset=own_clients(), rounds=1, out=False)


def test_fedrod_needs_a_head_that_is_trained():
    network = conv_net()
    network.get_parameter("9.weight").requires_grad_(False)
    with pytest.raises(InputError, match=r"algorithm fedrod: .* not frozen"):
        feddwa.run(model=network, dataset=own_clients(), algorithm="fedrod", rounds=1, batch_size=10, out=False)


def test_all_local_batchnorm_without_other_parameters_is_refused():
    network = conv_net()
    for name, value in network.named_parameters():
        value.requires_grad_(name.startswith("3."))
    with pytest.raises(InputError, match="--batchnorm all-local: every trainable parameter is BatchNorm's"):
        feddwa.run(model=network, dataset=own_clients(), rounds=1, batch_size=10, batchnorm="all-local", out=False)


@pytest.mark.parametrize("name", ["fedrod", "feddwa_plus"])
def test_a_network_may_be_one_linear_layer(name):
    clients = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(3)]
    result = feddwa.run(model=nn.Linear(3, 2), dataset=clients, algorithm=name, rounds=2, out=False)
    assert result.models["weight"].shape == (3, 2, 3)


# By name: a network whose body is frozen at values that the run's seed draws.


def frozen_body(shape: models.Shape, classes: int) -> models.Network:
    """One hidden layer, frozen, and a head of 650 parameters on it."""
    network = small.mlp(shape, classes)
    network.body.requires_grad_(False)
    return network


FROZEN = f"{__name__}:frozen_body"


@pytest.fixture
def _frozen_body(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_frozen_body")
def test_runs_with_other_frozen_values_share_no_program():
    """Seeds in one call, and one after another on one task: each keeps the body that its own seed drew."""
    options = {"model": FROZEN, "clients": 4, "rounds": 2, "partition": "iid"}
    configs = [RunConfig(seed=seed, out=f"both-{seed}", **options).resolved() for seed in (0, 1)]
    task = load_task(configs[0])
    found = run_tasks(configs, [task, task])
    bodies = [result.models["body.fc0.weight"][0] for result in found]
    assert not torch.equal(*bodies)
    for config, result in zip(configs, found, strict=True):
        config = dataclasses.replace(config, out=f"alone-{config.seed}")
        alone = run_tasks([config], [load_task(dataclasses.replace(config, seed=0))])[0]
        for name, value in result.models.items():
            assert torch.equal(value, alone.models[name]), name


@pytest.mark.usefixtures("_frozen_body")
def test_a_run_that_was_interrupted_goes_on_with_its_frozen_values():
    options = {"model": FROZEN, "clients": 4, "rounds": 4, "checkpoint_every": 1}

    def stop(line):
        if line["round"] == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        feddwa.run(**options, out="stopped", observe=stop)
    resumed, whole = feddwa.resume("stopped"), feddwa.run(**options, out="whole")
    assert resumed.models.keys() == whole.models.keys()
    assert all(torch.equal(value, whole.models[name]) for name, value in resumed.models.items())


def test_recorded_programs_hold_frozen_parameters_as_constants(monkeypatch):
    monkeypatch.setattr("feddwa.engine.fast.program.RECORD_AFTER", {"cpu": 0})
    monkeypatch.setitem(record.RECORD_AFTER, "cpu", 0)
    found = []
    for sequential in (False, True):
        run = federation(FedAvg(), half_frozen, small_data(SIZES), epochs=2, sequential=sequential)
        found.append(after(run, 2)["model"])
    assert all(torch.allclose(value, found[1][name], rtol=1e-9, atol=1e-12) for name, value in found[0].items())
