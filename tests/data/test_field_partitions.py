"""The partitions of other libraries' benchmarks, against plain loops written from their descriptions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddwa.data.dataset import Dataset
from feddwa.data.partition import make
from feddwa.data.schemes import class_blocks, dirichlet, dirichlet_clients
from feddwa.errors import InputError
from tests.data.test_partitions import CIFAR10, CIFAR100, TINY, balanced, classes_of, histogram, sizes


def rows_of(partition):
    return np.concatenate([*partition.train, *partition.test])


# PFLlib's Dirichlet partition is ours with other numbers.


def plain_counts(sizes, shares, balance):
    """(N, C) as PFLlib divides classes one after another; FL-bench does without the balance. shares: (C, N)."""
    clients = len(shares[0])
    held, counts = [0] * clients, []
    for size, share in zip(sizes, shares, strict=True):
        kept = [p * (not balance or n < sum(sizes) / clients) for p, n in zip(share, held, strict=True)]
        cuts = [int(end * size) for end in np.cumsum(np.array(kept) / sum(kept))[:-1]]
        parts = np.diff([0, *cuts, size]).tolist()
        held = [n + part for n, part in zip(held, parts, strict=True)]
        counts.append(parts)
    return np.array(counts).T


@pytest.mark.parametrize("balance", [True, False])
def test_dirichlet_divides_as_pfllib_and_fl_bench_do(balance):
    """The same shares give the same counts."""
    class_sizes, clients, alpha = [7000, 6300, 6990, 40, 6999], 20, 0.1
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    ours = dirichlet.draw_counts(np.array(class_sizes), clients, alpha, balance, 1, rng)[0]
    shares = []
    for _ in class_sizes:  # the same stream, as plain numbers: Gamma(a) = Gamma(a + 1) U^(1/a)
        gammas, exponentials = again.standard_gamma(alpha + 1, (1, clients)), again.standard_exponential((1, clients))
        shares.append((gammas * np.exp(-exponentials / alpha))[0])
    assert np.abs(ours - plain_counts(class_sizes, shares, balance)).max() <= 1  # rounding
    assert (ours != plain_counts(class_sizes, shares, not balance)).any()


def test_pfllibs_split_is_three_quarters_to_one():
    partition = make("dirichlet", {"alpha": 0.1, "min_samples": 40, "test_share": 0.25}, CIFAR10, 20, 0)
    rows = sizes(partition.train) + sizes(partition.test)
    assert rows.min() >= 40
    assert rows.sum() == 60_000
    assert np.abs(sizes(partition.test) - 0.25 * rows).max() <= 0.5


# PFLlib's pathological partition.


def pfllib_holders(clients, classes, per_client):
    """Who holds which class, as PFLlib's loop has it."""
    lacks, held = [per_client] * clients, np.zeros((clients, classes), dtype=bool)
    for c in range(classes):
        chosen = [i for i in range(clients) if lacks[i] > 0][: int(np.ceil((clients / classes) * per_client))]
        for i in chosen:
            held[i, c] = True
            lacks[i] -= 1
    return held


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 30))
def test_who_holds_a_class_is_as_in_pfllib(clients, classes, per_client):
    per_client = min(per_client, classes)
    assert np.array_equal(
        class_blocks.blocks(clients, classes, per_client), pfllib_holders(clients, classes, per_client)
    )


@pytest.mark.parametrize(("dataset", "per_client"), [(CIFAR10, 2), (CIFAR100, 10), (TINY, 20)])
@pytest.mark.parametrize("balance", [True, False])
def test_class_blocks_are_pfllibs_pathological_setting(dataset, per_client, balance):
    given = {"classes_per_client": per_client, "balance": balance}
    partition = make("class-blocks", given, dataset, 20, 0)
    assert np.array_equal(np.sort(rows_of(partition)), np.arange(len(dataset.y)))
    counts = histogram(dataset, partition.train) + histogram(dataset, partition.test)
    assert np.array_equal(counts > 0, pfllib_holders(20, dataset.classes, per_client))
    assert (classes_of(dataset, partition) == per_client).all()
    held = counts[counts > 0]
    equal = len(dataset.y) // (20 * per_client)  # every class has equally many holders
    if balance:
        assert (held == equal).all()
    else:
        assert held.min() >= int(max(equal / 10, 40 / dataset.classes))
        last = np.array([column[column > 0][-1] for column in counts.T])
        others = np.concatenate([column[column > 0][:-1] for column in counts.T])
        assert others.max() < equal <= last.min()
        assert others.mean() == pytest.approx(0.55 * equal, rel=0.2)  # even from a tenth up
    assert np.abs(sizes(partition.test) - counts.sum(1) / 4).max() <= 0.5


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(2, 8), st.integers(1, 8), st.booleans(), st.integers(0, 1000))
def test_class_blocks_give_every_row_away_or_refuse(clients, classes, per_client, balance, seed):
    """Where the loop of PFLlib divides by zero, because a class finds nobody, we say what would be valid."""
    dataset = balanced(classes, 40, 20)
    lost = per_client > classes or not pfllib_holders(clients, classes, per_client).any(axis=0).all()
    lost = lost or (pfllib_holders(clients, classes, per_client).sum(axis=1) < per_client).any()
    given = {"classes_per_client": per_client, "balance": balance}
    if lost:
        with pytest.raises(InputError, match=f"--param classes_per_client: got {per_client}, must be"):
            make("class-blocks", given, dataset, clients, seed)
    else:
        partition = make("class-blocks", given, dataset, clients, seed)
        assert np.array_equal(np.sort(rows_of(partition)), np.arange(len(dataset.y)))


# pfl-research's users.


def drawn_one_by_one(mixture, stock, wanted, rng):
    """A user of pfl-research: draw classes until enough rows were found, evening the mixture out now and then."""
    taken, draws = np.zeros(len(stock), dtype=int), 0
    while taken.sum() < wanted:
        c = rng.choice(len(stock), p=mixture)
        taken[c] += taken[c] < stock[c]
        draws += 1
        if draws % (20 * wanted) == 0:
            mixture = (mixture + 0.02) / (mixture + 0.02).sum()
    return taken


def test_rows_are_drawn_as_one_by_one(rng):
    """In distribution: means and variances of the counts, where one class is scarce and the mixture leans on it."""
    mixture, stock, wanted = np.array([0.7, 0.2, 0.1]), np.array([6, 30, 30]), 12
    ours, theirs = (
        np.array([draw(mixture, stock, wanted, rng) for _ in range(600)])
        for draw in (dirichlet_clients.draw_rows, drawn_one_by_one)
    )
    assert (ours.sum(axis=1) == wanted).all()
    assert (ours <= stock).all()
    assert ours.mean(axis=0) == pytest.approx(theirs.mean(axis=0), abs=0.25)  # five standard errors
    assert ours.var(axis=0) == pytest.approx(theirs.var(axis=0), abs=0.6)


def test_a_class_that_nobody_leans_on_is_taken_when_nothing_else_is_left(rng):
    """A plain loop over the mixture alone would never end."""
    taken = dirichlet_clients.draw_rows(np.array([1.0, 0.0, 0.0]), np.array([3, 10, 0]), 5, rng)
    assert taken.tolist() == [3, 2, 0]


@pytest.mark.parametrize(("alpha", "fewest", "most"), [(0.01, 1.0, 1.6), (0.1, 3.2, 3.9), (100.0, 9.5, 10)])
def test_clients_of_equal_size_have_their_own_mixtures(alpha, fewest, most):
    partition = make("dirichlet-clients", {"alpha": alpha}, CIFAR10, 1000, 0)
    assert set(sizes(partition.train)) == {50}
    assert set(sizes(partition.test)) == {10}
    assert np.array_equal(np.sort(rows_of(partition)), np.arange(60_000))
    train, test = (histogram(CIFAR10, lists) for lists in (partition.train, partition.test))
    assert fewest < (train > 0).sum(axis=1).mean() < most
    if alpha < 1:  # test rows come in the client's own proportions
        assert np.corrcoef(train.ravel(), test.ravel())[0, 1] > 0.85


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(1, 20), st.integers(0, 1000))
def test_any_alpha_ends_and_keeps_training_and_test_rows_apart(alpha, clients, seed):
    y = np.concatenate([np.repeat(np.arange(4), [60, 3, 20, 17]), np.repeat(np.arange(4), [2, 5, 6, 9])])
    dataset = Dataset("own", np.zeros((len(y), 2), dtype=np.float32), y, 100, 4)
    partition = make("dirichlet-clients", {"alpha": alpha}, dataset, clients, seed)
    assert set(sizes(partition.train)) == {100 // clients}
    assert set(sizes(partition.test)) == {22 // clients}
    assert max(map(max, partition.train)) < 100 <= min(map(min, partition.test))
    assert len(np.unique(rows_of(partition))) == len(rows_of(partition))


@pytest.mark.parametrize("name", ["class-blocks", "dirichlet-clients"])
def test_same_seed_same_partition_other_seed_other_partition(name):
    first, again, other = (make(name, {}, CIFAR10, 20, seed) for seed in (3, 3, 4))
    assert all(map(np.array_equal, first.train + first.test, again.train + again.test))
    assert not all(map(np.array_equal, first.train, other.train))


@pytest.mark.parametrize(
    ("name", "params", "clients", "message"),
    [
        ("class-blocks", {"classes_per_client": 0}, 20, "--param classes_per_client: got 0, must be at least 1"),
        ("class-blocks", {"classes_per_client": 11}, 20, "got 11, must be at most 10, the classes of the data"),
        ("class-blocks", {}, 4, "got 2, must be such that clients x classes_per_client = 4 x 2 is enough for all 10"),
        ("class-blocks", {"min_samples": -1}, 20, "--param min_samples: got -1, must be 0 or more"),
        ("class-blocks", {"test_share": 0.0}, 20, "--param test_share: got 0.0, must be between 0 and 1"),
        ("dirichlet-clients", {"alpha": 0.0}, 20, "--param alpha: got 0.0, must be a finite number above 0"),
        ("dirichlet-clients", {"alpha": math.inf}, 20, "--param alpha: got inf"),
        ("dirichlet-clients", {}, 10_001, "--clients: got 10001, must be at most 10000, the rows of the smaller"),
    ],
)
def test_bad_requests_are_one_line(name, params, clients, message):
    with pytest.raises(InputError) as refused:
        make(name, params, CIFAR10, clients, 0)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
