"""Partitions: what holds for every scheme, what the paper's settings promise, and what is refused."""

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feddwa.config import RunConfig
from feddwa.data.dataset import Dataset, hold_out
from feddwa.data.partition import PARTITIONS, Partition, make
from feddwa.data.schemes import dirichlet
from feddwa.data.schemes.base import Reads, Scheme, draw_classes, rows_of
from feddwa.data.schemes.groups import counts_for
from feddwa.errors import InputError, require


def balanced(classes, train_each, test_each, name="own", shape=(1, 2, 2)):
    """Labels as in the real datasets: equally many of each class, in random order."""
    rng = np.random.default_rng(7)
    train = rng.permutation(np.repeat(np.arange(classes), train_each))
    test = rng.permutation(np.repeat(np.arange(classes), test_each))
    y = np.concatenate([train, test])
    return Dataset(name, np.zeros((len(y), *shape), dtype=np.uint8), y, len(train), classes)


CIFAR10 = balanced(10, 5000, 1000, "cifar10")
CIFAR100 = balanced(100, 500, 100, "cifar100")
CINIC10 = balanced(10, 9000, 9000, "cinic10")
TINY = balanced(200, 500, 50, "tiny-imagenet")


def sizes(lists):
    return np.array([len(rows) for rows in lists])


def classes_of(dataset, partition):
    """(N,) number of classes among a client's rows."""
    pairs = zip(partition.train, partition.test, strict=True)
    return np.array([len(np.unique(dataset.y[np.concatenate(pair)])) for pair in pairs])


def histogram(dataset, lists):
    return np.array([np.bincount(dataset.y[rows], minlength=dataset.classes) for rows in lists])


# What holds for every scheme.

KEEP_EVERY_ROW = ["pathological", "groups", "dirichlet", "iid", "rotations", "label-permutation"]


@pytest.mark.parametrize("name", KEEP_EVERY_ROW)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_are_disjoint_complete_and_nobody_is_empty(name, data):
    classes = data.draw(st.integers(2, 7), "classes")
    clients = data.draw(st.integers(4, 9), "clients")
    each = data.draw(st.integers(40, 80), "rows per class")
    dataset = balanced(classes, each, each // 2)
    params = {"alpha": 5.0, "min_samples": 2} if name == "dirichlet" else {}
    if name == "label-permutation":
        params = {"groups": 2}
    seed = data.draw(st.integers(0, 2**32), "seed")
    partition = make(name, params, dataset, clients, seed)
    rows = np.concatenate([*partition.train, *partition.test])
    assert np.array_equal(np.sort(rows), np.arange(len(dataset.y)))
    assert len(partition.train) == len(partition.test) == clients
    assert all(np.all(np.diff(rows) > 0) for rows in (*partition.train, *partition.test))
    assert min(sizes(partition.train)) > 0 < min(sizes(partition.test))


@pytest.mark.parametrize("name", KEEP_EVERY_ROW)
def test_training_rows_stay_training_rows_except_where_the_setting_pools(name):
    partition = make(name, {}, CIFAR10, 20, 0)
    crossed = np.concatenate(partition.train).max() >= CIFAR10.train_count
    assert crossed == (name == "dirichlet")


@pytest.mark.parametrize("name", KEEP_EVERY_ROW)
def test_same_seed_same_partition_other_seed_other_partition(name):
    first, again, other = (make(name, {}, CIFAR10, 20, seed) for seed in (3, 3, 4))
    assert all(map(np.array_equal, first.train + first.test, again.train + again.test))
    assert not all(map(np.array_equal, first.train, other.train))


def test_drawn_classes_are_distinct_and_evenly_held(rng):
    held = draw_classes(20, 2, 10, rng)
    assert (held.sum(axis=1) == 2).all()
    assert (held.sum(axis=0) == 4).all()
    disjoint = draw_classes(4, 20, 100, rng)
    assert (disjoint.sum(axis=1) == 20).all()
    assert disjoint.sum(axis=0).max() == 1


# Pathological.


@pytest.mark.parametrize(
    ("dataset", "clients", "fewest", "mean", "most", "train", "test"),
    [
        (CIFAR10, 20, 1, 1.93, 2, 2500, 500),
        (CINIC10, 20, 1, 1.93, 2, 4500, 4500),
        (CIFAR100, 20, 5, 5.97, 6, 2500, 500),
        (TINY, 20, 10, 10, 10, 5000, 500),
        (CIFAR10, 100, 1, 1.90, 2, 500, 100),
        (CIFAR100, 100, 1, 1.99, 2, 500, 100),
        (TINY, 100, 2, 2, 2, 1000, 100),
    ],
)
def test_shards_meet_the_published_statistics(dataset, clients, fewest, mean, most, train, test):
    found = []
    for seed in range(10):
        partition = make("pathological", {}, dataset, clients, seed)
        assert set(sizes(partition.train)) == {train}
        assert set(sizes(partition.test)) == {test}
        found.append(classes_of(dataset, partition))
        present = histogram(dataset, partition.train) > 0
        assert not (~present & (histogram(dataset, partition.test) > 0)).any()  # no test class without training
    assert np.min(found) >= fewest
    assert np.max(found) == most
    assert np.mean(found) == pytest.approx(mean, abs=0.05)


@pytest.mark.parametrize("amounts", ["equal", "all"])
@pytest.mark.parametrize(("dataset", "count"), [(CIFAR10, 2), (CINIC10, 2), (CIFAR100, 6), (TINY, 10)])
def test_exact_classes_have_the_papers_counts_as_default(dataset, count, amounts):
    partition = make("pathological", {"variant": "classes", "amounts": amounts}, dataset, 20, 1)
    assert (classes_of(dataset, partition) == count).all()
    train = histogram(dataset, partition.train)
    assert ((train > 0) == (histogram(dataset, partition.test) > 0)).all()
    for shares in train.T:  # a class is split evenly among its holders
        assert np.ptp(shares[shares > 0]) <= 1
    whole = len(np.concatenate(partition.train)) == dataset.train_count  # 20 clients are enough to hold every class
    assert whole == (amounts == "all" or dataset is not CIFAR100)  # of which some are held twice, others once


def emnist_byclass():
    """Classes as unequal as EMNIST's, and other proportions among the test rows."""
    unequal = np.repeat(np.arange(62), np.linspace(400, 20, 62).astype(int))
    other_proportions = np.repeat(np.arange(62), np.linspace(10, 60, 62).astype(int))
    y = np.concatenate([unequal, other_proportions])
    return Dataset("emnist", np.zeros((len(y), 1, 2, 2), dtype=np.uint8), y, len(unequal), 62)


def test_emnist_takes_the_papers_four_classes():
    emnist = emnist_byclass()
    assert (classes_of(emnist, make("pathological", {}, emnist, 20, 0)) == 4).all()
    shards = make("pathological", {"variant": "shards"}, emnist, 20, 0)
    present = histogram(emnist, shards.train) > 0
    assert not (~present & (histogram(emnist, shards.test) > 0)).any()


@pytest.mark.parametrize("dataset", [emnist_byclass(), balanced(26, 1600, 260)])
def test_exact_classes_come_in_the_same_amount_for_everyone(dataset):
    """As the paper has it, whether classes differ in size (EMNIST byclass) or in their number of holders (letters)."""
    given = {"variant": "classes", "classes_per_client": 4}
    partition = make("pathological", given, dataset, 20, 0)
    supplies = np.bincount(dataset.y[: dataset.train_count]), np.bincount(dataset.y[dataset.train_count :])
    for lists, supply in zip((partition.train, partition.test), supplies, strict=True):
        held = histogram(dataset, lists)
        assert len({*held[held > 0]}) == 1
        holders = (held > 0).sum(0)
        assert held.max() == min(supply // holders)  # as much as the scarcest class allows
    everything = make("pathological", {**given, "amounts": "all"}, dataset, 20, 0)
    assert len({*sizes(everything.train)}) > 1
    assert sizes(everything.train).sum() == dataset.train_count


def test_equal_amounts_of_a_class_too_small_are_refused():
    y = np.repeat([0, 1, 0, 1], [40, 3, 10, 10])
    dataset = Dataset("own", np.zeros((len(y), 2), dtype=np.float32), y, 43, 2)
    with pytest.raises(InputError, match="class 1 has 3 training or test rows for the 4 clients that hold it"):
        make("pathological", {"variant": "classes"}, dataset, 4, 0)


# Groups.


@pytest.mark.parametrize(
    ("dataset", "train", "test"),
    [(CIFAR10, 2500, 500), (CIFAR100, 2500, 500), (CINIC10, 4500, 4500), (TINY, 5000, 500)],
)
def test_groups_have_the_published_sizes_and_chunks(dataset, train, test):
    partition = make("groups", {}, dataset, 20, 0)
    assert set(sizes(partition.train)) == {train}
    assert set(sizes(partition.test)) == {test}
    assert np.array_equal(partition.groups, np.repeat([0, 1, 2, 3], 5))
    chunk = dataset.classes / 4
    for kind in (partition.train, partition.test):
        shares = histogram(dataset, kind) / sizes(kind)[:, None]
        for i, group in enumerate(partition.groups):
            inside = shares[i, int(np.floor(group * chunk)) : int(np.ceil((group + 1) * chunk))].sum()
            assert inside == pytest.approx(0.8 + 0.2 * np.ceil(chunk) / dataset.classes, abs=0.05)


def test_neighbouring_groups_share_a_class_half_and_half():
    train = histogram(CIFAR10, make("groups", {}, CIFAR10, 20, 0).train).reshape(4, 5, 10).sum(axis=1)
    for first, second, shared in ((0, 1, 2), (2, 3, 7)):
        assert train[first, shared] == pytest.approx(train[second, shared], rel=0.1)
        assert train[first, shared] > 5 * train[3 - first, shared]


@pytest.mark.parametrize(("dataset", "dominant"), [(CIFAR10, 3), (CINIC10, 3), (CIFAR100, 20), (TINY, 40)])
def test_drawn_dominant_classes_follow_the_papers_text(dataset, dominant):
    partition = make("groups", {"variant": "classes"}, dataset, 20, 0)
    for kind in (partition.train, partition.test):
        assert len(set(sizes(kind))) == 1
        counts = histogram(dataset, kind)
        largest = np.sort(counts, axis=1)[:, -dominant:].sum(axis=1) / counts.sum(axis=1)
        assert largest == pytest.approx(0.8 + 0.2 * dominant / dataset.classes, abs=0.02)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.floats(0, 1), st.integers(0, 1000))
def test_any_groups_clients_and_share(groups, clients, share, seed):
    assume(groups <= clients)
    dataset = balanced(5, 100, 60)
    partition = make("groups", {"groups": groups, "dominant_share": share}, dataset, clients, seed)
    assert len(np.concatenate(partition.train)) == dataset.train_count
    members = np.bincount(partition.groups)
    assert (members[:-1] == clients // groups).all()  # the last group takes the remainder
    assert members.sum() == clients


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 12), st.integers(2, 8), st.integers(0, 1000))
def test_counts_for_a_mix_are_equal_sizes_within_supply(clients, classes, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 600)
    mix = rng.dirichlet(np.ones(classes), clients)
    assume((np.bincount(labels, minlength=classes) > 0).all())
    counts = counts_for(mix, labels)
    assert len(set(counts.sum(axis=1))) == 1
    assert (counts >= 0).all()
    assert (counts.sum(axis=0) <= np.bincount(labels, minlength=classes)).all()
    assert np.abs(counts - mix * counts.sum(axis=1)[0]).max() <= 1


# Dirichlet.


@pytest.mark.parametrize(
    ("dataset", "clients", "alpha", "median", "classes"),
    [
        (CIFAR10, 100, 0.10, (400, 640), (3.9, 4.6)),
        (CIFAR10, 20, 0.07, (2300, 3900), (3.4, 4.8)),
        (CIFAR100, 100, 0.07, (590, 640), (23.5, 27.5)),
        (CIFAR100, 20, 0.10, (2950, 3200), (38, 47)),
        (CINIC10, 100, 0.07, (1100, 1900), (3.3, 4.3)),
        (TINY, 100, 0.07, (1080, 1160), (49, 55)),
    ],
)
def test_dirichlet_meets_the_published_statistics(dataset, clients, alpha, median, classes):
    for seed in range(3):
        partition = make("dirichlet", {"alpha": alpha}, dataset, clients, seed)
        rows = sizes(partition.train) + sizes(partition.test)
        assert rows.min() >= 20
        assert rows.sum() == len(dataset.y)
        assert median[0] < np.median(rows) < median[1]
        assert classes[0] < classes_of(dataset, partition).mean() < classes[1]
        assert sizes(partition.test) == pytest.approx(0.2 * rows, abs=0.51)


def test_dirichlet_at_full_scale_takes_under_a_second_and_meets_the_statistics():
    for seed in range(3):
        start = time.process_time()
        partition = make("dirichlet", {}, CIFAR10, 100, seed)  # alpha 0.07: one draw in a thousand is valid
        assert time.process_time() - start < 1
        rows = sizes(partition.train) + sizes(partition.test)
        assert rows.min() >= 20
        assert 350 < np.median(rows) < 620
        assert 3.0 < classes_of(CIFAR10, partition).mean() < 3.9


def test_dirichlet_tries_needed_agree_with_a_plain_loop(rng):
    def plain():
        held = np.zeros(100)
        for _ in range(10):
            share = rng.dirichlet(np.full(100, 0.1)) * (held < 600)
            held += np.diff([0, *(np.cumsum(share / share.sum()) * 6000).astype(int)[:-1], 6000])
        return held.min() >= 20

    drawn = dirichlet.draw_counts(np.full(10, 6000), 100, 0.1, True, 1000, rng)
    valid = (drawn.sum(axis=2).min(axis=1) >= 20).mean()
    assert (drawn.sum(axis=1) == 6000).all()
    assert valid == pytest.approx(np.mean([plain() for _ in range(1000)]), abs=0.04)  # both near 0.085


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-4, 1e4), st.integers(1, 20), st.booleans(), st.integers(0, 1000))
def test_dirichlet_counts_are_complete_at_any_alpha(alpha, clients, balance, seed):
    class_sizes = np.array([30, 1, 0, 200])
    counts = dirichlet.draw_counts(class_sizes, clients, alpha, balance, 3, np.random.default_rng(seed))
    assert (counts >= 0).all()
    assert (counts.sum(axis=1) == class_sizes).all()


def test_dirichlet_that_cannot_be_met_is_bounded_and_suggests_a_feasible_alpha(monkeypatch):
    monkeypatch.setattr(dirichlet, "MAX_TRIES", 500)
    with pytest.raises(InputError, match=r"alpha: got 0.01.*alpha >= ([0-9.]+) is feasible") as refused:
        make("dirichlet", {"alpha": 0.01}, CIFAR10, 100, 0)
    suggested = float(str(refused.value).split("alpha >= ")[1].split()[0])
    assert len(make("dirichlet", {"alpha": suggested}, CIFAR10, 100, 0).train) == 100


# Equal label distributions and concept shift.


@pytest.mark.parametrize("name", ["iid", "rotations", "label-permutation"])
def test_dealt_rows_are_even_and_labels_alike(name):
    partition = make(name, {}, CIFAR10, 20, 0)
    assert set(sizes(partition.train)) == {2500}
    assert histogram(CIFAR10, partition.train) == pytest.approx(250, abs=70)
    odd = make(name, {}, balanced(10, 101, 33), 7, 0)
    assert np.ptp(sizes(odd.train)) <= 1 >= np.ptp(sizes(odd.test))


def test_rotations_turn_blocks_of_clients():
    partition = make("rotations", {}, CIFAR10, 20, 0)
    assert np.array_equal(partition.turns, np.repeat([0, 1, 2, 3], 5))
    assert np.array_equal(partition.groups, partition.turns)


def test_label_permutations_differ_between_groups_only():
    partition = make("label-permutation", {"groups": 3}, CIFAR10, 9, 0)
    assert (np.sort(partition.relabel, axis=1) == np.arange(10)).all()
    assert np.array_equal(partition.relabel[0], np.arange(10))
    assert len(np.unique(partition.relabel, axis=0)) == 3
    for group in range(3):
        assert len(np.unique(partition.relabel[partition.groups == group], axis=0)) == 1
    two = make("label-permutation", {"groups": 2}, balanced(2, 50, 20), 4, 0)
    assert np.array_equal(two.relabel, [[0, 1], [0, 1], [1, 0], [1, 0]])


# Natural owners.


def test_natural_keeps_the_owners():
    y, owner = np.arange(60) % 3, np.arange(60) % 5
    dataset = Dataset("own", np.zeros((60, 4), dtype=np.float32), y, 40, 3, client=owner)
    partition = make("natural", {}, dataset, 4, 0)
    for i in range(4):
        rows = np.concatenate([partition.train[i], partition.test[i]])
        assert np.array_equal(np.sort(rows), np.flatnonzero(owner == i))
        assert partition.train[i].max() < 40 <= partition.test[i].min()
    with pytest.raises(InputError, match="--clients: got 6, must be at most 5"):
        make("natural", {}, dataset, 6, 0)


# What is refused.


@pytest.mark.parametrize(
    ("name", "params", "clients", "message"),
    [
        ("unknown", {}, 20, "--partition: unknown name 'unknown'; valid: pathological, groups"),
        ("iid", {}, 0, "--clients: got 0, must be at least 1"),
        ("iid", {"alpha": 1}, 20, "no such parameter; valid: none"),
        ("pathological", {"variant": "classes", "classes_per_client": 11}, 20, "got 11, must be at most 10"),
        ("pathological", {"classes_per_client": 0}, 20, "got 0, must be at least 1"),
        ("pathological", {"classes_per_client": 3}, 20, "only variant=classes has it; give --param variant=classes"),
        ("pathological", {"variant": "classes", "shards_per_client": 3}, 20, "only variant=shards has it"),
        ("pathological", {"amounts": "all"}, 20, "only variant=classes has it"),
        ("pathological", {"variant": "classes", "amounts": "some"}, 20, "must be one of equal, all"),
        ("groups", {"dominant_classes": 2}, 20, "only variant=classes has it"),
        ("pathological", {"shards_per_client": 3000}, 20, "must be at most 2500"),
        ("pathological", {"variant": "other"}, 20, "must be one of shards, classes"),
        ("groups", {"groups": 21}, 20, "got 21, must be at most the 20 clients"),
        ("groups", {"dominant_share": 1.5}, 20, "got 1.5, must be between 0 and 1"),
        ("groups", {"variant": "classes", "dominant_classes": 11}, 20, "must be at most 10"),
        ("dirichlet", {"alpha": 0}, 20, "alpha: got 0.0, must be a finite number above 0"),
        ("dirichlet", {"alpha": -1.0}, 20, "alpha: got -1.0"),
        ("dirichlet", {"alpha": float("nan")}, 20, "alpha: got nan"),
        ("dirichlet", {"min_samples": 3001}, 20, "must be at most 3000"),
        ("dirichlet", {"test_share": 1.0}, 20, "test_share: got 1.0"),
        ("rotations", {"groups": 5}, 20, "must be 1..4"),
        ("label-permutation", {"groups": 30}, 20, "at most the 20 clients"),
        ("natural", {}, 20, "cifar10 has no client column"),
        ("iid", {}, 10_001, "client 10000 has no test sample"),
    ],
)
def test_bad_requests_are_refused_with_the_field_and_the_valid_range(name, params, clients, message):
    with pytest.raises(InputError) as refused:
        make(name, params, CIFAR10, clients, 0)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_schemes_say_what_they_need():
    table = Dataset("table", np.zeros((50, 3), dtype=np.float32), np.linspace(0, 1, 50), 40, 0)
    for name in ("pathological", "groups", "dirichlet", "label-permutation"):
        with pytest.raises(InputError, match="no class labels"):
            make(name, {}, table, 5, 0)
    with pytest.raises(InputError, match="wants square images"):
        make("rotations", {}, table, 5, 0)
    assert len(make("iid", {}, table, 5, 0).train) == 5


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_scheme_refuses_by_itself_what_does_not_suit_the_data(name):
    """Everything is refused before a row is drawn: by the fields' ranges, or by `check`."""
    scheme, owned = PARTITIONS[name](), replace(CIFAR10, client=np.arange(len(CIFAR10.y)) % 20)
    scheme.check(owned, 20)
    wrong = {
        "pathological": ({"variant": "classes", "classes_per_client": 11}, 20, "classes_per_client: got 11"),
        "groups": ({"groups": 21}, 20, "groups: got 21"),
        "dirichlet": ({"min_samples": 3001}, 20, "min_samples: got 3001"),
        "rotations": ({}, 3, "groups: got 4, must be at most the 3 clients"),
        "label-permutation": ({"groups": 21}, 20, "groups: got 21"),
        "natural": ({}, 21, "--clients: got 21, must be at most 20, the owners in the data"),
    }
    if name in wrong:
        fields, clients, message = wrong[name]
        with pytest.raises(InputError, match=message):
            replace(scheme, **fields).check(owned, clients)


def test_options_of_another_variant_are_refused_before_the_data_are_loaded():
    with pytest.raises(InputError, match=r"classes_per_client: only variant=classes has it"):
        RunConfig(dataset="cifar100", partition="pathological", param=("classes_per_client=5",)).resolved()
    usual = RunConfig(dataset="cifar100", partition="pathological", param=("classes_per_client=6",)).resolved()
    assert "pathological.classes_per_client=6" in usual.param  # the paper's number is no choice


@dataclass(frozen=True)
class Halves:
    """From outside the package, without its base class: owners 0 and 1 are one client each."""

    reads: ClassVar[Reads] = "owners"
    least: int = 1

    def __call__(self, labels, train_count, clients, rng):
        rows = np.arange(len(labels))
        halves = [rows[labels == number] for number in range(clients)]
        return Partition([half[half < train_count] for half in halves], [half[half >= train_count] for half in halves])


@dataclass(frozen=True)
class Pairs(Scheme):
    """From outside the package, with a check of its own."""

    reads: ClassVar[Reads] = "nothing"

    def check(self, dataset, clients):
        require(clients % 2 == 0, "--clients", clients, "even")

    def __call__(self, labels, train_count, clients, rng):
        raise AssertionError("rows were drawn")


def test_a_scheme_from_outside_is_asked_like_those_of_the_package():
    owned = replace(CIFAR10, client=np.arange(len(CIFAR10.y)) % 2, client_names=("left", "right"))
    halves = f"{__name__}:Halves"
    assert make(halves, {"least": "2"}, owned, 2, 0).client_names == ("left", "right")
    assert RunConfig(partition=halves).resolved().clients is None  # the owners are the clients, as with natural
    with pytest.raises(InputError, match="--clients: got 3, must be even"):
        make(f"{__name__}:Pairs", {}, CIFAR10, 3, 0)


def test_every_scheme_documents_its_fields():
    assert set(PARTITIONS) >= {*KEEP_EVERY_ROW, "natural"}
    assert all(scheme.__doc__ for scheme in PARTITIONS.values())


# The fixed hold-out.


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99))
def test_hold_out_is_stratified_per_owner(owner_sizes, classes, seed):
    owner = np.repeat(np.arange(len(owner_sizes)), owner_sizes)
    rng = np.random.default_rng(seed)
    owner, label = rng.permutation(owner), rng.integers(0, classes, len(owner))
    order, train_count = hold_out(owner, label)
    assert np.array_equal(np.sort(order), np.arange(len(owner)))
    test = order[train_count:]
    for i, size in enumerate(owner_sizes):
        mine = test[owner[test] == i]
        assert len(mine) == max(1, round(0.2 * size))
        for c in range(classes):
            expected = len(mine) * np.mean(label[owner == i] == c)
            assert abs((label[mine] == c).sum() - expected) <= 1 + 1e-9


def test_rows_of_leaves_out_rows_that_nobody_has():
    assert [rows.tolist() for rows in rows_of(np.array([1, -1, 0, 1]), 3, first_row=10)] == [[12], [10, 13], []]
