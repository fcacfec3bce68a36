"""Differential privacy: accounting against other numerics, noise and clipping by statistics, what is covered."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa import cli
from feddwa.algorithms import (
    ALGORITHMS,
    IFCA,
    SFL,
    FedAvg,
    FedAvgFT,
    FedDWA,
    FedDWAPlus,
    FedNova,
    Local,
    PFedMe,
)
from feddwa.engine import Engine, Settings, Trainer, keys
from feddwa.engine.optimizers import SGD, Adam
from feddwa.engine.private import SamplePrivacy
from feddwa.engine.rows import tensors
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.options.privacy import Privacy, read
from feddwa.privacy.accountant import Releases, epsilon, multiplier
from feddwa.privacy.mechanism import STATE, Mechanism
from feddwa.ranks import CURRENT
from feddwa.trained import audit
from feddwa.workers import federation_of
from tests.algorithms.conftest import after, difference, equal
from tests.conftest import plain_net, small_data
from tests.oracles import privacy as oracle

pytest.importorskip("dp_accounting")
SIZES = (27, 40, 15, 32)
SAMPLE, LOCAL, CLIENT = (Privacy(8.0, 1e-3, 1.0, unit) for unit in ("sample", "local", "client"))


def conv() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(54, 10))


def federation(algorithm, privacy=CLIENT, network=plain_net, optimizer=None, sizes=SIZES, rounds=3, seed=0, **options):
    data = algorithm.split(small_data(sizes), np.random.default_rng(1))
    settings = Settings(1, 10, 0.1, optimizer or SGD())
    engine = Engine(algorithm.network(network()), data, settings, seed, dtype=torch.float64)
    return Federation(algorithm, engine, privacy=privacy, rounds=rounds, **options)


# Accounting


@pytest.mark.parametrize(("z", "q", "count"), [(1.0, 0.1, 100), (2.0, 0.3, 50), (0.8, 0.01, 500)])
def test_epsilon_agrees_with_other_numerics(z, q, count):
    by_orders = oracle.epsilon_by_renyi(z, q, count, 1e-5, range(2, 33))
    found = epsilon(z, Releases(q, count), 1e-5, "rdp")
    assert found <= by_orders * (1 + 1e-6)  # it has more orders
    assert found == pytest.approx(by_orders, rel=1e-6) or found < by_orders
    exact = epsilon(z, Releases(q, count), 1e-5, "pld")
    assert exact < found
    assert oracle.delta_by_convolution(z, q, count, exact) == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize(("z", "count"), [(1.0, 1), (5.0, 30)])
def test_epsilon_of_unsampled_noise_has_a_closed_form(z, count):
    exact = epsilon(z, Releases(1.0, count), 1e-5, "pld")
    assert oracle.gaussian_delta(z, count, exact) == pytest.approx(1e-5, rel=0.01)
    assert epsilon(z, Releases(1.0, count), 1e-5, "rdp") > exact


@pytest.mark.parametrize(
    ("releases", "budget"), [(Releases(0.2, 100), 0.5), (Releases(1.0, 20), 8.0), (Releases(0.25, 40, (5, 20)), 8.0)]
)
def test_noise_is_no_more_than_the_budget_needs(releases, budget):
    z = multiplier(budget, releases, 1e-4, "rdp")
    assert epsilon(z, releases, 1e-4, "rdp") <= budget < epsilon(z * 0.99, releases, 1e-4, "rdp")


def test_fixed_cohorts_are_accounted_for_any_other_client():
    """The published value of 1000 clients, 10 a round, 1000 rounds: 21.0 at a multiplier of a half."""
    assert epsilon(0.5, Releases(0.01, 1000, (10, 1000)), 1e-5, "rdp") == pytest.approx(21.0, abs=0.2)
    assert epsilon(1.0, Releases(0.01, 1000), 1e-5, "rdp") == pytest.approx(2.10, abs=0.03)


def test_a_smaller_client_has_the_smaller_budget_left():
    """One multiplier for each client, because shares and steps differ; each spends its budget."""
    made = federation(FedAvg(), SAMPLE, sizes=(30, 60))
    told = made.plan.spent(3)
    assert told["noise_multipliers"][0] > told["noise_multipliers"][1]
    assert all(7.9 < own <= 8.0 for own in told["epsilons"])
    half = made.plan.spent(1)
    assert half["epsilon"] < 0.9 * told["epsilon"]


# Noise and clipping


def normal_test(values: torch.Tensor, deviation: float) -> None:
    """Mean, standard deviation and tails of normal draws, each within four standard errors."""
    count, values = values.numel(), values.flatten() / deviation
    assert abs(float(values.mean())) < 4 / math.sqrt(count)
    assert abs(float(values.std()) - 1) < 4 / math.sqrt(2 * count)
    beyond = float((values.abs() > 2).double().mean())
    assert abs(beyond - 0.0455) < 4 * math.sqrt(0.0455 / count)


def test_keyed_noise_is_normal():
    draws = keys.normal(keys.key(3, "noise"), torch.Size((401, 251)))
    normal_test(draws, 1.0)
    assert float(draws.abs().max()) > 4
    assert not torch.equal(draws, keys.normal(keys.key(4, "noise"), draws.shape))


@pytest.mark.parametrize(("sampling", "factor"), [("poisson", 1), ("fixed", 2)])
def test_the_mean_is_of_clipped_updates_and_has_the_planned_noise(sampling, factor):
    torch.manual_seed(0)
    updates = torch.randn(5, 20_000, dtype=torch.float64) * torch.tensor([[0.0001], [0.01], [1], [3], [10]])
    start = torch.full((1, 20_000), 0.7, dtype=torch.float64)
    upload, download = {"model": {"w": start + updates}}, {"model": {"w": start}}
    privacy = Privacy(8.0, 1e-5, 2.0, sampling=sampling)
    mean, _ = Mechanism(privacy, 3.0, 4.0).mean({}, 1, download, upload, ())
    clipped = updates * (2 / updates.norm(dim=1, keepdim=True)).clamp(max=1)
    normal_test(mean["model"]["w"] - start - clipped.sum(0) / 4, factor * 3.0 * 2.0 / 4)
    silent, _ = Mechanism(privacy, 0.0, 4.0).mean({}, 1, download, upload, ())
    torch.testing.assert_close(silent["model"]["w"] - start, clipped.sum(0, keepdim=True) / 4)


def test_local_noise_is_the_clients_own_and_other_in_every_round():
    made = federation(FedAvg(), LOCAL)
    mechanism, (upload, download) = made.server_side.mechanism, ({"model": {"w": torch.zeros(4, 30_000)}},) * 2
    cohort = made.all_clients()
    sent = mechanism.sent(cohort, download, upload, ())["model"]["w"]
    normal_test(sent, 2 * mechanism.multiplier * 1.0)
    assert sent.dtype == torch.float32  # of the models, whatever the noise is drawn in
    assert abs(float(torch.corrcoef(sent)[0, 1])) < 0.03
    again = mechanism.sent(cohort.only(torch.tensor([2])), download, {"model": {"w": torch.zeros(1, 30_000)}}, ())
    assert torch.equal(again["model"]["w"][0], sent[2])  # whoever else takes part


def test_the_clipping_norm_settles_at_the_quantile():
    """From far below, without noise, of norms 1 to 9: near the quantile. (Counting the clipped ones, it runs away.)"""
    torch.manual_seed(0)
    directions = nn.functional.normalize(torch.randn(90, 50, dtype=torch.float64))
    upload = {"model": {"w": directions * torch.linspace(1, 9, 90, dtype=torch.float64)[:, None]}}
    download = {"model": {"w": torch.zeros(1, 50, dtype=torch.float64)}}
    mechanism = Mechanism(Privacy(math.inf, 1e-5, 0.1, quantile=0.25), 0.0, 90.0)
    state = mechanism.state()
    for round in range(200):
        _, state = mechanism.mean(state, round, download, upload, ())
    assert float(state[STATE]["clip"]) == pytest.approx(3.0, abs=0.15)


def test_adapting_the_norm_costs_noise():
    plain = federation(FedAvg(), Privacy(8.0, 1e-3, 1.0), sizes=(20,) * 40)
    adapted = federation(FedAvg(), Privacy(8.0, 1e-3, 1.0, quantile=0.5), sizes=(20,) * 40)
    z, own = plain.server_side.mechanism, adapted.server_side.mechanism
    assert own.multiplier == z.multiplier
    bits = 2 * own.expected / 20
    assert own._of_updates**-2 + bits**-2 == pytest.approx(z.multiplier**-2)
    before = float(adapted.server[STATE]["clip"])
    adapted.step()
    assert float(adapted.server[STATE]["clip"]) != before
    with pytest.raises(InputError, match="too large for 4 participants"):
        federation(FedAvg(), Privacy(0.5, 1e-3, 1.0, quantile=0.5))


def test_poisson_cohorts_have_all_sizes_and_an_empty_one_gets_noise():
    made = federation(FedAvg(), Privacy(8.0, 1e-3, 1.0), participation=0.25, rounds=40)
    sizes = [len(made._cohort(number)) for number in range(1, 400)]
    assert abs(np.mean(sizes) - 1.0) < 4 * math.sqrt(0.75 / 400)
    assert {0, 1, 2, 3} <= set(sizes)
    made.round = sizes.index(0)
    before = made.server["model"]["1.weight"].clone()
    pause = made.step()
    assert len(pause.cohort) == 0
    assert not pause.info
    moved = made.server["model"]["1.weight"] - before
    normal_test(moved, made.server_side.mechanism.multiplier)  # z C / m with m = 1


# Per-sample gradients


def test_private_gradients_are_those_of_an_explicit_loop():
    """Clipped by sample, added up, divided by the expected size of a batch; without noise."""
    data, module = small_data((12, 30)), plain_net()
    engine = Engine(module, data, Settings(1, 6, 0.1, private=SamplePrivacy(0.5, (0.0, 0.0))), dtype=torch.float64)
    trainer = Trainer(engine, torch.arange(2), 1)
    start = {name: value.detach().double().expand(2, *value.shape) for name, value in module.named_parameters()}
    found, _ = trainer.sgd(start, {"buffers": {}}, steps=1)
    batches, width, expected = Trainer(engine, torch.arange(2), 1)._orders.poisson(
        "train", "train/train/1", torch.ones(2).long(), 6
    )
    assert expected.tolist() == [6, 6]
    for client in range(2):
        samples = [number for number in batches[0].order[client, :width].tolist() if number >= 0]
        total = [torch.zeros_like(value) for value in module.parameters()]
        for number in samples:
            batch = data.batch(torch.tensor([number]), torch.float64)
            module.double().zero_grad()
            nn.functional.cross_entropy(module(batch.x), batch.y).backward()
            gradient = [value.grad for value in module.parameters()]
            norm = math.sqrt(sum(float((own**2).sum()) for own in gradient))
            assert norm > 0.5  # every one is clipped
            total = [one + own * 0.5 / norm for one, own in zip(total, gradient, strict=True)]
        for (name, value), own in zip(start.items(), total, strict=True):
            torch.testing.assert_close(found[name][client], value[client] - 0.1 * own / 6, rtol=0, atol=1e-11)


def test_every_sample_is_in_a_poisson_batch_by_itself_with_the_same_chance():
    engine = Engine(plain_net(), small_data((40, 8)), Settings(1, 10, 0.1))
    trainer = Trainer(engine, torch.arange(2), 1)
    (epoch,), width, expected = trainer._orders.poisson("train", "x", torch.tensor([500, 300]), 10)
    assert expected.tolist() == [10, 8]  # all of them, where a batch is larger than the client's data
    steps = epoch.order[0].reshape(500, width)
    sizes = (steps >= 0).sum(1).double()
    assert abs(float(sizes.mean()) - 10) < 4 * math.sqrt(7.5 / 500)
    assert abs(float(sizes.var()) - 7.5) < 2
    often = torch.bincount(steps[steps >= 0], minlength=40)[:40].double() / 500
    assert float((often - 0.25).abs().max()) < 4.5 * math.sqrt(0.25 * 0.75 / 500)
    assert (epoch.order[1, : 300 * width].reshape(300, width) >= 0).sum(1).eq(8).all()
    assert epoch.sizes.tolist() == [500 * width, 300 * width]


def test_noise_of_a_private_step_has_the_planned_size():
    engine = Engine(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 200)), small_data((40,)),
        Settings(1, 10, 0.1, private=SamplePrivacy(0.3, (2.5,))), dtype=torch.float64,
    )  # fmt: skip
    start = {name: value.double()[None] for name, value in engine.initial()[0].items()}
    found, _ = Trainer(engine, torch.arange(1), 1).sgd(start, {"buffers": {}}, steps=1)
    engine.settings = Settings(1, 10, 0.1, private=SamplePrivacy(0.3, (0.0,)))
    silent, _ = Trainer(engine, torch.arange(1), 1).sgd(start, {"buffers": {}}, steps=1)
    noise = (found["1.weight"] - silent["1.weight"]) / 0.1
    normal_test(noise, 2.5 * 0.3 / 10)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "network"),
    [
        (FedDWA(), SGD(), conv),
        pytest.param(FedAvg(), Adam(), plain_net, marks=pytest.mark.slow),
        pytest.param(FedDWAPlus(), SGD(0.9), conv, marks=pytest.mark.slow),
    ],
)
def test_both_backends_train_privately_alike(algorithm, optimizer, network):
    runs = [
        after(federation(algorithm, SAMPLE, network, optimizer, sequential=sequential, participation=0.75), 2)
        for sequential in (False, True)
    ]
    assert difference(*runs) < 1e-9


def test_chunks_do_not_change_private_training():
    assert difference(*(after(federation(FedDWA(), SAMPLE, chunk=chunk), 2) for chunk in (1, 4))) < 1e-9


# Infinity, coverage, whole runs


@pytest.mark.parametrize("unit", ["client", "local", "sample"])
def test_an_infinite_budget_is_no_privacy_bit_for_bit(unit):
    plain = federation(FedDWA(), Privacy())
    infinite = federation(FedDWA(), read(f"epsilon=inf,unit={unit}"))
    assert infinite.plan is None
    assert equal(after(plain, 2), after(infinite, 2))


def test_local_clipping_that_hits_nobody_changes_no_bit():
    """Weights are uniform with it, so clients are of one size."""
    sizes = (20,) * 4
    plain, wide = (federation(FedAvg(), own, sizes=sizes) for own in (Privacy(), Privacy(math.inf, 1e-5, 1e6, "local")))
    assert equal(after(plain, 2), after(wide, 2))


@pytest.mark.parametrize(
    ("algorithm", "privacy", "why"),
    [
        (FedDWA(), CLIENT, "uses more of the updates than their mean"),
        (FedDWAPlus(), LOCAL, "'cosine', which is no update"),
        (FedNova(), CLIENT, "'steps', which is no update"),
        (SFL(), LOCAL, "needs every client's label counts"),
        (IFCA(), SAMPLE, "measures losses"),
        (PFedMe(), SAMPLE, "differentiates a batch more than once"),
        (FedAvgFT(), SAMPLE, "continues before its models are used"),
        (ALGORITHMS["fedrod"](), SAMPLE, "withholds label counts"),
        (ALGORITHMS["fedala"](), SAMPLE, "uses a part of each client's samples"),
        (ALGORITHMS["feddbe"](), SAMPLE, "uses more of its samples than a gradient"),
    ],
)
def test_what_is_not_covered_is_refused_before_the_run(algorithm, privacy, why):
    with pytest.raises(InputError, match=why):
        federation(algorithm, privacy)


def test_private_servers_see_neither_sizes_nor_single_updates():
    seen = []

    class Watching(FedAvg):
        def server(self, server, cohort, upload):
            seen.append((cohort.sizes.tolist(), [len(value) for _, value in tensors(upload)]))
            return super().server(server, cohort, upload)

    made = federation(Watching(), CLIENT)
    seen.clear()
    info = made.step().info
    assert seen == [([1], [1, 1, 1, 1])]
    assert info["weights"].shape == (4, 4)
    made = federation(Watching(), LOCAL)
    seen.clear()
    made.step()
    assert seen[0][0] == [1, 1, 1, 1]


def test_local_training_alone_spends_nothing():
    made = federation(Local(), CLIENT)
    assert equal(after(made, 2), after(federation(Local(), Privacy()), 2))
    assert made.plan.spent(2)["epsilon"] == 0.0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("delta=1e-5", "needs epsilon"), ("epsilon=0,clip=1", "above 0"), ("epsilon=1", "dp clip"),
        ("epsilon=1,clip=1,unit=server", "one of client, local, sample"), ("epsilon=1,clip=1,z=2", "one of epsilon"),
        ("epsilon=1,clip=1,clip=2", "given once"), ("epsilon=1,clip=1,delta=1", "below 1"), ("epsilon", "KEY=VALUE"),
        ("epsilon=1,clip=1,unit=local,quantile=0.5", "left out under unit=local"),
        ("epsilon=1,clip=1,sampling=fixed,accountant=pld", "Poisson cohorts alone"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(given, why):
    with pytest.raises(InputError, match=why):
        feddwa.RunConfig(dp=given).checked()


@pytest.mark.parametrize(
    ("options", "why"),
    [({"lr": "auto"}, "--lr"), ({"defence": "median"}, "under --defence"), ({"batchnorm": "mean"}, "statistics")],
)
def test_options_that_go_round_the_mechanism_are_refused(options, why):
    with pytest.raises(InputError, match=why):
        feddwa.RunConfig(dp="epsilon=1,clip=1", **options).checked()


def test_a_run_states_what_it_has_spent_and_resumes_to_the_same(tmp_path):
    """Poisson cohorts and an adaptive norm: the norm is part of the checkpoint."""
    options = {
        "clients": 12,
        "algorithm": "fedavg",
        "participation": 0.5,
        "dp": "epsilon=40,delta=1e-3,clip=1,quantile=0.5",
    }
    whole = feddwa.run(rounds=4, out=str(tmp_path / "whole"), **options)
    told = whole.summary["privacy"]
    assert told["epsilon"] <= told["budget"] == 40

    class Stop(feddwa.Callback):
        def on_round(self, run, round):
            if round.line["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(rounds=4, out=str(tmp_path / "cut"), callbacks=[Stop()], **options)
    resumed = feddwa.resume(tmp_path / "cut")
    assert resumed.summary["privacy"] == told
    assert all(torch.equal(resumed.models[name], value) for name, value in whole.models.items())


def test_seeds_in_lockstep_are_the_runs_that_they_are_alone(tmp_path):
    options = {
        "clients": 4,
        "rounds": 2,
        "dtype": "float64",
        "dp": "epsilon=8,delta=1e-3,clip=1,unit=sample",
        "out": False,
    }
    together = feddwa.run(seeds=[0, 1], **options)
    alone = feddwa.run(seed=1, **options)
    for name, value in alone.models.items():
        torch.testing.assert_close(together[1].models[name], value, rtol=0, atol=1e-9)
    assert together[1].summary["privacy"] == alone.summary["privacy"]


@pytest.mark.parametrize(
    ("name", "why"), [("sfl", "label counts"), ("fedpac", "'moments'"), ("fednova", "'steps'"), ("fedavg", "")]
)
def test_statistics_are_withheld_or_the_method_is_refused(name, why):
    algorithm = ALGORITHMS[name]()
    if why:
        with pytest.raises(InputError, match=why):
            federation(algorithm, Privacy(), discloses=False)
        return
    told, weights = (federation(algorithm, Privacy(), discloses=own).step().info["weights"][0] for own in (True, False))
    assert told.tolist() == pytest.approx([size / sum(SIZES) for size in SIZES])
    assert weights.tolist() == [0.25] * 4


def test_areas_under_curves_are_those_of_scikit_learn():
    from sklearn.metrics import roc_auc_score, roc_curve

    rng = np.random.default_rng(0)
    members, others = rng.normal(0.7, 1, 300).round(1), rng.normal(0, 1, 200).round(1)
    labels, values = np.repeat([1, 0], [300, 200]), np.concatenate([members, others])
    assert audit.area(members, others) == pytest.approx(roc_auc_score(labels, values))
    false, true, _ = roc_curve(labels, values, drop_intermediate=False)
    assert audit.rate_at(members, others, 0.1) == pytest.approx(true[false <= 0.1].max())


def test_an_audit_finds_what_a_run_tells_and_noise_hides(tmp_path, capsys):
    """Label counts stand in the first update of an open run, and not in one with local noise."""
    found = {}
    for name, dp in (("open", ""), ("noised", "epsilon=8,clip=0.5,unit=local")):
        options = {"algorithm": "fedavg", "partition": "dirichlet", "clients": 6, "rounds": 1, "dp": dp}
        feddwa.run(out=str(tmp_path / name), **options)
        assert cli.main(["audit", "privacy", str(tmp_path / name)]) == 0
        told = capsys.readouterr().out
        assert "membership, loss" in told
        assert "membership, reference" in told
        found[name] = float(told.split("correlation ")[1].split()[0])
    assert found["open"] > 0.9
    assert abs(found["noised"]) < 0.5


def test_workers_who_know_no_noise_are_not_asked():
    config = feddwa.RunConfig(dp="epsilon=8,clip=1,unit=sample").resolved()
    token = CURRENT.set(object())
    try:
        with pytest.raises(InputError, match="without --workers"):
            federation_of(config, None, None)
    finally:
        CURRENT.reset(token)
