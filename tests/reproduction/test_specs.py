"""The specifications hold the paper's numbers, and ask for runs that exist."""

import itertools

import pytest

from feddwa.algorithms import ALGORITHMS
from feddwa.data.catalogue import defaults_of
from feddwa.errors import InputError
from feddwa.results.content import cell_name
from feddwa_reproduction import grid, specs

EXPERIMENTS = specs.paper()
TRAINED = {name: each for name, each in EXPERIMENTS.items() if each.trains}
FOURTEEN = [
    "local", "fedavg", "fedprox", "fedavgm", "fedavg_ft", "sfl", "perfedavg", "pfedme", "clusterfl", "fedrod", "fedamp",
    "fedfomo", "l2c", "feddwa",
]  # fmt: skip


def test_every_table_and_figure_is_there():
    assert set(EXPERIMENTS) == {
        "table1", "table2", "communication", "flops", "guidance-choice", "guidance-vs-personal", "figure-similarity",
        "figure-k", "figure-guidance-epochs", "heatmaps", "curves", "toy", "seed-spread",
    }  # fmt: skip
    assert list(specs.methods()) == FOURTEEN


def test_every_number_of_the_paper_is_there():
    """As many as are printed, with the printed columns' sums; and single numbers."""
    counts = {name: len(each.published) for name, each in EXPERIMENTS.items() if each.published}
    expected = {"table1": 14 * 9, "table2": 13 * 4, "guidance-choice": 4, "guidance-vs-personal": 16}
    assert counts == {**expected, "communication": 24, "flops": 5}
    table1, table2 = EXPERIMENTS["table1"].published, EXPERIMENTS["table2"].published
    columns = {}
    for (column, _), value in [*table1.items(), *table2.items()]:
        columns[column] = round(columns.get(column, 0) + value, 2)
    assert columns == SUMS
    assert table1["cifar10/pathological", "feddwa"] == 92.97
    assert table1["cifar10/practical1", "feddwa"] == 78.09
    assert (table1["cifar10/pathological", "fedavg"], table1["cifar10/practical1", "fedavg"]) == (59.97, 71.57)
    assert (table1["cifar10/pathological", "local"], table1["cifar10/practical1", "local"]) == (92.35, 72.12)
    assert table2["tiny-imagenet-32/practical2", "fedfomo"] == 32.33


SUMS = {  # of the columns, taken from the printed tables
    "emnist/pathological": 1218.86,
    "cifar10/pathological": 1138.09,
    "cifar100/pathological": 850.33,
    "cinic10/pathological": 1072.6,
    "tiny-imagenet-32/pathological": 497.62,
    "cifar10/practical1": 1033.77,
    "cifar100/practical1": 630.54,
    "cinic10/practical1": 866.52,
    "tiny-imagenet-32/practical1": 233.94,
    "cifar10/practical2": 1002.49,
    "cifar100/practical2": 527.64,
    "cinic10/practical2": 911.09,
    "tiny-imagenet-32/practical2": 224.75,
}


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_every_cell_is_a_valid_run(name, scale):
    each = TRAINED[name]
    for column, row in each.cells():
        config = each.config(column, row, scale).resolved()
        assert config.algorithm in FOURTEEN
        if scale == "paper":
            assert config.rounds == each.rounds
            assert config.dataset == column.dataset
            assert (config.batch_size, config.lr, config.epochs) == (20, 0.01, 1)


def test_the_settings_are_the_papers():
    table1, table2 = EXPERIMENTS["table1"], EXPERIMENTS["table2"]
    feddwa = next(row for row in table1.rows if row.name == "feddwa")
    for column in table1.columns:
        config = table1.config(column, feddwa).resolved()
        assert (config.clients, config.participation, config.rounds) == (20, 1.0, 100)
        assert "feddwa.top_k=5" in config.param
        assert "feddwa.guidance_epochs=1" in config.param
    for column in table2.columns:
        config = table2.config(column, feddwa).resolved()
        assert (config.clients, config.participation, config.rounds) == (100, 0.2, 100)
        assert f"dirichlet.alpha={0.1 if column.name.endswith('0.1') else 0.07}" in config.param
    assert EXPERIMENTS["guidance-vs-personal"].rounds == 150
    assert table2.number(table2.columns[-1], feddwa) == 91.81  # alpha 0.1 stands beside the paper's only number


def test_experiments_share_their_cells():
    configs = {
        name: set(grid.unique_cells((each, column, row) for column, row in each.cells()))
        for name, each in TRAINED.items()
    }
    assert configs["figure-similarity"] <= configs["table1"]
    assert configs["curves"] <= configs["table1"]
    assert configs["figure-k"] & configs["table2"]  # K = 5 is the default
    assert len(configs["guidance-vs-personal"]) == 8  # two readings of one run each


def test_what_matters_most_is_run_first():
    first = [(column.name, row.name) for column, row in EXPERIMENTS["table1"].cells()][:8]
    methods = ["feddwa", "local", "fedavg", "fedavg_ft"]
    assert first == [(f"cifar10/{setting}", m) for m in methods for setting in ("pathological", "practical1")]
    datasets = [column.dataset for column, _ in EXPERIMENTS["table1"].cells()]
    assert list(dict.fromkeys(datasets)) == list(grid.DATASET_ORDER)  # every dataset is loaded once
    assert len(list(itertools.groupby(datasets))) == len(grid.DATASET_ORDER)


def test_a_part_can_be_chosen_and_wrong_names_are_told():
    table = specs.experiment("table1").select(["cifar10/practical1"], ["feddwa", "local"])
    assert len(table.cells()) == 2
    with pytest.raises(InputError, match="--columns: unknown name 'mnist'; valid: emnist/pathological, "):
        specs.experiment("table1").select(["mnist"])
    with pytest.raises(InputError, match="--methods: unknown name 'x'"):
        specs.experiment("table1").select([], ["x"])
    with pytest.raises(InputError, match="reproduce: unknown name 'table9'; valid: table1, "):
        specs.experiment("table9")


def test_every_method_has_a_title():
    assert all(ALGORITHMS[name].title == title for name, title in specs.methods().items())


def test_what_stands_behind_a_method_is_its_own_or_the_runs():
    each = specs.experiment("federation")
    column = each.columns[0]
    config = each.config(column, grid.Row("feddwa clients=100 participation=0.5 rounds=7 top_k=20")).resolved()
    assert (config.clients, config.participation, config.rounds) == (100, 0.5, 7)
    assert "feddwa.top_k=20" in config.param
    tuned = each.config(column, grid.Row("clusterfl batchnorm=mean")).resolved()
    assert (tuned.batchnorm, "clusterfl.eps2=0.72" in tuned.param) == ("mean", True)


@pytest.mark.parametrize("name", specs.beyond())
def test_every_cell_beyond_the_paper_is_a_valid_run(name):
    each = specs.beyond()[name]
    for column, row in each.cells():
        config = each.config(column, row).resolved()
        config.make_algorithm()
        assert not each.untuned(column, row)
        own = row.name.rpartition("rounds=")[2] if "rounds=" in row.name else defaults_of(column.dataset).rounds
        assert config.rounds == int(own)


def test_at_smoke_scale_digits_stand_for_data_with_owners():
    each = specs.experiment("natural")
    small = [each.config(column, each.rows[0], "smoke").resolved() for column in each.columns]
    assert {(config.dataset, config.partition, config.model_arg) for config in small} == {("digits", "iid", ())}


def test_both_files_ask_for_the_same_run_where_they_mean_the_same():
    """Tolerances of ClusterFL stand in both: a difference would make two cells of one."""
    own = specs.experiment("methods-cifar10")
    columns = {column.setting: column for column in own.columns}
    for name, setting in (("table1", "pathological"), ("table1", "practical1"), ("table2", "practical2")):
        table = specs.experiment(name)
        (theirs,) = [column for column in table.columns if column.name == f"cifar10/{setting}"]
        for row in table.rows:
            ours = own.config(columns[{"practical1": "groups"}.get(setting, setting)], row)
            assert cell_name(ours) == cell_name(table.config(theirs, row))


SPEC = """
[settings.even]
partition = "iid"
clients = 4

[tuned]
"digits/even" = { fedprox = ["mu=0.5"] }

[first]
title = "One"
columns = ["digits/even"]
rows = ["local", "fedprox", "fedavg participation=0.5"]
rounds = 2
seeds = [7, 9]

[second]
like = "first"
kind = "accuracy"
seeds = 1
labels.fedprox = "with a pull"
"""


def test_an_entry_may_be_like_another(tmp_path):
    (tmp_path / "own.toml").write_text(SPEC)
    first, second = specs.read_spec(tmp_path / "own.toml").values()
    assert [column.seeds for each in (first, second) for column in each.columns] == [(7, 9), (0,)]
    assert (first.kind, second.kind, second.rounds) == ("table", "accuracy", 2)
    assert [row.label for row in second.rows] == ["Local", "with a pull", "FedAvg participation=0.5"]
    assert "fedprox.mu=0.5" in first.config(first.columns[0], first.rows[1]).resolved().param
    assert first.config(first.columns[0], first.rows[2]).resolved().participation == 0.5
    assert [first.select(seeds=count).columns[0].seeds for count in (1, 2, 4)] == [(7,), (7, 9), (7, 9, 10, 11)]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('kind = "accuracy"', 'kind = "acuracy"', "[second] kind: unknown name 'acuracy'; valid: table, "),
        ('like = "first"', 'like = "fist"', "[second] like: unknown name 'fist'; valid: first"),
        ('like = "first"', 'like = "second"', "[second] like: unknown name 'second'; valid: first"),
        ('"fedprox",', '"fedprox mu",', "[first] rows: got 'fedprox mu', must be METHOD KEY=VALUE ..., which 'mu' is"),
        ('["digits/even"]', '["digits/odd"]', "[first] columns: unknown name 'digits/odd'; valid: DATASET/even"),
        ('title = "One"', "", "must be a table with title"),
    ],
)
def test_a_wrong_entry_is_told_in_one_line(old, new, complaint, tmp_path):
    (tmp_path / "own.toml").write_text(SPEC.replace(old, new, 1))
    with pytest.raises(InputError) as told:
        specs.read_spec(tmp_path / "own.toml")
    assert complaint in str(told.value)
    assert "\n" not in str(told.value)
