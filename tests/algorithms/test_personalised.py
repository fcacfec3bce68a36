"""Methods with a model for each: ClusterFL, FedRoD, FedAMP, FedFomo, L2C, and what FedDWA leaves untouched."""

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import nn

from feddwa.algorithms import L2C, SFL, ClusterFL, FedAMP, FedAvg, FedDWA, FedFomo, FedRoD, Local, Problem
from feddwa.algorithms.clusterfl import tolerance
from feddwa.algorithms.fedrod import TwoHeadStep, two_losses
from feddwa.algorithms.l2c import logit_gradient, omega
from feddwa.algorithms.linkage import bipartition, split
from feddwa.data.federated import Batch
from feddwa.engine import Cohort
from feddwa.engine.network import FunctionalClient, head_name, without_aux
from feddwa.engine.rows import repeat
from feddwa.errors import InputError
from feddwa.mixing import pairwise_cosines
from tests.algorithms.conftest import after, difference, equal, federation, models
from tests.conftest import conv_net, map_state, plain_net, small_data

EQUAL = (20, 20, 20, 20)


def problem(clients, size=4, seed=0):
    return Problem({"v": torch.zeros(size, dtype=torch.float64)}, clients, torch.full((clients,), 10), seed=seed)


def everybody(clients, round=1):
    return Cohort(torch.arange(clients), torch.full((clients,), 10), round, clients)


# FedDWA


def test_one_partner_is_local_training_but_for_ties():
    """A client's own model is the nearest to where it is going; of equal models the smallest number's is kept."""
    alone = federation(FedDWA(top_k=1))
    assert difference(after(alone, 3), after(federation(Local()), 3)) < 1e-12
    tied = federation(FedDWA(top_k=1), lr=0.0)  # all models stay equal
    weights = tied.step().info["weights"]
    assert weights[:, 0].tolist() == [1.0] * len(weights)


def test_the_look_ahead_leaves_model_and_statistics_as_they_are():
    """With the same keys, a round with and without guidance gives the same local models and BatchNorm statistics."""
    ahead, current = (federation(FedDWA(guidance=g), conv_net) for g in ("ahead", "current"))
    results = [run.step() for run in (ahead, current)]
    assert torch.equal(results[0].after.loss, results[1].after.loss)
    assert equal(ahead.memory, current.memory)


# ClusterFL


def test_without_splits_it_is_fedavg_over_equal_sizes():
    data = small_data(EQUAL)
    runs = [federation(algorithm, data=data) for algorithm in (ClusterFL(eps1=0.0, warmup=0), FedAvg())]
    assert difference(after(runs[0], 3), after(runs[1], 3)) < 1e-12


def test_children_of_children_keep_global_ids():
    """Eight clients in four groups: 0, 3 | 1, 6 | 2, 5 | 4, 7. The second split happens inside a child, whose positions
    are not its ids: the notebook would move the wrong clients there."""
    directions = torch.zeros(8, 4, dtype=torch.float64)
    for group, members in enumerate([(0, 3), (1, 6), (2, 5), (4, 7)]):
        directions[list(members), group] = 1.0
    directions[[0, 3, 1, 6]] += torch.tensor([0.5, 0.5, 0.0, 0.0])  # so that the first split is {0, 3, 1, 6} against
    directions[[2, 5, 4, 7]] += torch.tensor([0.0, 0.0, 0.5, 0.5])  # {2, 5, 4, 7}
    algorithm = ClusterFL(eps1=100.0, eps2=0.0, warmup=0)
    server, _ = algorithm.setup(problem(8))
    expected = [{(0, 1, 3, 6), (2, 4, 5, 7)}, {(0, 3), (1, 6), (2, 5), (4, 7)}, {(0, 3), (1, 6), (2, 5), (4, 7)}]
    for round, groups in enumerate(expected, 1):
        start = algorithm.download(server, everybody(8))["model"]["v"]
        server, info = algorithm.server(server, everybody(8, round), {"model": {"v": start + directions}})
        of = server["clusters"]["of"]
        assert {tuple((of == c).nonzero().flatten().tolist()) for c in of.unique()} == groups
        assert torch.equal(info["weights"] > 0, of.unsqueeze(1) == of)
    for c in of.unique():  # every cluster followed its own members alone, the first round before the second split
        members = (of == c).nonzero().flatten()
        assert (server["model"]["v"][members] == server["model"]["v"][members[0]]).all()


@pytest.mark.parametrize("seed", range(5))
def test_clusters_always_partition_the_clients(seed):
    """Random updates, random cohorts, ten rounds with every split allowed."""
    rng = np.random.default_rng(seed)
    algorithm = ClusterFL(eps1=100.0, eps2=0.0, warmup=2)
    server, _ = algorithm.setup(problem(9))
    parents = server["clusters"]["of"]
    for round in range(1, 11):
        ids = torch.from_numpy(np.sort(rng.choice(9, 5, replace=False)))
        cohort = Cohort(ids, torch.ones(5), round, 9)
        start = algorithm.download(server, cohort)["model"]["v"]
        upload = {"model": {"v": start + torch.from_numpy(rng.normal(size=(5, 4)))}}
        server, info = algorithm.server(server, cohort, upload)
        of = server["clusters"]["of"]
        torch.testing.assert_close(info["weights"].sum(1), torch.ones(5).double())
        assert of.unique().tolist() == list(range(int(of.max()) + 1))
        for c in of.unique():  # a cluster never mixes what was parted before
            assert len(parents[of == c].unique()) == 1
            assert (server["model"]["v"][of == c] == server["model"]["v"][of == c][0]).all()
        assert round > 2 or of.max() == 0
        parents = of
    assert parents.max() > 0


def test_clients_never_seen_follow_the_larger_child():
    of = torch.tensor([0, 0, 0, 0, 0, 1])
    assert split(of, 0, torch.tensor([1]), torch.tensor([0, 2])).tolist() == [0, 2, 0, 0, 0, 1]
    assert split(of, 0, torch.tensor([1, 2]), torch.tensor([0])).tolist() == [0, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("seed", range(5))
def test_complete_linkage_is_scikit_learns(seed):
    updates = torch.from_numpy(np.random.default_rng(seed).normal(size=(11, 3)))
    similarity = pairwise_cosines(updates @ updates.T)
    theirs = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit(-similarity.numpy()).labels_
    assert bipartition(similarity).tolist() == (theirs != theirs[0]).tolist()


def numbers(run, rounds):
    infos = [run.step().info for _ in range(rounds)]
    return [{name: float(value) for name, value in info.items() if value.ndim == 0} for info in infos]


def test_tolerances_that_never_let_it_split_are_told():
    """And the value that does, measured by the rule in the run itself."""
    algorithm = ClusterFL(eps1=9.0, warmup=2)
    measured = numbers(federation(algorithm, data=small_data(EQUAL)), 12)
    (text,) = algorithm.warnings(measured, 12)
    longest = max(each["largest_norm"] for each in measured[2:])
    eps2 = tolerance([each["largest_norm"] for each in measured], 2)
    assert f"no update was longer than {longest:.2g} and eps2=1.6: nothing splits and ClusterFL is FedAvg" in text
    assert f"take as eps2 {eps2}, which our rule gives" in text
    assert eps2 == pytest.approx(0.8 * np.median([each["largest_norm"] for each in measured[2:]]), abs=0.005)
    fitting = ClusterFL(eps1=9.0, eps2=eps2, warmup=2)
    split_up = numbers(federation(fitting, data=small_data(EQUAL)), 12)
    assert split_up[-1]["cluster_count"] > 1
    assert list(fitting.warnings(split_up, 12)) == []
    (text,) = ClusterFL(eps1=1e-9, eps2=eps2, warmup=2).warnings(measured, 12)
    assert "the mean update was never shorter than" in text
    (text,) = algorithm.warnings(measured[:2], 12)
    assert "in 2 rounds and eps2=1.6: if that stays so" in text
    (text,) = algorithm.warnings(measured[:2], 2)
    assert "warmup=2 and 2 rounds: nothing splits" in text
    assert list(algorithm.warnings([], 12)) == []


def test_the_rule_for_the_tolerance():
    assert tolerance([9.0] * 20 + [1.0] * 9 + [5.0] + [7.0] * 9, 20) == 0.8  # ten rounds after the warm-up, the median
    assert tolerance([0.0123] * 10, 0) == 0.0098  # two digits, however short updates are
    assert tolerance([1.0] * 9, 0) is None
    assert tolerance([0.0] * 10, 0) is None


def test_an_update_of_zero_is_orthogonal_to_all():
    updates = torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double()
    assert torch.equal(pairwise_cosines(updates @ updates.T)[0], torch.zeros(2).double())


# FedRoD


def heads(counts):
    """A network, a personalised head beside it, and the class frequencies of a client."""
    module = plain_net().double()
    params = {name: value.detach() for name, value in module.named_parameters()}
    own = {name: value + 0.1 for name, value in params.items() if name.startswith(head_name(module))}
    prior = {"log": torch.log(torch.tensor(counts).double() / sum(counts))}
    return module, params, own, prior


def gradients(client, params, own, batch, prior):
    """Of the shared model and of the personalised head."""
    state = {"model": params, "head": own}
    found, _ = TwoHeadStep(0.1).gradients(client, state, batch, without_aux(two_losses), prior=prior)
    return found["model"], found["head"]


def test_absent_classes_get_no_gradient_and_a_finite_loss():
    module, params, own, prior = heads([3, 0, 5, 0, 0, 0, 0, 0, 0, 1])
    batch = Batch(torch.randn(4, 64).double(), torch.tensor([0, 2, 9, 2]))
    client = FunctionalClient(module, nn.functional.cross_entropy, {}, torch.tensor(0))
    gradient, of_own = gradients(client, params, own, batch, prior)
    absent = [1, 3, 4, 5, 6, 7, 8]
    assert all(value.isfinite().all() for value in gradient.values())
    assert not gradient["3.weight"][absent].any()
    assert not gradient["3.bias"][absent].any()
    assert gradient["3.weight"][[0, 2, 9]].any(1).all()
    assert of_own["3.weight"].any(1).all()  # the personalised head learns to avoid absent classes


def test_a_client_with_one_class_leaves_the_shared_model_alone():
    module, params, own, prior = heads([0, 8, 0, 0, 0, 0, 0, 0, 0, 0])
    batch = Batch(torch.randn(4, 64).double(), torch.full((4,), 1))
    client = FunctionalClient(module, nn.functional.cross_entropy, {}, torch.tensor(0))
    gradient, of_own = gradients(client, params, own, batch, prior)
    assert not any(value.any() for value in gradient.values())
    assert all(value.any() for value in of_own.values())


def test_the_personalised_head_reaches_neither_the_body_nor_the_server():
    """The shared model moves by the balanced loss alone, whatever the personalised heads are."""
    runs = [federation(FedRoD()) for _ in range(2)]
    runs[1].memory = {**runs[1].memory, "head": map_state(lambda v: v + 1, {"head": runs[1].memory["head"]})["head"]}
    download = runs[0].algorithm.download(runs[0].server, runs[0].all_clients())
    assert set(download) == {"model"}
    results = [run.step() for run in runs]
    assert equal(runs[0].server, runs[1].server)
    assert (
        results[0].costs.bytes_up
        == results[0].costs.bytes_down
        == 8 * sum(v.numel() for v in runs[0].server["model"].values())
    )
    assert not torch.equal(results[0].after.loss, results[1].after.loss)


def test_two_heads_are_evaluated_as_their_sum():
    run = federation(FedRoD())
    run.step()
    x = torch.randn(5, 64).double()
    shared, own, both = run.server["model"], run.memory["head"], models(run)["model"]
    features = torch.relu(x @ shared["1.weight"].T + shared["1.bias"])
    client = 3
    by_hand = features @ shared["3.weight"].T + shared["3.bias"]
    by_hand = by_hand + features @ own["3.weight"][client].T + own["3.bias"][client]
    together = features @ both["3.weight"][client].T + both["3.bias"][client]
    torch.testing.assert_close(together, by_hand)


def test_what_a_method_needs_is_told():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 10)

        def forward(self, x):
            return 2 * self.first(x.flatten(1))

    with pytest.raises(InputError, match="last linear layer"):
        federation(FedRoD(), Odd).step()
    for kind in (FedRoD, SFL):
        with pytest.raises(InputError, match="class labels"):
            kind().setup(problem(3))


# FedAMP


def test_identical_models_and_distant_models_get_themselves():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, dtype=torch.float64, generator=generator)
    algorithm, everyone = FedAMP(), torch.arange(4)
    alike = repeat({"v": base}, 4)
    xi = algorithm.attention(alike, everyone)
    torch.testing.assert_close(xi.diagonal(), torch.full((4,), -2.0).double())  # 1 - (N - 1) alpha / sigma
    torch.testing.assert_close(xi @ alike["v"], alike["v"], rtol=1e-12, atol=1e-12)
    apart = {"v": 100.0 * torch.eye(4, dtype=torch.float64)}
    assert torch.equal(algorithm.attention(apart, everyone), torch.eye(4).double())


def test_attention_by_hand_is_paid_to_neighbours_alone():
    models_ = {"v": torch.tensor([[0.0], [1.0], [2.0]]).double()}
    xi = FedAMP(alpha=0.5, sigma=2.0).attention(models_, torch.tensor([0, 1]))
    near = 0.25 * np.exp(-0.5)
    expected = [[1 - near, near, 0], [near, 1 - near, 0], [0.25 * np.exp(-2), near, 1 - near - 0.25 * np.exp(-2)]]
    torch.testing.assert_close(xi, torch.tensor(expected).double())


def test_the_self_part_is_the_model_not_the_old_message():
    """The library's version of 2022 put the old u_i there. Round 2's message, from round 2's uploads, by hand."""
    algorithm = FedAMP(sigma=4.0)
    server, _ = algorithm.setup(problem(3, 2))
    for round, uploads in enumerate([[[1.0, 0], [0, 1], [1, 1]], [[2.0, 0], [0, 2], [2, 1]]], 1):
        upload = torch.tensor(uploads).double()
        server, _ = algorithm.server(server, everybody(3, round), {"model": {"v": upload}})
    xi = algorithm.attention({"v": upload}, torch.arange(3))
    torch.testing.assert_close(server["message"]["v"], xi @ upload)


def test_under_partial_participation_the_last_cohorts_uploads_are_mixed():
    """Clients 0 and 1 take part, then 1 and 2: the second message has no share of client 0, unless it is its own."""
    rounds = [([0, 1], [[1.0, 0], [0, 1]]), ([1, 2], [[0.0, 2], [1, 1]])]
    last = torch.tensor([[1.0, 0], [0, 2], [1, 1], [0, 0]]).double()  # everybody's last upload; client 3 never had one
    for neighbours, sources in (("cohort", [1, 2]), ("everyone", [0, 1, 2])):
        algorithm = FedAMP(sigma=4.0, neighbours=neighbours)
        server, _ = algorithm.setup(problem(4, 2))
        for round, (ids, uploads) in enumerate(rounds, 1):
            cohort = Cohort(torch.tensor(ids), torch.full((2,), 10), round, 4)
            server, info = algorithm.server(server, cohort, {"model": {"v": torch.tensor(uploads).double()}})
        for i, message in enumerate(server["message"]["v"]):
            shares = {j: np.exp(-float((last[i] - last[j]).square().sum()) / 4) / 4 for j in sources if j != i}
            own = (1 - sum(shares.values())) * last[i]
            torch.testing.assert_close(message, own + sum(share * last[j] for j, share in shares.items()))
        complete = torch.allclose(info["weights"].sum(1), torch.ones(2).double())
        assert complete == (neighbours == "cohort")  # P of the cohort lacks nobody


def test_negative_self_weights_are_told_with_a_sigma_that_has_none():
    algorithm = FedAMP(alpha=2.0)
    measured = numbers(federation(algorithm, data=small_data(EQUAL)), 3)
    (text,) = algorithm.warnings(measured, 3)
    assert "a client's own weight is negative in 3 of 3 rounds" in text
    assert f"{min(each['self_weight'] for each in measured):.3g} in the mean at worst" in text
    assert "from --param sigma=6 on it cannot be" in text  # three neighbours times alpha
    wide = FedAMP(alpha=2.0, sigma=6.0)
    assert list(wide.warnings(numbers(federation(wide, data=small_data(EQUAL)), 3), 3)) == []
    assert list(algorithm.warnings([], 3)) == []


def test_without_a_pull_fedamp_is_local_training():
    assert difference(after(federation(FedAMP(lam=0.0)), 3), after(federation(Local()), 3)) < 1e-12
    assert difference(after(federation(FedAMP()), 3), after(federation(Local()), 3)) > 1e-4


# FedFomo


def test_shares_are_convex_and_models_worse_than_the_base_get_nothing():
    raw = torch.tensor([[0.25, -0.1, 0.75], [-0.3, -0.2, -0.1], [0.0, 0.0, 0.0]]).double()
    own, base = FedFomo().weights(raw), FedFomo(fallback="base").weights(raw)
    assert own.tolist() == [[0.25, 0, 0.75, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    assert base.tolist() == [[0.25, 0, 0.75, 0], [0, 0, 0, 1], [0, 0, 0, 1]]


def test_affinity_changes_for_the_models_fetched_and_no_others():
    run = federation(FedFomo(models=2), participation=0.5)
    run.step()
    for _ in range(3):
        old, cohort = run.server["record"]["affinity"], run._cohort(run.round + 1)
        fetched = run.server["record"]["uploaded"][run.algorithm.choose(run.server, cohort)]
        run.step()
        changed = (run.server["record"]["affinity"] != old).nonzero().tolist()
        sent = {(int(i), int(n)) for i, row in zip(cohort.ids, fetched, strict=True) for n in row}
        assert changed
        assert {tuple(pair) for pair in changed} <= sent


def fomo_server(algorithm, uploaded, clients=8):
    server, _ = algorithm.setup(problem(clients, seed=5))
    record = {**server["record"], "uploaded": torch.tensor(uploaded)}
    return {"models": {"v": torch.arange(len(uploaded)).double().unsqueeze(1)}, "record": record}


def test_ties_are_drawn_so_that_not_everybody_fetches_the_lowest_ids():
    algorithm = FedFomo(models=3, epsilon=0.0)
    server = fomo_server(algorithm, list(range(8)))
    fetched = torch.cat([algorithm.choose(server, everybody(8, round)) for round in range(2, 32)])
    counts = torch.bincount(fetched.flatten(), minlength=8)
    assert counts.min() > 0.6 * counts.max()
    for row, picks in enumerate(fetched.tolist()):
        assert len(set(picks)) == 3
        assert row % 8 not in picks


def test_greedy_by_affinity_unless_exploring():
    greedy, curious = FedFomo(models=2, epsilon=0.0), FedFomo(models=2, epsilon=1.0, decay=0.0)
    server = fomo_server(greedy, [0, 2, 3, 6, 7])
    server["record"]["affinity"][:] = torch.tensor([0.0, 9.0, 1.0, 4.0, 0.0, 9.0, 3.0, -1.0])
    cohort = everybody(8, 2)
    ids = server["record"]["uploaded"][greedy.choose(server, cohort)].tolist()
    assert ids == [[3, 6], [3, 6], [3, 6], [6, 2], [3, 6], [3, 6], [3, 2], [3, 6]]
    drawn = torch.cat([curious.choose(server, everybody(8, round)) for round in range(2, 42)])
    assert torch.bincount(drawn.flatten()).min() > 90  # 640 draws over five uploads
    assert (
        FedFomo(models=2, epsilon=0.3, decay=0.05).choose(server, everybody(8, 7)).tolist()
        == greedy.choose(server, everybody(8, 7)).tolist()
    )  # 0.3 - 6 * 0.05 = 0


def test_a_clients_draws_do_not_depend_on_the_cohort():
    algorithm = FedFomo(models=3)
    server = fomo_server(algorithm, [1, 3, 4, 5, 7])
    alone = [algorithm.choose(server, Cohort(torch.tensor([i]), torch.ones(1), 3, 8))[0].tolist() for i in range(8)]
    assert algorithm.choose(server, everybody(8, 3)).tolist() == alone


def test_fewer_uploads_than_models_and_none_at_first():
    algorithm = FedFomo()
    server, _ = algorithm.setup(problem(8))
    assert algorithm.download(server, everybody(8)) == {}
    assert algorithm.choose(fomo_server(algorithm, [0, 4, 5]), everybody(8, 2)).shape == (8, 2)


def test_at_a_rate_of_zero_all_models_are_equal_and_nothing_breaks():
    run = federation(FedFomo(), lr=0.0)
    start = map_state(torch.clone, models(run))
    assert equal(after(run, 2), start)
    assert not run.server["record"]["affinity"].any()


def test_a_client_too_small_to_validate_keeps_its_own_model():
    """One training sample leaves none to validate."""
    run = federation(FedFomo(models=2), data=small_data((1, 20, 20)))
    run.step()
    own, mixed = run.memory["model"], models(run)["model"]
    assert all(torch.equal(mixed[name][0], own[name][0]) for name in own)
    run.step()
    assert run.server["record"]["affinity"].isfinite().all()


@pytest.mark.parametrize("algorithm", [FedFomo(), L2C(), ClusterFL(1e3, 0.0, 0), FedAMP(), FedRoD()])
@pytest.mark.parametrize("sizes", [(20,), (1, 1, 1)])
def test_federations_of_one_client_or_of_one_sample_each(algorithm, sizes):
    end = after(federation(algorithm, data=small_data(sizes)), 3)
    assert all(value.isfinite().all() for value in end["model"].values())


# L2C


def test_frozen_uniform_weights_make_the_first_round_fedavg():
    """Update sharing from a common start: everybody gets the plain mean. Later starts differ, and so do the methods."""
    data = small_data((25, 25, 25, 25))
    frozen = federation(L2C(mixing_lr=0.0), data=data)
    kept = frozen.engine.data
    fedavg = federation(FedAvg(), data=kept)
    assert difference(after(frozen, 1), after(fedavg, 1)) < 1e-12
    learning = federation(L2C(), data=data)
    assert difference(after(learning, 1), after(fedavg, 1)) > 1e-6


def test_the_gradient_of_the_logits_is_autograds_and_sums_to_zero():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    start, updates, x, y = draw(30), draw(7, 30), draw(8, 10), torch.arange(8) % 3
    heard = torch.tensor([[True, True, False, True, True, False, True]])
    logits = draw(1, 7).requires_grad_()

    def loss(theta):
        return nn.functional.cross_entropy(x @ theta.reshape(10, 3), y)

    mixed = start - (omega(logits, heard) @ updates)[0]
    loss(mixed).backward()
    theta = mixed.detach().requires_grad_()
    loss(theta).backward()
    slopes = -(updates @ theta.grad).unsqueeze(0) * heard
    ours = logit_gradient(omega(logits.detach(), heard), slopes)
    torch.testing.assert_close(ours, logits.grad)
    assert ours.sum().abs() < 1e-15
    assert not ours[~heard].any()


def test_a_round_learns_what_autograd_and_adam_learn():
    """One client's logits after the first exchange, by torch's own Adam through the mixed model."""
    run = federation(L2C(mixing_steps=3, decay=0.01))
    run.step()
    client, updates = 3, run.server["updates"]
    start = {name: value[client] for name, value in run.memory["start"].items()}
    run.step()
    logits = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logits], lr=0.1, weight_decay=0.01)
    own = run.engine.data.splits["validation"]
    batch = run.engine.data.batch(own.index[client, : own.sizes[client]], torch.float64)
    for _ in range(3):
        adam.zero_grad()
        share = logits.softmax(0)
        mixed = {name: start[name] - torch.einsum("j,j...->...", share, value) for name, value in updates.items()}
        outputs = torch.func.functional_call(run.engine.module, mixed, (batch.x,))
        nn.functional.cross_entropy(outputs, batch.y).backward()
        adam.step()
    torch.testing.assert_close(run.memory["mixing"]["logits"][client], logits.detach(), rtol=1e-7, atol=1e-9)


def test_logits_of_clients_not_heard_rest():
    run = federation(L2C(), participation=0.5)
    run.step()
    for _ in range(3):
        old, senders = run.memory["mixing"], run.server["from"]["ids"].tolist()
        cohort = run._cohort(run.round + 1).ids.tolist()
        run.step()
        moved = (run.memory["mixing"]["steps"] != old["steps"]).nonzero().tolist()
        assert sorted(map(tuple, moved)) == sorted((i, j) for i in cohort for j in {*senders, i})


def test_validation_data_come_from_training_and_every_method_has_the_same_test_set():
    plain, held = federation(FedAvg()).engine.data, federation(FedFomo()).engine.data
    assert torch.equal(plain.splits["test"].index, held.splits["test"].index)
    for i, size in enumerate(plain.splits["train"].sizes.tolist()):
        parts = [held.splits[name].index[i, : held.splits[name].sizes[i]] for name in ("train", "validation")]
        assert sorted(torch.cat(parts).tolist()) == sorted(plain.splits["train"].index[i, :size].tolist())
        assert len(parts[1]) == min(max(1, round(0.2 * size)), size - 1)
