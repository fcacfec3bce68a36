"""Methods that choose whose model, or which part of it, a client takes: pFedGraph, IFCA, FedALA."""

import dataclasses

import numpy as np
import pytest
import torch

import feddwa
from feddwa.algorithms import IFCA, FedALA, FedAvg, Local, PFedGraph
from feddwa.algorithms.ifca import permuted
from feddwa.algorithms.pfedgraph import Leaning
from feddwa.algorithms.simplex import project_to_simplex
from feddwa.data.federated import Batch
from feddwa.engine.network import FunctionalClient, descend
from feddwa.engine.rows import only
from feddwa.errors import InputError
from feddwa.sides import problem_of
from tests.algorithms.conftest import after, difference, equal, federation
from tests.conftest import conv_net, map_state, plain_net, small_data

PARTIAL = {"participation": 0.5, "dtype": torch.float32}


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_the_projection_meets_the_conditions_of_optimality(n):
    """x is nearest to u on the simplex if u - x is the same number on all positive entries, and no larger elsewhere."""
    points = torch.from_numpy(np.random.default_rng(n).normal(size=(30, n)) * 3)
    x = project_to_simplex(points)
    assert (x >= 0).all()
    torch.testing.assert_close(x.sum(1), torch.ones(30).double())
    gaps = points - x
    level = gaps.masked_fill(x == 0, -torch.inf).max(1, keepdim=True).values
    torch.testing.assert_close(gaps.where(x > 0, level), level.expand_as(gaps))
    assert (gaps <= level + 1e-12).all()
    torch.testing.assert_close(project_to_simplex(points + 5), x)
    torch.testing.assert_close(project_to_simplex(x), x)


def test_the_projection_of_large_numbers_keeps_its_digits():
    found = project_to_simplex(torch.tensor([[1e12, 1e12 - 0.5, -1e12], [5e8, 0.0, 5e8]], dtype=torch.float64))
    assert found.tolist() == [[0.75, 0.25, 0.0], [0.5, 0.0, 0.5]]


def test_the_graph_by_hand():
    """Orthogonal updates of 20 equal clients; and a group of five with cosine 0.5 inside, 0.2 to the others."""
    sizes = torch.full((20,), 10)
    apart = PFedGraph().graph(torch.eye(20).double(), sizes)
    assert apart.diagonal().tolist() == pytest.approx([1 / 20 + 0.95 / 1.6] * 20)
    groups = torch.arange(20) // 5
    cosines = torch.where(groups.unsqueeze(1) == groups, 0.5, 0.2).double().fill_diagonal_(1.0)
    found = PFedGraph().graph(cosines, sizes)[0]
    assert found[0] == pytest.approx(0.45)
    assert found[1:5].tolist() == pytest.approx([0.1375] * 4)
    assert not found[5:].any()


def test_a_cosine_above_nine_tenths_counts_as_one():
    found = PFedGraph(alpha=1e-6).graph(
        torch.tensor([[1.0, 0.91, 0.9], [0.91, 1.0, 0.0], [0.9, 0.0, 1.0]]), torch.ones(3)
    )
    torch.testing.assert_close(found[0], torch.tensor([0.5, 0.5, 0.0]).double(), rtol=0, atol=1e-6)
    assert found[2].tolist() == pytest.approx([0, 0, 1])


def test_a_large_alpha_is_fedavg_and_a_small_one_is_local():
    near, far = federation(PFedGraph(1e9, 0.0)), federation(PFedGraph(1e-9, 0.0), **PARTIAL)
    assert difference(after(near, 3), after(federation(FedAvg()), 3)) < 1e-7
    assert equal(after(far, 3), after(federation(Local(), **PARTIAL), 3))


def test_without_any_update_the_weights_are_those_of_the_sizes():
    """A rate of zero: no direction, so that a client leans to itself alone, by what its cosine of 1 is worth."""
    weights = federation(PFedGraph(), lr=0.0).step().info["weights"]
    assert weights.isfinite().all()
    torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)).double())


def test_leaning_is_towards_the_mixture():
    """Against differences of f(v) - strength cos(v, r); the official code has the other sign."""
    torch.manual_seed(1)
    module, batch = plain_net().double(), Batch(torch.randn(6, 64, dtype=torch.float64), torch.arange(6))
    params = {name: value.detach() for name, value in module.named_parameters()}
    anchor = {name: value + torch.randn_like(value) for name, value in params.items()}
    client = FunctionalClient(module, torch.nn.functional.cross_entropy, {}, torch.tensor(0))
    plain, leaning = client.gradient(params, batch), client.gradient(params, batch, Leaning(0.7), anchor=anchor)

    def cosine(step):
        v, r = (torch.cat([each[name].flatten() for name in params]) for each in (params, anchor))
        pull = torch.cat([(plain[name] - leaning[name]).flatten() for name in params])
        return torch.nn.functional.cosine_similarity(v + step * pull, r, 0), pull.norm() ** 2

    rise, length = (cosine(1e-5)[0] - cosine(-1e-5)[0]) / 2e-5, cosine(0.0)[1]
    torch.testing.assert_close(0.7 * rise, length, rtol=1e-6, atol=0)
    at_rest = client.gradient(params, batch, Leaning(0.7), anchor=params)
    assert max(float((at_rest[name] - plain[name]).abs().max()) for name in params) < 1e-12


def test_ifca_with_one_cluster_is_fedavg_bit_for_bit():
    ours, plain = federation(IFCA(clusters=1), **PARTIAL), federation(FedAvg(), **PARTIAL)
    assert equal(after(ours, 3), after(plain, 3))


def test_equal_starts_leave_everybody_in_the_first_cluster():
    run = federation(IFCA(clusters=3))
    run.server = dict.fromkeys(run.server, run.server["model-0"])
    for _ in range(2):
        assert run.step().info["cluster_count"] == 1
    told = list(run.algorithm.warnings([{"cluster_count": 1.0}] * 2, 10))
    assert "all participants chose one of 3 models" in told[0]
    assert not list(run.algorithm.warnings([{"cluster_count": 1.0}, {"cluster_count": 2.0}], 10))
    assert not list(IFCA(clusters=1).warnings([{"cluster_count": 1.0}], 10))


def test_a_cluster_that_nobody_chose_stays_and_the_others_are_means_by_size():
    run = federation(IFCA(), data=small_data((20, 30, 50)))
    start = map_state(torch.clone, run.server)
    result = run.step()
    weights, moved = result.info["weights"], [not equal({"m": run.server[p]}, {"m": start[p]}) for p in start]
    assert sum(moved) == int(result.info["cluster_count"])
    torch.testing.assert_close(weights.sum(1), torch.ones(3).double())
    sizes = torch.tensor([20.0, 30.0, 50.0]).double()
    for row in weights:
        torch.testing.assert_close(row, (row > 0) * sizes / sizes[row > 0].sum())


def test_two_groups_of_contrary_labels_find_two_clusters():
    """One group's labels are the other's, turned round: no model serves both."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 60, 4)).astype(np.float32)
    y = (x[..., 0] > 0).astype(np.int64)
    y[4:] = 1 - y[4:]
    clients = [(x[i, :40], y[i, :40], x[i, 40:], y[i, 40:]) for i in range(8)]
    options = {"dataset": clients, "out": False, "rounds": 15, "lr": 0.5, "batch_size": 10}
    made = {
        name: feddwa.run(model=torch.nn.Linear(4, 2), algorithm=algorithm, **options)
        for name, algorithm in {"ifca": IFCA(clusters=2), "fedavg": FedAvg()}.items()
    }
    last = {name: result.summary["accuracy"]["last"] for name, result in made.items()}
    assert last["ifca"] > 85
    assert last["fedavg"] < 65


def test_starts_have_the_initial_values_in_another_order():
    problem = problem_of(federation(IFCA(), conv_net).engine)
    first, second = (permuted(problem, tuple(problem.initial), number) for number in (1, 2))
    for name, value in problem.initial.items():
        assert torch.equal(first[name].flatten().sort().values, value.flatten().sort().values)
    assert not torch.equal(first["0.weight"], second["0.weight"])
    assert torch.equal(first["3.weight"], problem.initial["3.weight"])  # BatchNorm's ones
    server, _ = IFCA(fresh="head").setup(problem)
    for name, value in problem.initial.items():
        assert torch.equal(server["model-1"][name], value) == (name not in problem.head)


def test_the_models_are_judged_on_training_data_alone():
    data = small_data()
    held = data.splits["test"]
    test = torch.cat([row[:size] for row, size in zip(held.index, held.sizes, strict=True)])
    other = dataclasses.replace(data, y=data.y.index_fill(0, test, 0))
    runs = [federation(IFCA(), data=own) for own in (data, other)]
    assert equal(after(runs[0], 2), after(runs[1], 2))


def test_fedala_that_learns_nothing_is_fedavg():
    """W starts at 1 and stays there."""
    ours, plain = federation(FedALA(blend_lr=0.0), **PARTIAL), federation(FedAvg(), **PARTIAL)
    assert equal(after(ours, 4), after(plain, 4))


@pytest.mark.parametrize("head", ["last", "all"])
def test_fedala_with_weights_of_zero_keeps_its_layers_to_itself(head):
    """W = 0: blended layers never come from w, so that all of them are Local, and the head alone FedPer."""
    run, local = federation(FedALA(blend_lr=0.0, head=head)), federation(Local())
    run.memory = {**run.memory, "weights": map_state(torch.zeros_like, {"w": run.memory["weights"]})["w"]}
    found = after(run, 3)["model"]
    mine = only(found, run.memory["own"])
    assert equal({"m": mine}, {"m": run.memory["own"]})
    assert equal({"m": found}, {"m": after(local, 3)["model"]}) == (head == "all")
    for name in found.keys() - mine.keys():
        assert torch.equal(found[name][0], found[name][1])


def test_fedala_learns_within_zero_and_one_from_the_second_round_on():
    run = federation(FedALA(), data=small_data((20, 30, 50)))
    after(run, 1)
    assert all((value == 1).all() for value in run.memory["weights"].values())
    blended = after(run, 1)["model"]
    assert run.memory["rounds"]["count"].tolist() == [2, 2, 2]
    weights = torch.cat([value.flatten() for value in run.memory["weights"].values()])
    assert 0 <= weights.min() < 0.9
    assert weights.max() <= 1
    own, shared = run.memory["own"], run.server["model"]
    for name, value in blended.items():
        inside = value if name not in own else (value - own[name]) * (shared[name] - value)
        assert (inside >= -1e-9).all() if name in own else torch.equal(value, shared[name].expand_as(value))


def test_what_fedala_evaluates_is_what_training_starts_from():
    """`personal` learns the weights of the coming round, with the same draws, and keeps nothing."""
    run = federation(FedALA(), conv_net)
    after(run, 2)
    kept = map_state(torch.clone, run.memory)
    expected, _ = run.personal(run.all_clients())
    assert equal(run.memory, kept)
    still = federation(FedALA(), conv_net, epochs=0)
    still.server, still.memory, still.round = run.server, run.memory, run.round
    download = still.server_side.download(still.server, still.all_clients())
    upload, *_ = still.client_side.train(still.all_clients().ids, still.round + 1, download, still.memory)
    assert equal({"m": upload["model"]}, {"m": expected})


def test_layers_to_blend_are_asked_of_the_network():
    with pytest.raises(InputError, match="--param head: got 'nothing'"):
        federation(FedALA(head="nothing"))
    assert set(federation(FedALA(head="1")).memory["own"]) == {"1.weight", "1.bias"}


def tenth(client, state, batch):
    return {"model": descend(state["model"], client.gradient(state["model"], batch), 0.1)}


def test_samples_of_an_epoch_can_be_fewer_and_none():
    """The first ones of the epoch's order: a client without any keeps its row, on either backend."""
    runs = [federation(Local(), data=small_data((20, 30, 7)), sequential=sequential) for sequential in (False, True)]
    ends = []
    for run in runs:
        trainer = run.client_side._trainer(torch.arange(3), 1)
        state = {"model": run.memory["model"]}
        new, _ = trainer.train(tenth, state, run.memory, samples=torch.tensor([16, 0, 100]))
        whole, _ = trainer.train(tenth, state, run.memory)
        assert all(torch.equal(new["model"][name][1], value[1]) for name, value in state["model"].items())
        assert all(torch.equal(new["model"][name][2], value[2]) for name, value in whole["model"].items())
        assert trainer.flops.tolist() == pytest.approx([float(trainer.flops[2]) / 14 * count for count in (36, 30, 14)])
        ends.append(new)
    assert difference(*ends) < 1e-9
