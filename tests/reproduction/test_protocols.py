"""The benchmarks of other libraries: what they ask for, what they published, and that they run."""

import json
from pathlib import Path

import numpy as np
import pytest

from feddwa import cli
from feddwa.algorithms import ALGORITHMS, title_of
from feddwa.data.catalogue import DATASETS
from feddwa.errors import InputError
from feddwa.results.store import Store
from feddwa_reproduction import page, specs
from feddwa_reproduction.grid import Row
from feddwa_reproduction.reproduce import plan
from feddwa_reproduction.summary import summarise
from tests.reproduction.made import put

ROOT = Path(__file__).parents[2]
RECIPES = {  # facts of the three libraries, written down once more
    "pfllib": {
        "clients": 20,
        "participation": 1.0,
        "batch_size": 10,
        "lr": 0.005,
        "epochs": 1,
        "rounds": 2000,
        "eval_every": 1,
        "drop_last": True,
    },
    "pfl-cifar10": {
        "clients": 1000,
        "participation": 0.05,
        "batch_size": 10,
        "lr": 0.1,
        "epochs": 1,
        "eval": "central",
        "eval_every": 10,
        "drop_last": False,
    },
    "fl-bench": {"clients": 100, "participation": 0.1, "batch_size": 32, "lr": 0.01, "epochs": 5, "rounds": 100},
}
MODELS = {"pfllib": "fedavg-cnn", "pfl-cifar10": "conv-dropout", "fl-bench": "lenet5"}


@pytest.mark.parametrize("name", specs.protocols())
def test_every_cell_is_the_librarys_recipe(name):
    each = specs.protocols()[name]
    assert each.kind == "protocol"
    for column, row in each.cells():
        config = each.config(column, row).resolved()
        assert column.dataset in DATASETS
        assert config.model == MODELS[name]
        assert {key: getattr(config, key) for key in RECIPES[name]} == RECIPES[name]
        each.config(column, row, "smoke").resolved()


def test_the_partitions_are_the_librarys():
    def param(protocol, column):
        each = specs.protocol(protocol, [column])
        (chosen,) = [found for found in each.columns if found.name == column]
        config = each.config(chosen, Row("local")).resolved()
        return config.partition, config.partition_parameters()

    usual = {"alpha": "0.1", "min_samples": "40", "balance": "True", "test_share": "0.25"}
    assert param("pfllib", "fashion-mnist/dirichlet") == ("dirichlet", usual)
    scheme, pathological = param("pfllib", "cifar100/pathological")
    assert (scheme, pathological["classes_per_client"], pathological["balance"]) == ("class-blocks", "10", "False")
    assert param("pfllib", "fashion-mnist/pathological")[1]["classes_per_client"] == "2"
    assert param("pfllib", "tiny-imagenet-32/pathological")[1]["classes_per_client"] == "20"
    assert param("pfl-cifar10", "cifar10/iid") == ("iid", {})
    assert param("pfl-cifar10", "cifar10/dirichlet") == ("dirichlet-clients", {"alpha": "0.1"})
    loose = {**usual, "min_samples": "10", "balance": "False"}
    assert param("fl-bench", "mnist/dirichlet") == ("dirichlet", loose)


def test_pfl_researchs_users_train_longer_where_they_differ():
    each = specs.protocol("pfl-cifar10")
    rounds = {column.setting: each.config(column, Row("fedavg")).rounds for column in each.columns}
    assert rounds == {"iid": 1500, "dirichlet": 3000}


def test_pfllibs_leaderboard_is_there_with_its_sums():
    each = specs.protocol("pfllib")
    printed = [column for column in each.columns if column.numbers == column.name]
    for column, total in zip(printed, (1929.59, 1192.83, 688.51, 1910.78, 984.71, 642.90), strict=True):
        numbers = [number for row in each.lines if (number := each.number(column, row)) is not None]
        assert len(numbers) == 20
        assert sum(numbers) == pytest.approx(total)
    dirichlet = next(column for column in printed if column.name == "cifar100/dirichlet")
    assert [each.number(dirichlet, Row(name)) for name in ("fedavg", "perfedavg", "fedrod")] == [31.89, 44.28, 50.94]
    small = next(column for column in each.columns if column.name == "tiny-imagenet-32/dirichlet")
    assert each.number(small, Row("fedamp")) == 27.99  # beside it, and told as not like for like


def test_who_is_here_has_a_row_and_the_rest_a_name():
    each = specs.protocol("pfllib")
    titles = {title_of(name).lower() for name in ALGORITHMS}
    assert not {row.name.lower() for row in each.others} & titles
    assert {"FedGen", "APPLE"} <= {row.label for row in each.others}
    assert [row.label.lower() for row in each.lines][-20:] == [
        "fedavg", "fedprox", "fedgen", "per-fedavg", "pfedme", "ditto", "apfl", "fedfomo", "fedamp", "apple", "fedala",
        "fedper", "fedrep", "fedrod", "fedbabu", "fedcp", "gpfl", "feddbe", "feddistill", "fedproto",
    ]  # fmt: skip


def test_any_dataset_and_any_method_can_be_asked_for():
    each = specs.protocol("pfllib", ["emnist-balanced/dirichlet"], ["fedavgm"])
    (column,) = each.select(["emnist-balanced/dirichlet"]).columns
    assert each.config(column, Row("fedavgm")).resolved().dataset == "emnist-balanced"
    assert each.number(column, Row("fedavg")) is None


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = cli.main(["reproduce", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("pfllib", ("fashion-mnist/pathological", "emnist/dirichlet")),
        ("pfl-cifar10", ("cifar10/iid", "cifar10/dirichlet")),
        ("fl-bench", ("mnist/dirichlet",)),
    ],
)
def test_a_smoke_run_of_every_protocol(call, tmp_path, name, columns):
    options = ("--protocol", name, "--scale", "smoke", "--columns", *columns, "--methods", "fedprox", "fedavg")
    status, out, err = call(*options)
    assert (status, err) == (0, "")
    assert "Smoke scale" in out
    each = specs.protocol(name, columns)
    lines = [json.loads(line) for line in (tmp_path / "runs" / "smoke" / "digits.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * len(columns)
    assert all(each.measure in line["series"] for line in lines)
    (column,) = each.select(columns[:1]).columns
    summary = summarise(each, column, Row("fedavg"), Store(Path("runs/smoke")), "smoke")
    (own,) = [record.series[each.measure] for record in summary.records.values()]
    assert summary.measured.mean == (own[-1] if each.reported == "last" else np.nanmax(own))
    assert f"{summary.measured.mean:.2f}" in out
    assert f"0 of {2 * len(columns)} runs missing" in call(*options, "--dry-run")[1]


def test_results_without_the_measured_series_are_run_again(tmp_path):
    """A table of the paper may have run the same cell, and published other series of it."""
    each, store = specs.protocol("pfllib").select(["fashion-mnist/dirichlet"], ["fedavg"]), Store(tmp_path)
    (column,), (row,) = each.columns, each.rows
    found = put(store, each, column, row, 0, [50.0, 60.0])
    assert summarise(each, column, row, store) is None
    assert plan(each, store)[0].missing == (0, 1, 2)
    store.save({**found, "series": {**found["series"], "before.all_weighted": [10.0, 71.0, 65.0]}})
    assert summarise(each, column, row, store).measured.mean == 71.0
    assert plan(each, store)[0].missing == (1, 2)


def test_ours_stand_beside_the_published_numbers(tmp_path):
    each, store = specs.protocol("pfllib"), Store(tmp_path)
    (column,) = each.select(["fashion-mnist/dirichlet"]).columns
    found = put(store, each, column, Row("fedavg"), 0, [50.0, 60.0])
    store.save({**found, "series": {**found["series"], "before.all_weighted": [10.0, 84.0, 83.0]}})
    (tmp_path / "protocols.md").write_text("<!-- table: pfllib -->\nold\n<!-- end -->\n")
    page.fill(tmp_path / "protocols.md", specs.protocols(), store)
    text = (tmp_path / "protocols.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| FedAvg |")]
    assert any("84.00 / 85.85" in row for row in rows)
    assert any("| / 80.41 |" in row for row in rows)
    assert any(line.startswith("| GPFL |") and "/ 97.81" in line for line in text.splitlines())
    assert "old" not in text
    assert "emnist-letters" not in text  # neither run nor published


def test_the_page_is_what_the_results_give(tmp_path):
    (tmp_path / "protocols.md").write_text((ROOT / "docs" / "protocols.md").read_text())
    page.fill(tmp_path / "protocols.md", specs.protocols(), Store(ROOT / "results"))
    assert (tmp_path / "protocols.md").read_text() == (ROOT / "docs" / "protocols.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--protocol", "pflib"), "--protocol: unknown name 'pflib'; valid: fl-bench, pfl-cifar10, pfllib"),
        (("--protocol", "pfllib", "table1"), "NAME: got 'table1', must be left out, or clusterfl-norms, with"),
        (("--protocol", "pfllib", "--spec", "x.toml"), "--spec: got 'x.toml', must be left out with --protocol"),
        (("--protocol", "pfllib", "--columns", "digits/iid"),
         "--protocol: [pfllib] columns: unknown name 'digits/iid'; valid: DATASET/dirichlet, DATASET/pathological"),
        (("--protocol", "pfllib", "--methods", "sgd"), "--algorithm: unknown name 'sgd'; valid: local, "),
    ],
)  # fmt: skip
def test_bad_requests_are_one_line(call, arguments, complaint):
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"feddwa: {complaint}")


def test_an_unknown_key_of_an_entry_is_told(tmp_path):
    (tmp_path / "own.toml").write_text('[mine]\ntitle = "x"\ncolumns = []\nrows = ["local"]\nronuds = 3\n')
    with pytest.raises(InputError, match=r"\[mine\] key: unknown name 'ronuds'; valid: kind, .*rounds"):
        specs.read_spec(tmp_path / "own.toml")
