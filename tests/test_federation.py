"""The round loop: cohorts, chunks, backends, what is evaluated and what is counted."""

import itertools

import pytest
import torch

from feddwa.algorithms import FedAvg, FedDWA, Local
from feddwa.engine import Engine, Settings, Trainer
from feddwa.engine.rows import tensors
from feddwa.federation import Federation
from feddwa.mixing import dwa_weights
from tests.conftest import NETWORKS, SIZES, conv_net, plain_net, small_data

N = len(SIZES)


def federation(algorithm, network=plain_net, dtype=torch.float64, seed=0, epochs=1, lr=0.1, **options) -> Federation:
    engine = Engine(network(), small_data(), Settings(epochs, 10, lr), seed, dtype=dtype)
    return Federation(algorithm, engine, **options)


def after(federation: Federation, rounds: int):
    results = [federation.step() for _ in range(rounds)]
    models, buffers = federation.personal(federation.all_clients())
    return {"model": models, "buffers": buffers}, results


def difference(left, right) -> float:
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
        for (_, a), (_, b) in zip(tensors(left), tensors(right), strict=True)
    )


ALGORITHMS = {
    "feddwa": FedDWA(top_k=3),
    "feddwa-last": FedDWA(top_k=3, guidance="last"),
    "feddwa-current": FedDWA(top_k=3, guidance="current"),
    "feddwa-extrapolate": FedDWA(top_k=3, guidance="extrapolate"),
    "feddwa-far": FedDWA(top_k=3, guidance_epochs=3),
    "fedavg": FedAvg(),
    "local": Local(),
}


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_backends_and_chunks_agree(name, participation):
    network = conv_net if name in ("feddwa", "fedavg") else plain_net
    reference, _ = after(federation(ALGORITHMS[name], network, participation=participation), 3)
    for options in ({"sequential": True}, {"chunk": 3}):
        other, _ = after(federation(ALGORITHMS[name], network, participation=participation, **options), 3)
        assert difference(other, reference) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_same_seed_same_run_other_seed_other_run(network):
    runs = [after(federation(FedDWA(), NETWORKS[network], torch.float32, seed), 2)[0] for seed in (0, 0, 1)]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tensors(runs[0]), tensors(runs[1]), strict=True))
    assert difference(runs[2], runs[0]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_one_partner_is_local_training(network):
    """With K = 1 every client is its own nearest, and the guidance epoch must leave no trace."""
    dwa, _ = after(federation(FedDWA(top_k=1), NETWORKS[network]), 3)
    local, _ = after(federation(Local(), NETWORKS[network]), 3)
    assert difference(dwa, local) < 1e-12


def test_a_round_of_feddwa_is_the_papers():
    run = federation(FedDWA(top_k=4))
    algorithm, cohort = run.algorithm, run.all_clients()
    download = algorithm.download(run.server, cohort)
    trainer = Trainer(run.engine, cohort.ids, 1)
    local, memory = trainer.sgd(download["model"], run.memory)
    guidance, _ = trainer.sgd(local, memory, purpose="guidance")
    weights = dwa_weights(guidance, local, 4)
    expected = {name: torch.einsum("ij,j...->i...", weights, value) for name, value in local.items()}
    result = run.step()
    assert torch.allclose(result.info["weights"], weights, rtol=1e-9)
    assert difference({"model": run.server["model"]}, {"model": expected}) < 1e-9


def test_fedavg_weighs_by_data_size():
    run = federation(FedAvg())
    result = run.step()
    share = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    assert torch.allclose(result.info["weights"], share.expand(N, N))


def test_absent_clients_keep_their_model_and_memory():
    run = federation(FedDWA(), conv_net, participation=0.25)
    initial = {"model": run.server["model"], **run.memory}
    cohort = run.step().cohort.ids
    absent = torch.tensor([i for i in range(N) if i not in cohort.tolist()])
    new = {"model": run.server["model"], **run.memory}
    for (name, a), (_, b) in zip(tensors(new), tensors(initial), strict=True):
        assert torch.equal(a[absent], b[absent]), name
    assert len(cohort) == 2


def test_cohorts_are_keyed_sorted_and_fair():
    run = federation(Local(), participation=0.5)
    drawn = [run._cohort(round).ids for round in range(1, 401)]
    assert all(ids.tolist() == sorted(set(ids.tolist())) and len(ids) == 4 for ids in drawn)
    counts = torch.bincount(torch.cat(drawn), minlength=N)
    assert (counts - 200).abs().max() < 4.5 * (400 * 0.25) ** 0.5
    assert not torch.equal(drawn[0], run._cohort(2).ids) or not torch.equal(drawn[1], run._cohort(3).ids)


@pytest.mark.parametrize(("share", "size"), [(1.0, 8), (0.5, 4), (0.3, 2), (0.125, 1), (0.375, 3)])
def test_cohort_size_is_the_floor(share, size):
    assert federation(Local(), participation=share).cohort_size == size


def test_before_is_the_evaluation_of_the_round_before():
    run = federation(FedAvg())
    first = run.step()
    between = run.scores.accuracy
    assert torch.equal(run.step().before.accuracy, between)
    assert len(first.before.accuracy) == N
    assert len(first.after.accuracy) == N
    local = federation(Local())
    rounds = [local.step() for _ in range(3)]
    for earlier, later in itertools.pairwise(rounds):
        assert torch.equal(later.before.accuracy, earlier.after.accuracy)  # nothing happens between rounds of Local
    assert torch.equal(local.scores.accuracy, rounds[-1].after.accuracy)


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        (FedDWA(), 1, 2),
        (FedDWA(guidance="last"), 1, 1),
        (FedDWA(guidance="extrapolate"), 1, 1),
        (FedAvg(), 1, 1),
        (Local(), 0, 0),
    ],
)
def test_traffic_in_model_sizes(algorithm, down, up):
    run = federation(algorithm, conv_net, torch.float32)
    size = 4 * sum(value.numel() for value in run.engine.initial()[0].values())  # BatchNorm statistics do not travel
    costs = run.step().costs
    assert (costs.bytes_down, costs.bytes_up) == (down * size, up * size)


def test_guidance_doubles_the_flops():
    local, dwa = federation(Local()).step().costs, federation(FedDWA()).step().costs
    assert torch.equal(dwa.flops, 2 * local.flops)
    assert set(local.seconds) == {"train", "evaluate", "server"}


def test_guidance_epochs_follow_one_another():
    """The paper's code restarts every guidance epoch from the same point; then these would agree."""
    one, three = federation(FedDWA(top_k=N)), federation(FedDWA(top_k=N, guidance_epochs=3))
    assert not torch.allclose(one.step().info["weights"], three.step().info["weights"], rtol=1e-3)


def test_a_rate_of_zero_gives_the_limit_weights():
    weights = federation(FedDWA(), lr=0.0).step().info["weights"]
    assert torch.allclose(weights.sum(1), torch.ones(N, dtype=torch.float64))
    assert weights.isfinite().all()


def test_own_algorithm_in_one_class():
    """The extension point: a subclass, no registration, no change elsewhere."""

    class Gossip(FedDWA):
        def server(self, server, cohort, upload):
            weights = (torch.eye(len(cohort)) + torch.eye(len(cohort)).roll(1, 0)).double() / 2
            mixed = {name: torch.einsum("ij,j...->i...", weights, v.double()) for name, v in upload["model"].items()}
            return {"model": mixed}, {"weights": weights}

    models, _ = after(federation(Gossip(guidance="current")), 2)
    assert models["model"]["1.weight"].isfinite().all()
