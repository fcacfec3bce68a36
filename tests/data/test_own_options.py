"""Options of own data in every command: checked before anything is imported, stored, resumed, told."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import feddwa
from feddwa import cli
from feddwa.config import RunConfig
from feddwa.config_file import from_toml, to_toml
from feddwa.data.options import DataOptions
from feddwa.data.sources import load
from feddwa.errors import InputError
from feddwa.flower.settings import FlowerConfig, from_run_config, to_run_config
from feddwa.flower.site import load_site
from feddwa.params import fields_of
from feddwa.report import progress
from feddwa.results.content import cell_name, settings
from tests.data.conftest import refuses

GIVEN = {
    "label": "outcome", "client": "site", "test_column": "part", "time_column": "day", "drop": "id,comment",
    "split": "time", "impute": "mean", "standardise": False, "max_categories": 7, "resize": "64x48",
    "skip_broken": True, "min_samples": 5, "small_clients": "refuse",
}  # fmt: skip


@pytest.fixture
def clinics(tmp_path, monkeypatch):
    """A table with a column of row numbers, a gap, words, and a clinic with a single patient."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{i},{i / 7:.2f},{'uv'[i % 2]},{'sick' if i % 3 else 'well'},clinic-{i % 3}" for i in range(90)]
    Path("clinics.csv").write_text(
        "\n".join(["id,age,sex,outcome,site", *lines, "90,,u,sick,clinic-0", "91,1,u,sick,tiny"])
    )
    return (
        "--dataset",
        "clinics.csv",
        "--label",
        "outcome",
        "--client",
        "site",
        "--impute",
        "mean",
        "--min-samples",
        "2",
    )


def call(capsys, *arguments):
    status = cli.main(list(arguments))
    return status, *capsys.readouterr()


def test_every_option_is_given_somewhere_here():
    assert GIVEN.keys() == fields_of(DataOptions).keys()


@pytest.mark.parametrize("option", GIVEN)
@pytest.mark.parametrize("dataset", ["digits", "cifar10", "examples.spirals:spirals"])
def test_named_datasets_take_none_of_them(option, dataset):
    with pytest.raises(
        InputError, match=f"--{option.replace('_', '-')}: is about own data, and dataset .* leave it out"
    ):
        RunConfig(dataset=dataset, **{option: GIVEN[option]}).checked()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resize": "big"}, "--resize: got 'big', must be of the form 64 or 64x48"),
        ({"min_samples": 0}, "--min-samples: got 0, must be at least 1"),
        ({"max_categories": 0}, "--max-categories: got 0, must be at least 1"),
        ({"small_clients": "drop"}, "--small-clients: says what becomes of clients below --min-samples"),
        ({"split": "random", "time_column": "t"}, "--time-column: orders rows for --split time"),
        ({"split": "first"}, "--split: got 'first', must be one of random, time"),
        ({"impute": "median"}, "--impute: got 'median', must be one of mean, drop"),
        ({"standardise": "yes"}, "--standardise: got 'yes', must be true or false"),
    ],
)
def test_bad_values_are_refused_before_the_data_are_looked_at(options, words):
    with pytest.raises(InputError, match=re.escape(words)):
        RunConfig(dataset="/nowhere.csv", **options).checked()


def test_options_survive_a_file_and_flower(tmp_path):
    given = {key: value for key, value in GIVEN.items() if key not in ("time_column", "split")}
    config = RunConfig(dataset="/srv/own.csv", **given)
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert from_toml(tmp_path / "c.toml", RunConfig) == config
    flower = FlowerConfig(dataset="own", **given)
    assert from_run_config(to_run_config(flower)) == flower


def test_what_is_not_given_is_in_no_name_of_a_result():
    assert not settings(RunConfig()).keys() & GIVEN.keys()
    own = RunConfig(dataset="/srv/own.csv", partition="iid", clients=2)
    assert cell_name(own) != cell_name(RunConfig(dataset="/srv/own.csv", partition="iid", clients=2, impute="drop"))


def test_a_run_tells_what_was_done_to_the_data_and_is_resumed_with_its_options(clinics, capsys):
    status, out, _ = call(capsys, "run", *clinics, "--model", "linear", "--rounds", "1", "--out", "run")
    assert status == 0
    for told in (
        "clinics.csv: column 'id' counts the rows, left out",
        "clinics.csv: missing values filled in, in columns 'age' (1)",
        "clinics.csv: 1 of 4 clients have too few samples, left out: tiny (1)",
        "3 clients (the data's owners: clinic-0, clinic-1, clinic-2)",
    ):
        assert told in out
    stored = from_toml("run/config.toml", RunConfig)
    assert (stored.label, stored.client, stored.impute, stored.min_samples) == ("outcome", "site", "mean", 2)
    assert feddwa.resume("run").partition.client_names == ("clinic-0", "clinic-1", "clinic-2")


@pytest.mark.parametrize("seeds", [None, (0, 1)])
def test_python_is_told_what_the_command_prints(clinics, capsys, caplog, seeds):
    """What was done to the data by a warning, which Python shows; what was chosen by information, on request."""
    status, printed, _ = call(capsys, "run", *clinics, "--rounds", "1", "--out", "shell")
    assert status == 0
    stored = from_toml("shell/config.toml", RunConfig)
    given = {name: getattr(stored, name) for name in ("dataset", "label", "client", "impute", "min_samples")}
    caplog.set_level("INFO", "feddwa")
    feddwa.run(**given, rounds=1, out=False, seeds=seeds)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name.startswith("feddwa")]
    assert [level for level, _ in lines] == ["WARNING"] * 4 + ["INFO"] * 2
    assert printed.splitlines()[:6] == [text for _, text in lines]
    assert lines[-1][1] == "network mlp, batch size 10, rate 0.1 (for features (3,))"


@pytest.mark.parametrize("command", ["partition", "doctor", "compare"])
def test_other_commands_take_them_and_tell_as_well(clinics, capsys, command):
    further = {"compare": ("--algorithms", "local", "--rounds", "1", "--model", "linear", "--out", "c"),
               "doctor": ("--model", "linear", "--rounds", "1"), "partition": ()}[command]  # fmt: skip
    status, out, _ = call(capsys, command, *clinics, *further)
    assert status == 0
    assert "column 'id' counts the rows, left out" in " ".join(out.split())
    assert "clinic-1" in out


def test_quiet_prints_the_directory_alone(clinics, capsys):
    out = call(capsys, "run", *clinics, "--model", "linear", "--rounds", "1", "--out", "run", "--quiet")[1:]
    assert out == ("run\n", "")


def test_a_node_reads_its_own_file_as_the_run_says(clinics):
    config = FlowerConfig(dataset="own", label="outcome", client="site", impute="drop", min_samples=2).resolved()
    site = load_site(config, (("data", str(Path("clinics.csv").absolute())),))
    assert site.task.partition.client_names == ("clinic-0", "clinic-1", "clinic-2")


def test_options_of_arrays(tmp_path):
    x = np.arange(60.0).reshape(30, 2)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(30) % 2, client=["a"] * 20 + ["b"] * 9 + ["c"])
    data = load(str(tmp_path / "own.npz"), None, DataOptions(standardise=True, split="time", min_samples=5))
    assert data.client_names == ("a", "b")
    assert data.x[data.train_count :, 0].tolist() == [32, 34, 36, 38, 54, 56]
    assert data.mean == pytest.approx(tuple(data.x[: data.train_count].mean(axis=0)))
    assert load(str(tmp_path / "own.npz"), None, DataOptions(min_samples=2)).mean == ()
    new = data.form.read(tmp_path / "own.npz")
    assert (new.x.tolist(), new.y.tolist(), new.names[2]) == (x.tolist(), [0, 1] * 15, "row 3")


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ({"x": np.zeros((9, 2))}, {"label": "y"}, "--label: has no effect on"),
        ({"x": np.zeros((9, 2))}, {"resize": "8"}, "--resize: has no effect on"),
        ({"x": np.zeros((9, 2))}, {"min_samples": 2}, "--min-samples:"),
        ({"tokens": np.zeros((9, 2), dtype=int)}, {"standardise": True}, "has token ids; leave it out"),
        ({"x": np.zeros(9)}, {"standardise": True}, "must be a column, (9, 1)"),
        (
            {"x": np.array([[0.0], [1], [np.nan]] * 3)},
            {},
            "own.npz: x has missing or infinite values, the first in row 3",
        ),
    ],
)
def test_arrays_are_refused_in_one_line(tmp_path, content, options, words):
    np.savez(tmp_path / "own.npz", y=np.arange(9) % 2, **content)
    refuses(tmp_path / "own.npz", words, "own.npz", **options)


def test_a_bar_while_images_are_decoded_on_a_terminal_alone(monkeypatch):
    shown = Console(force_terminal=True, width=80, file=io.StringIO(), record=True)
    monkeypatch.setattr(progress, "Console", lambda **_: shown)
    with progress.decoding() as tell:
        tell(3, 10)
    assert "decoding images" in shown.export_text()
    with progress.decoding(quiet=True) as tell:
        tell(3, 10)
    assert "decoding images" not in shown.export_text()


def test_a_folder_of_photos_from_the_shell(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(24):
        path = Path("photos", f"person-{i % 2}", "ab"[i // 2 % 2], f"{i}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)).save(path)
    Path("photos/person-0/a/0.jpg").write_bytes(b"")
    options = ("--dataset", "photos", "--resize", "8", "--skip-broken", "--rounds", "1", "--out", "run")
    status, out, err = call(capsys, "run", *options)
    assert (status, err) == (0, "")
    assert "photos: 23 images of another size scaled to 8x8" in out
    assert "photos: 1 of 24 images cannot be read, left out: person-0/a/0.jpg" in out
    assert "owners: person-0, person-1" in out
