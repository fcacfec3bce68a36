"""FedDWA+'s weights, the page that reports on them, and clients that join later."""

import dataclasses
import hashlib
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from feddwa.algorithms.cosine import similarity_weights
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.groups import groups
from feddwa.mixing import mix, mix_groups, parameter_groups
from feddwa.results.collaboration import between_groups
from feddwa.results.store import Store
from feddwa_reproduction import grids, page, specs
from feddwa_reproduction.figures import draw
from feddwa_reproduction.tables import tables_of
from tests.reproduction.made import put

ROOT = Path(__file__).parents[1]
PROTOCOL = "0393322bde4974069d5dfb2a01767a991a9545af83b680c8f104f8b3d795a60e"  # of df3e3c6


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    """Scripts find their neighbours, as they do when they are run."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def script(name):
    return importlib.import_module(name)


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (5, 5), elements=st.floats(-1, 1)), st.floats(0.5, 6))
def test_weights_are_shares_and_nobody_counts_more_than_oneself(agreement, power):
    weights = similarity_weights(torch.as_tensor(agreement), power)
    torch.testing.assert_close(weights.sum(1), torch.ones(5, dtype=torch.float64))
    assert (weights >= 0).all()
    assert (weights.diagonal() >= weights.amax(1) - 1e-12).all()
    disagree = torch.as_tensor(agreement <= 0) & ~torch.eye(5, dtype=torch.bool)
    assert (weights[disagree] == 0).all()


def test_who_agrees_with_nobody_is_alone():
    agreement = torch.tensor([[-0.2, -0.1, -0.3], [0.0, 0.5, 0.5], [0.2, 0.4, 0.1]], dtype=torch.float64)
    weights = similarity_weights(agreement, 2.0)
    expected = [[1, 0, 0], [0, 0.5, 0.5], [0.04 / 0.36, 0.16 / 0.36, 0.16 / 0.36]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


def test_parameters_in_groups():
    names = ["body.0.weight", "body.0.bias", "head.weight", "scale"]
    assert parameter_groups(names, "model") == {"model": names}
    assert list(parameter_groups(names, "tensor")) == names
    layers = {"body.0": names[:2], "head": names[2:3], "model": names[3:]}
    assert parameter_groups(names, "layer") == layers


def test_equal_weights_in_all_groups_are_one_mixture():
    generator = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(4, 3, dtype=torch.float64, generator=generator) for name in ("a.w", "b.w", "a.b")}
    weights = torch.rand(4, 4, dtype=torch.float64, generator=generator)
    mixed, overall = mix_groups({"a": weights, "b": weights}, parameter_groups(rows, "layer"), rows)
    torch.testing.assert_close(overall, weights)
    assert list(mixed) == list(rows)
    for name, value in mix(weights, rows).items():
        torch.testing.assert_close(mixed[name], value)


def filled(store, tmp_path):
    """docs/beyond.md in another folder, with the tables of a store."""
    (tmp_path / "beyond.md").write_text((ROOT / "docs" / "beyond.md").read_text(encoding="utf-8"), encoding="utf-8")
    return page.fill(tmp_path / "beyond.md", specs.beyond(), store)


@pytest.mark.slow
def test_the_tables_and_the_figure_of_the_page_are_those_of_the_results(tmp_path):
    """`feddwa reproduce docs` mends them."""
    written, figure = filled(Store(ROOT / "results"), tmp_path)
    assert written.read_text(encoding="utf-8") == (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
    assert figure.name == "in-group-weight.svg"
    assert figure.read_bytes() == (ROOT / "docs" / "beyond" / figure.name).read_bytes()


def test_the_pages_have_every_table_once():
    texts = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in page.BEYOND]
    found = [name for text in texts for name in re.findall(r"<!-- table: (\S+) -->", text)]
    assert sorted(found) == sorted(specs.beyond())


def test_tables_of_every_method_have_every_method():
    """Where networks have no BatchNorm FedBN is left out: it would be FedAvg."""
    named, known = groups()["all"], specs.beyond()
    assert sorted(row.method for row in known["field-cifar10"].rows) == sorted(named)
    for name in ("field-digits", "natural", "natural-fairness"):
        assert sorted([*(row.method for row in known[name].rows), "fedbn"]) == sorted(named)


def test_a_dagger_marks_what_the_paper_does_not_compare():
    marked = {row.method for row in specs.beyond()["field-cifar10"].rows if row.label.endswith("†")}
    assert "feddwa_plus" in marked
    assert marked == set(groups()["all"]) - set(groups()["@paper"])


@pytest.mark.slow
def test_without_results_the_page_has_empty_tables(tmp_path):
    (written,) = filled(Store(tmp_path / "nothing"), tmp_path)
    assert "| FedRoD | - | - | - | - | - | - |" in written.read_text(encoding="utf-8")


def test_a_table_that_nobody_knows_is_told(tmp_path):
    (tmp_path / "beyond.md").write_text("<!-- table: nowhere -->\n\n<!-- end -->\n")
    with pytest.raises(InputError, match=r"beyond.md: table: unknown name 'nowhere'; valid: methods-cifar10, "):
        page.fill(tmp_path / "beyond.md", specs.beyond(), Store(tmp_path))


def digits(name, setting="groups"):
    """An entry with one column of digits."""
    each = specs.experiment(name)
    (column,) = [column for column in specs.experiment("methods-digits").columns if column.setting == setting]
    return dataclasses.replace(each, columns=(column,)), column


@pytest.mark.parametrize("name", ["methods-digits", "equal-bytes", "equal-flops"])
def test_a_cell_that_was_not_run_is_empty(name, tmp_path):
    """FedAvg after its epoch is not FedAvg_FT: weighted by test samples, and one aggregation behind."""
    (each, column), store = digits(name), Store(tmp_path)
    put(store, each, column, "fedavg", 0, [20.0, 30.0])
    put(store, each, column, "feddwa_plus", 0, [20.0, 31.0])
    (table,) = tables_of(each, store)
    cells = dict(table.rows)
    assert cells.get("FedAvg_FT", "-") == "-"
    assert cells["FedAvg"] == ("30.0 (one seed)" if name == "methods-digits" else "30.0, 2")


def test_leads_come_with_paired_intervals(tmp_path):
    (each, column), store = digits("lead-digits"), Store(tmp_path)
    for seed, (ours, rival) in enumerate([(90.0, 89.0), (91.0, 89.5), (92.0, 91.5)]):
        put(store, each, column, "feddwa_plus", seed, [ours])
        put(store, each, column, "fedrod", seed, [rival])
        put(store, each, column, "local", seed, [ours - 5 - seed / 10])
    (table,) = tables_of(each, store)
    lead = "+1.00 (-0.24 to +2.24)"  # 1.0, 1.5 and 0.5: a standard deviation of 0.5, times 4.303 / sqrt(3)
    assert table.rows == [("groups", "1 of 3", "FedRoD", lead, "-", "+5.10 (+4.85 to +5.35)*", "3")]
    assert table.header[4:6] == ("less FedDWA", "less Local")


def test_rows_less_the_first_one(tmp_path):
    (each, column), store = digits("frozen-digits-less"), Store(tmp_path)
    for seed, (whole, frozen) in enumerate([(90.0, 89.0), (91.0, 90.0), (92.0, 91.0)]):
        put(store, each, column, "feddwa_plus", seed, [whole])
        put(store, each, column, "feddwa_plus freeze=1", seed, [frozen])
    (table,) = tables_of(each, store)
    assert table.header == ("less FedDWA+", "groups")
    assert table.rows == [("FedDWA+, weights of round 1 in all rounds", "-1.00 (-1.00 to -1.00)*")]


def test_gains_over_local_stand_below_the_accuracies(tmp_path):
    (each, column), store = digits("methods-digits"), Store(tmp_path)
    put(store, each, column, "feddwa_plus", 0, [60.0], clients=[70.0, 50.0])
    put(store, each, column, "local", 0, [55.0], clients=[50.0, 60.0])
    (table,) = tables_of(each, store)
    assert table.rows[-1] == ("FedDWA+ over Local: mean client / worst tenth", "+5.0 / -10.0")


def test_the_weight_inside_groups_is_told_by_round(tmp_path):
    (each, column), store = digits("in-group-weight"), Store(tmp_path)
    for seed, shares in enumerate(([0.9, 0.8, 0.7, 0.6, 0.5], [0.7, 0.8, 0.7, 0.6, 0.3])):
        inside = {"weight": shares, "partners": shares}
        put(store, each, column, "feddwa_plus", seed, [50.0] * 5, in_group=inside)
    (table,) = tables_of(each, store)
    assert table.rows == [("digits, groups", "0.80", "0.80", "0.40", "", "", "", "")]
    one, two = (draw(each, store, tmp_path / place)[0] for place in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_the_worst_tenth_and_who_is_better_off_alone(tmp_path):
    """Of 20 clients the two worst; FedAvg serves three of them worse than Local, with the other seed none."""
    (each, column), store = digits("methods-digits"), Store(tmp_path)
    each = dataclasses.replace(each, kind="unequal")
    alone = [50.0] * 20
    put(store, each, column, "fedavg", 0, [60.0], clients=[30.0, 40.0, 45.0, *[60.0] * 17])
    put(store, each, column, "fedavg", 1, [60.0], clients=[55.0, 55.0, *[60.0] * 18])
    for seed in (0, 1):
        put(store, each, column, "local", seed, [50.0], clients=alone)
    (table,) = tables_of(each, store)
    assert table.header == ("", "groups: worst tenth", "groups: below Local")
    assert {name: cells for name, *cells in table.rows} == {
        "Local": ["50.0 ± 0.0", "-"], "FedAvg": ["45.0 ± 14.1", "8 %"],
    }  # fmt: skip


def test_where_the_weight_goes_beside_chance(tmp_path):
    """Four clients, two and two. Two of three others would get a third each: by chance 0.33 stays in the group."""
    (each, column), store = digits("methods-digits"), Store(tmp_path)
    each = dataclasses.replace(each, kind="partners")
    mixed = [[600, 300, 50, 50], [300, 600, 50, 50], [0, 0, 800, 200], [100, 100, 0, 800]]
    rows = {"feddwa": {"1": [[250] * 4] * 4, "9": mixed}, "fedamp": {"9": np.diag([1000] * 4).tolist()}}
    for name, weights in rows.items():
        put(store, each, column, name, 0, [50.0], clients=[50.0] * 4, weights=weights, groups=[1, 1, 0, 0])
    put(store, each, column, "local", 0, [50.0], clients=[50.0] * 4)
    (table,) = tables_of(each, store)
    assert {name: cells for name, *cells in table.rows} == {
        "groups, FedDWA": ["0.70", "0.20", "0.10", "0.67", "0.33"],
        "groups, FedAMP": ["1.00", "0.00", "0.00", "-", "0.33"],
    }  # fmt: skip
    (one,), (two,) = (draw(each, store, tmp_path / place) for place in ("one", "two"))
    assert one.name == "methods-digits-digits.svg"  # of FedDWA alone: in the last round of FedAMP nobody mixes
    assert one.read_bytes() == two.read_bytes()


def test_weight_between_groups_is_told_by_what_a_pair_has():
    """Group 7 is clients 0 and 2; of six pairs, in both directions, one is inside it, and client 1 is alone."""
    weights = np.array([[0.5, 0.1, 0.4], [0.2, 0.6, 0.2], [0.6, 0.0, 0.4]])
    even = (0.1 + 0.4 + 0.2 + 0.2 + 0.6 + 0.0) / 6
    expected = np.array([[np.nan, 0.2], [0.05, 0.5]]) / even
    np.testing.assert_allclose(between_groups(weights, np.array([7, 3, 7])), expected)


def test_options_of_a_column_may_be_lists(tmp_path):
    """A result that was published with them is found again."""
    each, store = specs.experiment("natural"), Store(tmp_path)
    (column,) = [column for column in each.columns if column.dataset == "shakespeare"]
    put(store, each, column, "local", 0, [20.0])
    store.merge()
    (record,) = Store(tmp_path).all(each.config(column, each.rows[0])).values()
    assert record.config.model_arg == ("dim=32",)


@pytest.mark.parametrize(("share", "rounds"), [(2 / 3, 66), (0.5, 50), (0.99999, 100), (0.99, 99), (1e12, 100)])
def test_equal_cost_ends_a_curve_at_the_last_round_within_it(share, rounds, tmp_path):
    (each, column), store = digits("equal-flops"), Store(tmp_path)
    for seed in (0, 1):
        values = [(number + seed) / 2 for number in range(1, 101)]
        put(store, each, column, "fedavg", seed, [1.0] * 100, costs={"flops": 1e15})
        put(store, each, column, "feddwa", seed, values, costs={"flops": 1e15 / share})
    (table,) = tables_of(each, store)
    assert dict(table.rows)["FedDWA"] == f"{(rounds + 0.5) / 2:.1f}, {rounds}"


def test_columns_of_several_datasets_are_named_by_both(tmp_path):
    names = grids._names(specs.experiment("in-group-weight").columns)
    assert names[0] == "digits, groups"
    assert names[-2:] == ["CIFAR-10, groups, N = 100", "Tiny-ImageNet, groups"]


def test_a_newcomer_gets_the_models_of_those_it_resembles():
    """Two groups whose members lie on either side of their mean: an update towards one side gets that side's model."""
    welcome = script("newcomers").welcome
    members = {"fc.weight": torch.tensor([[1.0, 1.0], [1.0, 0.8], [-1.0, -1.0], [-1.0, -0.8]])}
    mean = {"fc.weight": members["fc.weight"].mean(0, keepdim=True)}
    new = welcome({"fc.weight": torch.tensor([[0.1, 0.1], [-0.1, -0.1]])}, members, mean, 3.0, seed=0)["fc.weight"]
    torch.testing.assert_close(new, torch.tensor([[1.0, 0.9], [-1.0, -0.9]]), rtol=0, atol=0.05)


@pytest.mark.parametrize("partition", ["rotations"])
def test_newcomers_of_a_real_run_are_better_off_at_once(partition):
    config = RunConfig(partition=partition, rounds=15, clients=20).resolved()
    own, average = script("newcomers").measure(config)
    assert own[0] > average[0] + 20


def test_the_protocol_is_as_it_was_first_committed():
    """Amendments stand below it, with their dates: a protocol that changes after results are known is none."""
    page = (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
    section = page[page.index("## The protocol, written before the experiments") : page.index("### Amendments")]
    assert hashlib.sha256(section.strip().encode()).hexdigest() == PROTOCOL
    amendments = re.findall(r"^\| (2026-\d\d-\d\d) \| (\w+)", page, flags=re.MULTILINE)
    assert [commit for _, commit in amendments[:-1]] == [
        "be7777e", "9271963", "fb68c12", "9eb280f", "c8e4d8b", "445a470", "5db5a47",
    ]  # fmt: skip
    assert [date for date, _ in amendments] == sorted(date for date, _ in amendments)


@pytest.mark.parametrize("page", ["beyond.md", "note.md", "algorithms/feddwa_plus.md"])
def test_pages_say_that_the_rule_was_chosen_on_test_accuracy(page):
    words = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    assert re.search(r"[Cc]hosen (on|by) (the )?test accuracy", words)
