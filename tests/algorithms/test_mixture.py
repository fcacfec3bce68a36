"""FedEM: M models for all, and shares of them for each client."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feddwa
from feddwa.algorithms import FedAvg, FedEM
from feddwa.algorithms.fedem import responsibilities
from feddwa.algorithms.mixture import SHARES, Mixture, mixture_of
from feddwa.data.federated import Batch
from feddwa.engine.network import FunctionalClient, evaluation_mode
from feddwa.engine.rows import row
from feddwa.errors import InputError
from feddwa.results import runs
from feddwa.trained import export
from tests.algorithms.conftest import after, difference, federation, models
from tests.conftest import conv_net, plain_net, small_data
from tests.test_trained_models import check_accuracy, test_samples


def part(model, number):
    """One component of a stack."""
    prefix = f"components.{number}."
    return {name.removeprefix(prefix): value for name, value in model.items() if name.startswith(prefix)}


@pytest.mark.parametrize("policy", ["local", "mean", "all-local"])
def test_one_component_is_fedavg(policy):
    options = {"network": conv_net, "participation": 0.5, "batchnorm": policy}
    runs_ = [federation(each, **options) for each in (FedEM(1), FedAvg())]
    for _ in range(3):
        results = [each.step() for each in runs_]
        torch.testing.assert_close(results[0].after.loss, results[1].after.loss, rtol=1e-9, atol=1e-9)
    found, expected = (models(each) for each in runs_)
    assert difference({"model": part(found["model"], 0)}, {"model": expected["model"]}) < 1e-12
    assert difference({"buffers": part(found["buffers"], 0)}, {"buffers": expected["buffers"]}) < 1e-12


def test_components_that_begin_alike_stay_alike():
    run = federation(FedEM(3))
    start = part(run.server["model"], 0)
    assert not torch.equal(part(run.server["model"], 1)["1.weight"], start["1.weight"])
    alike = {f"components.{m}.{name}": value for m in range(3) for name, value in start.items()}
    run.server = {**run.server, "model": alike}
    after(run, 2)
    assert difference({"m": part(run.server["model"], 0)}, {"m": part(run.server["model"], 2)}) < 1e-12
    even = torch.full((8, 3), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(run.memory["buffers"][SHARES], even)


def test_a_component_that_is_right_where_the_other_is_wrong_gets_all_samples():
    """Both are sure of themselves, and the labels are the second one's."""
    data = small_data((20, 30))
    run = federation(FedEM(2), data=data)
    sign = {"components.0.3": -1e5, "components.1.3": 1e5}
    right = part(run.server["model"], 1)
    both = {f"components.{m}.{name}": value for m in range(2) for name, value in right.items()}
    start = {name: value * sign.get(name.rpartition(".")[0], 1.0) for name, value in both.items()}
    run.server = {**run.server, "model": start}
    network = plain_net().double()
    network.load_state_dict(part(start, 1))
    with torch.no_grad():
        every = run.engine.data.batch(torch.arange(len(data.y)), torch.float64)
        data.y.copy_(network(every.x).argmax(1))
    run.step()
    certain = torch.tensor([[0.0, 1.0]] * 2).double()
    torch.testing.assert_close(run.memory["buffers"][SHARES], certain, rtol=0, atol=1e-9)
    assert difference({"m": part(run.server["model"], 0)}, {"m": part(start, 0)}) < 1e-12


def test_responsibilities_by_hand():
    torch.manual_seed(1)
    mixture = mixture_of(plain_net(), 3, "all").double()
    params = {name: value.detach() for name, value in mixture.named_parameters()}
    pi = torch.tensor([0.5, 0.3, 0.2]).double()
    batch = Batch(torch.randn(5, 1, 8, 8).double(), torch.tensor([0, 4, 9, 4, 2]))
    client = FunctionalClient(mixture, F.cross_entropy, {SHARES: torch.ones(3).double() / 3}, torch.tensor(0))
    q = client.evaluate({**params, SHARES: pi}, batch, responsibilities)["q"]
    for s in range(5):
        with torch.no_grad():
            found = [component(batch.x[s : s + 1]).softmax(1)[0, batch.y[s]] for component in mixture.components]
        chances = [float(share * each) for share, each in zip(pi, found, strict=True)]
        assert q[:, s].tolist() == pytest.approx([chance / sum(chances) for chance in chances])


def test_shares_are_evaluated_as_a_mixture_of_probabilities_and_one_share_as_its_component():
    run = federation(FedEM(3), conv_net)
    after(run, 2)
    model, buffers = run.personal(run.all_clients())
    shares = buffers[SHARES]
    torch.testing.assert_close(shares.sum(1), torch.ones(8).double())
    x = torch.randn(6, 1, 8, 8).double()
    for client in (0, 3):
        state = {**row(model, client), **row(buffers, client)}
        run.engine.module.load_state_dict(state)
        with torch.no_grad(), evaluation_mode(run.engine.module):
            found = run.engine.module(x)
            each = torch.stack([component(x).softmax(1) for component in run.engine.module.components])
            torch.testing.assert_close(found.exp(), (shares[client].reshape(3, 1, 1) * each).sum(0))
            run.engine.module.mixing.shares.copy_(torch.tensor([0.0, 1.0, 0.0]))
            torch.testing.assert_close(run.engine.module(x).softmax(1), each[1])


def test_shares_of_absent_clients_wait_and_nothing_of_them_is_sent():
    run = federation(FedEM(2), participation=0.5)
    run.step()
    before = run.memory["buffers"][SHARES]
    result = run.step()
    away = torch.tensor([i for i in range(8) if i not in result.cohort.ids])
    now = run.memory["buffers"][SHARES]
    assert torch.equal(now[away], before[away])
    assert not torch.equal(now[result.cohort.ids], before[result.cohort.ids])
    assert not any("mixing" in name for name in run.server["model"])


def test_fresh_heads_leave_the_bodies_alike():
    made = mixture_of(plain_net(), 3, "head")
    assert isinstance(made, Mixture)
    first, *others = made.components
    for other in others:
        assert torch.equal(other[1].weight, first[1].weight)
        assert not torch.equal(other[3].weight, first[3].weight)
        assert torch.equal(other[3].weight.flatten().sort().values, first[3].weight.flatten().sort().values)


def test_fresh_heads_of_a_network_without_one_are_refused():
    with pytest.raises(InputError, match="--param fresh: got 'head', must be all"):
        mixture_of(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), 2, "head")


@pytest.mark.parametrize("form", ["safetensors", "torch-export"])
def test_stored_and_exported_mixtures_have_the_accuracy_that_was_evaluated(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    feddwa.run(algorithm="fedem", param=("components=2",), out="run", clients=4, rounds=3, device="cpu")
    trained = runs.read_models(Path("run"))
    for client, (x, y) in enumerate(test_samples("run")):
        check_accuracy(trained, client, export.predict(trained, client, x), y)
    export.export(trained, 1, Path("model"), form)
    if form == "torch-export":
        x = test_samples("run")[1][0]
        with torch.no_grad():
            scores = torch.export.load("model").module()(x)
        torch.testing.assert_close(scores, export.predict(trained, 1, x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scores.exp().sum(1), torch.ones(len(x)))


def test_targets_that_are_no_classes_are_refused():
    rows = [(torch.randn(20, 3).numpy(), torch.randn(20).numpy()) for _ in range(3)]
    with pytest.raises(InputError, match="algorithm fedem: needs class labels"):
        feddwa.run(algorithm="fedem", dataset=rows, model=nn.Linear(3, 1), loss="mse", rounds=1, out=False)
