"""FedDWA+'s weights, the page that reports on them, and clients that join later."""

import argparse
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
from feddwa.mixing import mix, mix_groups, parameter_groups
from feddwa.paper.store import Store
from feddwa.paper.store import settings as stored

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


def test_the_tables_and_the_figure_of_the_page_are_those_of_the_results(tmp_path):
    beyond = script("beyond_page")
    page = tmp_path / "beyond.md"
    text = (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    beyond.write_page(Store(ROOT / "results"), page)
    assert page.read_text(encoding="utf-8") == text
    assert (tmp_path / beyond.FIGURE).read_bytes() == (ROOT / "docs" / beyond.FIGURE).read_bytes()


def test_without_results_the_page_has_empty_tables(tmp_path):
    page = tmp_path / "beyond.md"
    page.write_text((ROOT / "docs" / "beyond.md").read_text(encoding="utf-8"), encoding="utf-8")
    script("beyond_page").write_page(Store(tmp_path / "nothing"), page)
    assert "| FedRoD | - | - | - | - | - | - |" in page.read_text(encoding="utf-8")


def put(store, setting, method, seed, values, **more):
    """A result of digits with these accuracies round by round."""
    config = script("beyond_cells").config_of("digits", setting, method)
    series = {"all": list(values), "paper": list(values[:-1]), "after": [value + 5 for value in values[:-1]]}
    cost = {"bytes_up": 1, "bytes_down": 1, "flops": 1}
    store.save(config, {"seed": seed, "config": stored(config), "series": series, **cost, "clients": [50.0], **more})


def test_a_cell_that_was_not_run_is_empty(tmp_path):
    """FedAvg after its epoch is not FedAvg_FT: weighted by test samples, and one aggregation behind."""
    page, store = script("beyond_page"), Store(tmp_path)
    for setting in ("groups", "dirichlet"):
        put(store, setting, "fedavg", 0, [10.0, 20.0, 30.0])
        put(store, setting, "feddwa_plus", 0, [10.0, 20.0, 31.0])
    for made in (page._table, page._equal_bytes, page._equal_flops):
        table = made(store, "digits", [0])
        assert "FedAvg_FT | -" in table or "FedAvg_FT" not in table
        assert "35" not in table
        assert "25" not in table


def test_leads_come_with_paired_intervals(tmp_path):
    store = Store(tmp_path)
    for seed, (ours, rival) in enumerate([(90.0, 89.0), (91.0, 89.5), (92.0, 91.5)]):
        put(store, "groups", "feddwa_plus", seed, [0.0, ours])
        put(store, "groups", "fedrod", seed, [0.0, rival])
        put(store, "groups", "local", seed, [0.0, ours - 5 - seed / 10])
    *_, row = script("beyond_page")._paired(store, "digits", [0, 1, 2, 3]).splitlines()
    lead = "+1.00 (-0.24 to +2.24)"  # 1.0, 1.5 and 0.5: a standard deviation of 0.5, times 4.303 / sqrt(3)
    assert row == f"| groups | 1 of 3 | FedRoD | {lead} | - | **+5.10 (+4.85 to +5.35)** | 3 |"


def test_the_weight_inside_groups_is_told_by_round(tmp_path):
    store, page = Store(tmp_path), script("beyond_page")
    put(store, "groups", "feddwa_plus", 0, [0.0], mass=[0.9, 0.8, 0.7, 0.6, 0.5])
    put(store, "groups", "feddwa_plus", 1, [0.0], mass=[0.7, 0.8, 0.7, 0.6, 0.3])
    *_, row = page._inside(store, "feddwa_plus", [0, 1]).splitlines()
    assert row.startswith("| digits, groups | 0.80 | 0.80 | 0.40 | |")
    page.draw_inside(store, tmp_path / "one.svg", [0, 1])
    page.draw_inside(store, tmp_path / "two.svg", [0, 1])
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(("share", "rounds"), [(2 / 3, 66), (0.5, 50), (0.99999, 100), (0.99, 99), (1e12, 100)])
def test_equal_cost_ends_a_curve_at_the_last_round_within_it(share, rounds):
    records = {seed: {"series": {"all": [seed + number for number in range(101)]}} for seed in (0, 1)}
    assert script("beyond_page")._within(records, share) == f"{rounds + 0.5:.1f}, {rounds}"


def test_what_stands_behind_a_method_is_its_own_or_the_runs():
    beyond = script("beyond_cells")
    config = beyond.config_of("cifar10", "groups", "feddwa clients=100 participation=0.5 rounds=7 top_k=20")
    assert (config.clients, config.participation, config.rounds) == (100, 0.5, 7)
    assert "feddwa.top_k=20" in config.param
    tuned = beyond.config_of("cifar10", "groups", "clusterfl batchnorm=mean")
    assert (tuned.batchnorm, "clusterfl.eps2=0.72" in tuned.param) == ("mean", True)
    with pytest.raises(InputError, match="'top_k' behind feddwa is not of the form KEY=VALUE"):
        beyond.config_of("cifar10", "groups", "feddwa top_k")
    for name in beyond.ABLATIONS:
        for chosen in beyond.cells(argparse.Namespace(ablations=[name], settings=[])):
            chosen.make_algorithm()


def test_the_tolerances_of_clusterfl_are_what_the_rule_gives(capsys):
    beyond = script("beyond")
    here = {"data_dir": None, "device": "cpu", "dtype": "float32"}
    beyond.print_tolerances(argparse.Namespace(dataset=["digits"], settings=["rotations"], **here))
    assert capsys.readouterr().out == f"digits rotations: eps2={script('beyond_cells').EPS2['digits']['rotations']}\n"


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
