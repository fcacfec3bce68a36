"""Groups of algorithms, and comparisons by group."""

import pytest

from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.errors import InputError
from feddwa.groups import by_kind, expanded, groups
from feddwa.results.record import read

QUICK = ["--rounds", "1", "--clients", "4", "--param", "groups=2", "--quiet", "--out"]


def test_every_algorithm_is_in_one_kind_by_year_and_in_all():
    listed = [name for names in by_kind().values() for name in names]
    assert sorted(listed) == sorted(ALGORITHMS)
    for names in by_kind().values():
        years = [vars(ALGORITHMS[name]).get("year", 0) for name in names]
        assert years == sorted(years)
    assert groups()["all"] == list(ALGORITHMS)


def test_the_papers_methods_are_a_group_into_which_subclasses_are_not_born():
    assert groups()["@paper"] == [name for name, kind in ALGORITHMS.items() if "order" in vars(kind)]
    assert len(groups()["@paper"]) == 14
    assert "feddwa_plus" not in groups()["@paper"]


def test_groups_stand_for_their_names_once():
    names, brought = expanded(["fedprox", "@global", "local"])
    assert names[:2] == ("fedprox", "fedavg")
    assert set(names) == {*groups()["@global"], "local"}
    assert brought == set(groups()["@global"]) - {"fedprox"}
    assert len(expanded(["all", "@paper"])[0]) == len(ALGORITHMS)
    assert expanded(["local", "local"])[0] == ("local", "local")  # which the command refuses
    with pytest.raises(InputError, match="--algorithms: unknown name '@best'; valid: all, @paper, @baseline"):
        expanded(["@best"])


def test_a_comparison_by_group_leaves_out_what_does_not_fit_and_says_so(tmp_path, capsys):
    """Squared errors: no class labels, without which FedRoD cannot be."""
    options = ["--dataset", "digits", "--loss", "mse", *QUICK]
    assert (
        cli.main(["compare", "--algorithms", "@baseline", "@shared-body", *options[:-2], "--out", f"{tmp_path}/a"]) == 0
    )
    told = capsys.readouterr().out
    assert "left out fedrod: algorithm fedrod: needs class labels" in told
    names = {record.config.algorithm for record in read([tmp_path / "a"])}
    assert "local" in names
    assert "fedrod" not in names
    assert '"@' not in (tmp_path / "a/compare.toml").read_text()
    assert cli.main(["compare", "--algorithms", "local", "fedrod", *options, f"{tmp_path}/b"]) == 2
    assert "algorithm fedrod: needs class labels" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()  # before any work
