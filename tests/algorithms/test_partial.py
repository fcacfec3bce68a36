"""Special cases of models of one's own beside a global one, and of models that are shared in part."""

import pytest
import torch

from feddwa.algorithms import APFL, L2GD, Ditto, FedAvg, FedBABU, FedDBE, FedPer, FedPHP, FedRep, LGFedAvg, Local
from feddwa.algorithms.apfl import MixtureStep
from feddwa.algorithms.fedphp import adaptive_mmd
from feddwa.data.federated import Batch
from feddwa.engine.network import FunctionalClient
from feddwa.engine.rows import only
from feddwa.errors import InputError
from feddwa.faults import HEALTHY, Faults
from tests.algorithms.conftest import after, difference, equal, federation, models
from tests.conftest import conv_net, plain_net, small_data

OPTIONS = {"participation": 0.5}
BODY, HEAD = ("0", "3", "6"), "9"  # layers of conv_net


def run(algorithm, rounds=3, network=conv_net, **options):
    made = federation(algorithm, network, **{**OPTIONS, **options})
    after(made, rounds)
    return made


def shared(made):
    return {"model": made.server["model"]}


@pytest.mark.parametrize("algorithm", [Ditto(), Ditto(0.0), APFL(), APFL(1.0, "off"), FedPHP(0.0)])
def test_the_shared_model_is_fedavgs_whatever_the_own_one_does(algorithm):
    assert equal(shared(run(algorithm)), shared(run(FedAvg())))


def test_ditto_without_a_pull_and_apfl_of_the_own_model_alone_are_local():
    """Ditto's BatchNorm statistics included, which are those of the model that is evaluated."""
    local = models(run(Local()))
    assert difference(models(run(Ditto(0.0))), local) < 1e-12
    assert difference(models(run(Ditto(0.5))), local) > 1e-3
    ends = [models(run(each, network=plain_net)) for each in (APFL(1.0, "off"), Local())]
    assert difference(*ends) < 1e-12  # without dropout, whose masks differ from pass to pass


def test_apfl_without_a_share_of_its_own_is_fedavg_and_leaves_the_own_model():
    made = run(APFL(0.0, "off"))
    assert difference({"model": models(made)["model"]}, {"model": models(run(FedAvg()))["model"]}) < 1e-12
    start = made.engine.initial()[0]
    assert all(torch.equal(value, start[name].expand_as(value)) for name, value in made.memory["personal"].items())


def test_alphas_gradient_is_that_of_the_mixtures_loss():
    torch.manual_seed(2)
    module = plain_net().double()
    own = {name: value.detach() for name, value in module.named_parameters()}
    other = {name: value + 0.3 * torch.randn_like(value) for name, value in own.items()}
    batch = Batch(torch.randn(6, 64, dtype=torch.float64), torch.arange(6))

    def loss(alpha):
        mixed = {name: alpha * value + (1 - alpha) * other[name] for name, value in own.items()}
        return torch.nn.functional.cross_entropy(torch.func.functional_call(module, mixed, (batch.x,)), batch.y)

    alpha, rate = torch.tensor(0.4, dtype=torch.float64), 1e-3
    client = FunctionalClient(module, torch.nn.functional.cross_entropy, {}, torch.tensor(0))
    state = {"model": other, "personal": own, "mixing": {"alpha": alpha, "open": torch.ones_like(alpha)}}
    moved = MixtureStep(0.1, rate, "step")(client, state, batch)["mixing"]["alpha"]
    numeric = (loss(alpha + 1e-5) - loss(alpha - 1e-5)) / 2e-5
    torch.testing.assert_close((alpha - moved) / rate, numeric, rtol=1e-6, atol=1e-8)


def test_l2gds_limits_are_local_and_fedavg_over_equal_sizes():
    assert equal(models(run(L2GD(0.0))), models(run(Local())))
    data = small_data((20, 20, 20, 20))
    ends = [run(each, data=data, participation=1.0) for each in (L2GD(1.0), FedAvg())]
    assert difference(*({"model": models(each)["model"]} for each in ends)) < 1e-12


def test_mixing_twice_is_mixing_once_with_more_and_keeps_the_mean():
    start = run(L2GD(0.3), 1, plain_net, participation=1.0)
    rows = {"model": start.server["model"]}
    cohort = start.all_clients()
    once, twice = L2GD(0.51), L2GD(0.3)
    left = once.server(rows, cohort, rows)[0]
    right = twice.server(twice.server(rows, cohort, rows)[0], cohort, twice.server(rows, cohort, rows)[0])[0]
    assert difference(left, right) < 1e-12
    mean = {"model": {name: value.mean(0) for name, value in rows["model"].items()}}
    assert difference({"model": {name: value.mean(0) for name, value in left["model"].items()}}, mean) < 1e-12


def test_a_private_head_and_a_shared_body_are_two_names_of_one_method():
    by_body, by_head = run(LGFedAvg(",".join(BODY))), run(FedPer(HEAD))
    assert equal(models(by_body), models(by_head))
    assert equal(shared(by_body), shared(by_head))


def test_fedrep_without_head_epochs_trains_as_fedbabu():
    rep, babu = run(FedRep(head_epochs=0)), run(FedBABU(tune_epochs=0))
    assert equal(models(rep), models(babu))


def test_fedrep_without_body_epochs_fits_heads_to_the_body_as_it_was_drawn():
    made = run(FedRep(head_epochs=2, body_epochs=0))
    start = made.engine.initial()[0]
    assert difference({"model": made.server["model"]}, {"model": only(start, made.server["model"])}) < 1e-12
    heads = made.memory["own"]["9.weight"]
    assert not torch.equal(heads, start["9.weight"].expand_as(heads))


def test_fedbabus_head_is_the_initial_one_bit_for_bit():
    made = run(FedBABU(tune_epochs=0))
    start, found = made.engine.initial()[0], models(made)["model"]
    assert torch.equal(found["9.weight"], start["9.weight"].expand_as(found["9.weight"]))
    assert not torch.equal(found["6.weight"], start["6.weight"].expand_as(found["6.weight"]))
    assert "9.weight" not in made.server["model"]


def test_fedphp_without_teacher_and_past_has_fedavgs_models_after_training():
    php, fedavg = (federation(each, conv_net, **OPTIONS) for each in (FedPHP(0.0, 0.0), FedAvg()))
    for _ in range(3):
        assert torch.allclose(php.step().after.loss, fedavg.step().after.loss, rtol=1e-12)


def test_features_of_one_model_are_at_no_distance():
    """And nothing pulls: in a client's first pass both models are the same."""
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    distance = adaptive_mmd(x, x.detach().clone())
    distance.backward()
    assert abs(float(distance.detach())) < 1e-12
    assert x.grad.abs().max() < 1e-12


@pytest.mark.parametrize("algorithm", [FedPer(), LGFedAvg(), FedRep(), FedBABU()])
def test_a_network_that_is_its_head_alone_is_refused(algorithm):
    def linear():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    with pytest.raises(InputError, match="--param head: got 'last', must be some of the network's"):
        federation(algorithm, linear)


def test_feddbe_begins_with_a_round_of_fedavg_even_if_the_first_is_a_pause():
    begun, fedavg = (run(each, 1) for each in (FedDBE(5.0), FedAvg()))
    assert equal(shared(begun), shared(fedavg))
    assert difference(shared(run(FedDBE(0.0), 2)), shared(run(FedAvg(), 2))) > 1e-6
    paused = run(FedDBE(), 1, faults=Faults(dropout=1.0))
    assert not paused.server["start"]["done"]
    paused.faults = HEALTHY
    after(paused, 1)
    assert paused.server["start"]["done"]
    assert not paused.memory["offset"]["9.weight"].any()


def test_zbar_is_the_clients_mean_feature_and_stays():
    """Of one client, whose one batch has all its samples: the mean over them at the initial model."""
    made = run(FedDBE(), 1, plain_net, data=small_data((10,)), participation=1.0)
    model, engine = made.engine.initial()[0], made.engine
    x = engine.data.batch(engine.data.splits["train"].index[0], torch.float64).x.flatten(1)
    features = (x @ model["1.weight"].T + model["1.bias"]).relu()
    torch.testing.assert_close(made.server["common"]["mean"], features.mean(0))
    after(made, 2)
    torch.testing.assert_close(made.server["common"]["mean"], features.mean(0))


def test_an_offset_is_evaluated_as_a_bias_and_waits_while_its_client_is_absent():
    made = run(FedDBE(), 2, plain_net)
    before = made.memory["offset"]["3.weight"]
    cohort = made.step().cohort.ids.tolist()
    offsets = made.memory["offset"]["3.weight"]  # (8, 12)
    waited = [i for i in range(8) if i not in cohort]
    assert torch.equal(offsets[waited], before[waited])
    assert all(offsets[i].any() for i in cohort)
    model, found = made.server["model"], models(made)["model"]
    x = torch.randn(3, 64, dtype=torch.float64)
    features = (x @ model["1.weight"].T + model["1.bias"]).relu()
    for i, offset in enumerate(offsets):
        expected = (features + offset) @ model["3.weight"].T + model["3.bias"]
        torch.testing.assert_close(features @ found["3.weight"][i].T + found["3.bias"][i], expected)


def test_feddbe_refuses_a_head_without_a_bias():
    def unbiased():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 9), torch.nn.Linear(9, 10, bias=False))

    with pytest.raises(InputError, match="algorithm feddbe: needs a network whose last linear layer has a bias"):
        federation(FedDBE(), unbiased)
