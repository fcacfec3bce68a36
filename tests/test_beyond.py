"""FedDWA+'s weights, the page that reports on them, and clients that join later."""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.mixing import agreement_weights, mix, mix_groups, parameter_groups
from feddwa.paper.store import Store

ROOT = Path(__file__).parents[1]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (5, 5), elements=st.floats(-1, 1)), st.floats(0.5, 6))
def test_weights_are_shares_and_nobody_counts_more_than_oneself(agreement, power):
    weights = agreement_weights(torch.as_tensor(agreement), power)
    torch.testing.assert_close(weights.sum(1), torch.ones(5, dtype=torch.float64))
    assert (weights >= 0).all()
    assert (weights.diagonal() >= weights.amax(1) - 1e-12).all()
    disagree = torch.as_tensor(agreement <= 0) & ~torch.eye(5, dtype=torch.bool)
    assert (weights[disagree] == 0).all()


def test_who_agrees_with_nobody_is_alone():
    agreement = torch.tensor([[-0.2, -0.1, -0.3], [0.0, 0.5, 0.5], [0.2, 0.4, 0.1]], dtype=torch.float64)
    weights = agreement_weights(agreement, 2.0)
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


def test_the_tables_of_the_page_are_those_of_the_results(tmp_path, monkeypatch):
    beyond = script("beyond")
    page = tmp_path / "beyond.md"
    text = (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    monkeypatch.setattr(beyond, "PAGE", page)
    beyond.write_page(Store(ROOT / "results"))
    assert page.read_text(encoding="utf-8") == text


def test_without_results_the_page_has_empty_tables(tmp_path, monkeypatch):
    beyond = script("beyond")
    page = tmp_path / "beyond.md"
    page.write_text((ROOT / "docs" / "beyond.md").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(beyond, "PAGE", page)
    beyond.write_page(Store(tmp_path / "nothing"))
    assert "| FedRoD | - | - | - | - | - | - |" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("share", "rounds"), [(2 / 3, 66), (0.5, 50), (0.99999, 100), (0.99, 99), (1e12, 100)])
def test_equal_cost_ends_a_curve_at_the_last_round_within_it(share, rounds):
    records = {seed: {"series": {"all": [seed + number for number in range(101)]}} for seed in (0, 1)}
    assert script("beyond")._within(records, share) == f"{rounds + 0.5:.1f}, {rounds}"


def test_what_stands_behind_a_method_is_its_own_or_the_runs():
    beyond = script("beyond")
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
    assert capsys.readouterr().out == f"digits rotations: eps2={beyond.EPS2['digits']['rotations']}\n"


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
