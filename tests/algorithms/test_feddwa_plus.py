"""FedDWA+: the cosine of a client's halves, their alternating order, and the running mean that is used."""

import numpy as np
import pytest
import torch

from feddwa.algorithms import FedDWAPlus
from feddwa.algorithms.base import Problem
from feddwa.algorithms.cosine import best_partner, mean_similarity, scale_others, spearman_brown
from feddwa.algorithms.feddwa_plus import HALVES
from feddwa.algorithms.prior import add_prior
from feddwa.engine import Trainer, keys
from feddwa.engine.batches import Batches
from feddwa.engine.rows import tensors
from feddwa.mixing import cosines, inner_products, pairwise_cosines
from tests.algorithms.conftest import federation, models
from tests.conftest import conv_net, small_data


@pytest.mark.parametrize("signal", [0.3, 1.0, 3.0])
def test_the_cosine_of_halves_gives_that_of_two_whole_epochs(signal):
    """Updates with a common part and independent noise: 2c / (1 + c) of the halves' cosine is the cosine of wholes."""
    rng = np.random.default_rng(0)
    common = signal * rng.normal(size=20_000) / np.sqrt(2)
    half = torch.as_tensor(common + rng.normal(size=(4, 20_000)))
    whole = {"v": torch.stack([half[0] + half[1], half[2] + half[3]])}
    of_wholes = pairwise_cosines(inner_products(whole, whole))[0, 1]
    of_halves = cosines({"v": half[:1]}, {"v": half[1:2]})
    torch.testing.assert_close(spearman_brown(of_halves)[0], of_wholes, rtol=0, atol=0.03)


def test_only_the_diagonal_is_corrected_and_it_stays_from_zero_to_one():
    mean, once = torch.tensor([[-0.5, 0.4], [-0.7, 1.0]], dtype=torch.float64), torch.ones(2, 2)
    assert mean_similarity(mean, once).tolist() == [[0.0, 0.4], [-0.7, 1.0]]
    assert mean_similarity(torch.tensor([[0.5]]), torch.ones(1, 1)).item() == pytest.approx(2 / 3)


def test_a_zero_update_has_cosine_zero_with_all():
    rows = {"v": torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]])}
    expected = torch.tensor([[0, 0, 0], [0, 1, 1], [0, 1, 1]]).double()
    torch.testing.assert_close(pairwise_cosines(inner_products(rows, rows)), expected)
    assert cosines(rows, {"v": rows["v"].flip(0)}).tolist() == [0.0, pytest.approx(1.0), 0.0]


def test_a_round_is_weighted_by_the_best_partner():
    """Two rounds: a client without a positive cosine in the second gives it weight 0, the others their largest one."""
    first = torch.tensor([[0.9, 0.8, -0.2], [0.8, 0.7, 0.1], [-0.2, 0.1, 0.3]], dtype=torch.float64)
    second = torch.tensor([[0.5, 0.2, 0.4], [0.2, 0.5, -0.6], [-0.1, -0.6, 0.5]], dtype=torch.float64)
    assert best_partner(first).tolist() == [0.8, 0.8, 0.1]
    assert best_partner(second).tolist() == [0.4, 0.2, 0.0]
    counts = [best_partner(each).unsqueeze(1).expand(3, 3) for each in (first, second)]
    known = mean_similarity(counts[0] * first + counts[1] * second, counts[0] + counts[1])
    assert known[0, 1].item() == pytest.approx((0.8 * 0.8 + 0.4 * 0.2) / 1.2)
    torch.testing.assert_close(known[2], mean_similarity(first, torch.ones(3, 3))[2])
    assert mean_similarity(torch.zeros(2, 2), torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_weights_stay_once_a_group_has_converged():
    """Late rounds in which only each client's halves have a positive cosine do not separate the group."""
    known = torch.full((3, 3), 0.5, dtype=torch.float64)
    silent = torch.tensor([[0.4, -0.1, -0.2], [-0.1, 0.4, -0.1], [-0.2, -0.1, 0.4]], dtype=torch.float64)
    counted = best_partner(known).unsqueeze(1) + 100 * best_partner(silent).unsqueeze(1)
    total = best_partner(known).unsqueeze(1) * known + 100 * best_partner(silent).unsqueeze(1) * silent
    assert torch.equal(mean_similarity(total, counted.expand(3, 3)), mean_similarity(known, torch.ones(3, 3)))


def test_the_halves_take_turns_in_coming_first():
    run = federation(FedDWAPlus(), data=small_data((24, 40, 16)))
    for round, begins in enumerate((*HALVES, HALVES[0]), 1):
        before, now = run.memory, run.step()
        assert now.cohort.round == round
        for half in HALVES:
            moved = any(not torch.equal(value, before[half][name]) for name, value in run.memory[half].items())
            assert moved == (half == begins)


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("average", [0.0, 0.25, 1.0])
def test_the_model_in_use_is_a_mean_of_those_received(average, participation):
    """r = 1: of all of them, r = 0: the last; in between the newest of t has weight 1 / (1 + r (t - 1)).

    Each with the agreed update that the client had then, and all with its class frequencies.
    """
    run = federation(FedDWAPlus(average=average), participation=participation)
    received = [[] for _ in range(run.clients)]

    def ahead(models, client):
        return {name: value[client] + run.memory["agreed_update"][name][client] for name, value in models.items()}

    for _ in range(4):
        cohort, arrived = run._cohort(run.round + 1), run.server["model"]
        run.step()
        for client in cohort.ids.tolist():
            received[client].append(ahead(arrived, client))
    used = add_prior(models(run)["model"], run.memory, -1)
    for client, past in enumerate(received):
        now = ahead(run.server["model"], client)
        for name, value in used.items():
            mean = torch.zeros_like(now[name])
            for t, model in enumerate([*past, now]):
                mean = mean + (model[name] - mean) / (1 + average * t)
            torch.testing.assert_close(value[client], mean, rtol=1e-9, atol=1e-9)
            if average == 1:
                plain = torch.stack([model[name] for model in [*past, now]]).mean(0)
                torch.testing.assert_close(value[client], plain, rtol=1e-9, atol=1e-9)


def test_statistics_are_a_mean_as_well():
    """The first model is used with the first statistics, the mean with the mean of those it was received with."""
    run = federation(FedDWAPlus(average=1.0), conv_net)
    seen = [run.memory["buffers"]]
    for _ in range(3):
        run.step()
        seen.append(run.memory["buffers"])
    moving = {name: value for name, value in models(run)["buffers"].items() if value.is_floating_point()}
    assert moving
    for name, value in moving.items():
        torch.testing.assert_close(value, torch.stack([past[name] for past in seen]).mean(0))
        assert not torch.equal(value, seen[-1][name])


@pytest.mark.slow
def test_the_mean_changes_nothing_of_the_training():
    """What is used is looked at and never sent: models, weights and messages are those of the run without a mean."""
    run = federation(FedDWAPlus(average=0.5), conv_net)
    other = federation(FedDWAPlus(average=0.5), conv_net)
    for _ in range(3):
        run.personal(run.all_clients())
        run.step()
        other.memory = {**other.memory, "average": {n: 0 * v for n, v in other.memory["average"].items()}}
        other.step()
    for (name, a), (_, b) in zip(tensors(run.server), tensors(other.server), strict=True):
        assert torch.equal(a, b), name


def test_participants_stand_for_absent_clients():
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.2, 0.2, 0.6]], dtype=torch.float64)
    expected = [[0.5 / 1.5, 0.5 / 1.5, 0.5 / 1.5], [0.0, 1.0, 0.0], [0.4 / 1.4, 0.4 / 1.4, 0.6 / 1.4]]
    torch.testing.assert_close(scale_others(weights, 2.0), torch.tensor(expected, dtype=torch.float64))


def test_even_classes_are_no_prior():
    """With ever more samples of even classes l_i is the same for all of them, and a softmax does not see it."""
    run, plain = federation(FedDWAPlus(prior=1e15)), federation(FedDWAPlus())
    plain.memory = {**plain.memory, "prior": {}}
    for _ in range(3):
        torch.testing.assert_close(run.step().info, plain.step().info, rtol=1e-6, atol=1e-8)
    used, without = models(run)["model"], models(plain)["model"]
    for name, value in used.items():
        shift = (value - without[name]).flatten(1)
        torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=1e-6)


def test_the_prior_stays_at_home():
    """A client has its class frequencies in the model that it uses, and never sends them."""
    run = federation(FedDWAPlus(prior=50.0))
    counts = run.engine.data.label_counts().double()
    logs = ((counts + 5) / (counts.sum(1, keepdim=True) + 50)).log()
    bias = next(iter(run.memory["prior"]))
    torch.testing.assert_close(run.memory["prior"][bias], logs)
    torch.testing.assert_close(models(run)["model"][bias], run.server["model"][bias] + logs)


def test_without_classes_or_a_bias_there_is_no_prior():
    initial, sizes = {"head.weight": torch.zeros(3, 2), "head.bias": torch.zeros(3)}, torch.tensor([4, 4])
    counts = torch.tensor([[4, 0], [1, 3]])
    one_too_many = torch.tensor([[4, 0, 0, 0], [1, 1, 1, 1]])
    whole_head = tuple(initial)
    for known, head in ((None, whole_head), (counts, ("head.weight",)), (counts, ()), (one_too_many, whole_head)):
        assert FedDWAPlus().setup(Problem(initial, 2, sizes, known, head))[1]["prior"] == {}
    prior = FedDWAPlus(prior=6.0).setup(Problem(initial, 2, sizes, counts, whole_head))[1]["prior"]
    torch.testing.assert_close(prior, {"head.bias": torch.tensor([[0.6, 0.2, 0.2], [0.3, 0.5, 0.2]]).log()})


def test_both_halves_count_for_the_class_frequencies():
    data = small_data()
    halved = FedDWAPlus.split(data, np.random.default_rng(0))
    assert set(halved.splits) == {"train", "second_half", "test"}  # trained on, so not called validation
    assert (halved.splits["train"].sizes - halved.splits["second_half"].sizes).abs().max() <= 1
    assert torch.equal(halved.label_counts(), data.label_counts())


def test_the_second_half_draws_the_batches_of_the_published_runs():
    """Its random stream kept the name "validation" that the split once had: renaming it moved no number."""
    run = federation(FedDWAPlus())
    trainer = Trainer(run.engine, torch.arange(run.clients), 3)
    _, noise = Batches(trainer.engine, trainer.ids, trainer.round).order("second_half", "train", 1)
    key = keys.key(trainer.seed, "train/validation", 3, torch.arange(run.clients), 1)
    assert torch.equal(noise, keys.fold(key, 1))
    assert torch.equal(trainer.sizes("second_half"), run.engine.data.splits["second_half"].sizes)


@pytest.mark.parametrize("freeze", [1, 2])
def test_weights_stay_those_of_the_round_after_which_they_are_frozen(freeze):
    run, free = federation(FedDWAPlus(freeze=freeze)), federation(FedDWAPlus())
    weights = [(run.step().info["weights"], free.step().info["weights"]) for _ in range(4)]
    for frozen, learned in weights[:freeze]:
        assert torch.equal(frozen, learned)
    for frozen, learned in weights[freeze:]:
        assert torch.equal(frozen, weights[freeze - 1][0])
        assert not torch.allclose(frozen, learned)


def test_frozen_clients_that_have_not_met_stay_strangers():
    """Partial participation: after round 1 only pairs of its cohort ever give each other weight."""
    run = federation(FedDWAPlus(freeze=1), participation=0.4)
    first = run.step().cohort.ids
    known = run.server["cosine_sum"]
    for _ in range(4):
        result = run.step()
        met = torch.isin(result.cohort.ids, first)
        others = result.info["weights"].masked_fill(torch.eye(len(met), dtype=torch.bool), 0.0)
        assert (others[~(met.unsqueeze(1) & met)] == 0).all()
    torch.testing.assert_close(run.server["cosine_sum"], known, rtol=0, atol=0)
