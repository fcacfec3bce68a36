"""New samples in the form of the training data, and what the trained models say about them."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feddwa
from feddwa import cli
from feddwa.build import load_task
from feddwa.results import runs
from tests.test_trained_models import TINY, test_samples


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Run a command: (status, output, errors)."""

    def run(*words):
        status = cli.main(list(map(str, words)))
        return (status, *capsys.readouterr())

    return run


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


WARDS = ("north", "south", "01")


def wards(count, seed=0):
    """Lines of a table: two numbers on very different scales and a colour decide between `sick` and `well`."""
    rng = np.random.default_rng(seed)
    lines = ["age,ward,colour,pressure,state"]
    for place in range(count):
        age, pressure, red = rng.normal(50, 10), rng.normal(12000, 1000), rng.random() < 0.5
        sick = (age - 50) / 10 + (pressure - 12000) / 1000 + (1 if red else -1) > 0
        lines.append(
            f"{age:.2f},{WARDS[place % 3]},{'red' if red else 'blue'},{pressure:.1f},{'sick' if sick else 'well'}"
        )
    return lines


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A run on a CSV file with owners, text columns and features of unequal scale; the file is gone afterwards."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "wards.csv").write_text("\n".join(wards(240)) + "\n")
    options = {"label": "state", "client": "ward", "model": "mlp", "rounds": 8, "lr": 0.1, "batch_size": 8}
    result = feddwa.run(dataset=str(folder / "wards.csv"), out=str(folder / "run"), device="cpu", **options)
    assert result.summary["accuracy"]["last"] > 80
    data = load_task(runs.read_config(folder / "run").resolved())
    (folder / "wards.csv").unlink()
    return folder / "run", data


def test_a_table_of_new_rows(tables, call):
    Path("new.csv").write_text("\n".join(wards(60, seed=1)) + "\n")
    status, out, err = call("predict", tables[0], "new.csv", "--client", "south")
    found = rows_of(out)
    assert status == 0
    assert [row["sample"] for row in found[:2]] == ["new.csv row 1", "new.csv row 2"]
    assert {row["client"] for row in found} == {"south"}
    assert {row["class"] for row in found} == {"sick", "well"}
    assert all(0.5 <= float(row["probability"]) <= 1 for row in found)
    right = 100 * np.mean([row["class"] == row["label"] for row in found])
    assert right > 75
    assert err == f"accuracy: {right:.4g} % of 60 samples with labels\n"


def test_each_row_by_its_own_clients_model(tables, call):
    lines = wards(30, seed=2)
    Path("new.csv").write_text("\n".join(lines) + "\n")
    status, out, _ = call("predict", tables[0], "new.csv", "-o", "answers.csv")
    assert (status, out) == (0, "wrote answers.csv: 30 samples\n")
    found = rows_of(Path("answers.csv").read_text())
    assert [row["client"] for row in found] == [line.split(",")[1] for line in lines[1:]]  # "01" stays "01"
    alone = rows_of(call("predict", tables[0], "new.csv", "--client", "01")[1])
    assert [row for row in alone if row["sample"].endswith("row 3")] == [row for row in found if row["client"] == "01"][
        :1
    ]


def test_columns_in_another_order_and_without_labels(tables, call):
    full = [line.split(",") for line in wards(12, seed=3)]
    Path("new.csv").write_text("\n".join(",".join(line) for line in full) + "\n")
    Path("bare.csv").write_text("\n".join(",".join((line[3], line[2], line[0])) for line in full) + "\n")
    answers = [rows_of(call("predict", tables[0], name, "--client", "north")[1]) for name in ("new.csv", "bare.csv")]
    assert [row["class"] for row in answers[0]] == [row["class"] for row in answers[1]]
    assert "label" not in answers[1][0]


def test_the_test_rows_of_the_run_give_the_evaluated_accuracy(tables):
    path, data = tables
    trained = runs.read_models(path)
    for client, rows in enumerate(data.partition.test):
        scores = feddwa.trained.export.predict(trained, client, data.dataset.x[rows])
        right = 100 * (scores.argmax(1).numpy() == data.dataset.y[rows]).mean()
        assert right == pytest.approx(trained.card.accuracy[client], abs=1e-9)


@pytest.mark.parametrize(
    ("lines", "client", "told"),
    [
        (["age,colour", "50,red"], "north", r"new\.csv.*pressure"),
        (["age,colour,pressure,height", "50,red,12000,3"], "north", r"new\.csv.*height"),
        (["age,colour,pressure", "fifty,red,12000"], "north", r"new\.csv.*age"),
        (["age,colour,pressure", "50,red,12000"], "nobody", r"--client 'nobody': no such client; there are 01, north"),
        (["age,colour,pressure", "50,red,12000"], None, "--client: must be given, because the data do not tell whose"),
        (["age,colour,pressure,ward", "50,red,12000,west"], None, "new.csv row 1: client 'west' was not in the run"),
        (["age,colour,pressure,state", "50,red,12000,odd"], "north", "label 'odd' is not among the classes sick, well"),
        (["age,colour,pressure"], "north", r"new\.csv"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_one_line(tables, call, lines, client, told):
    Path("new.csv").write_text("\n".join(lines) + "\n")
    chosen = [] if client is None else ["--client", client]
    status, out, err = call("predict", tables[0], "new.csv", "-o", "answers.csv", *chosen)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.search(told, err), err
    assert not Path("answers.csv").exists()


def test_what_is_filled_in_is_told(tables, call):
    lines = wards(12, seed=4)
    rest = lines[1].partition(",")[2]
    Path("new.csv").write_text("\n".join([lines[0], f",{rest}", *lines[2:], "50,north,green,12000,sick"]) + "\n")
    status, _, err = call("predict", tables[0], "new.csv", "-o", "answers.csv")
    assert status == 0
    filled, new, _ = err.splitlines()
    assert filled == "new.csv: missing values filled in, in columns 'age' (1)"
    assert new.startswith("new.csv: column 'colour': 1 row with a value that no training row has ('green')")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A run on a folder of images, <client>/<class>/<image>."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(48):
        paint(folder / "data" / ("anna", "bob")[number % 2] / ("dark", "light")[number // 2 % 2], number)
    options = {"model": "mlp", "rounds": 20, "batch_size": 6, "lr": 0.05, "resize": "9", "device": "cpu"}
    feddwa.run(dataset=str(folder / "data"), out=str(folder / "run"), **options)
    return folder / "run"


def paint(folder, number, size=12):
    folder.mkdir(parents=True, exist_ok=True)
    level = 60 if folder.name == "dark" else 190
    pixels = np.random.default_rng(number).integers(level - 30, level + 30, (size, size), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"{number}.png")


def test_a_folder_of_images(pictures, call):
    for number in range(6):
        paint(Path("new") / ("dark", "light")[number % 2], number + 100, size=9 + number)
    status, out, err = call("predict", pictures, "new", "--client", "bob")
    assert (status, err) == (0, "accuracy: 100 % of 6 samples with labels\n")
    assert {row["sample"]: row["class"] for row in rows_of(out)} == {
        f"{name}/{100 + number}.png": name for number in range(6) for name in [("dark", "light")[number % 2]]
    }


def test_one_image_and_images_in_the_folders_of_clients(pictures, call):
    paint(Path("light"), 7)
    found = rows_of(call("predict", pictures, "light/7.png", "--client", "anna")[1])
    assert [(row["sample"], row["class"]) for row in found] == [("7.png", "light")]
    for client in ("anna", "bob"):
        paint(Path("both") / client / "dark", 8)
    found = rows_of(call("predict", pictures, "both")[1])
    assert [(row["client"], row["class"]) for row in found] == [("anna", "dark"), ("bob", "dark")]


def test_broken_or_missing_images_are_named(pictures, call):
    Path("new").mkdir()
    Path("new/a.png").write_bytes(b"no image")
    for path, told in (("new", "new/a.png"), ("nowhere", "nowhere: no such file or folder")):
        status, _, err = call("predict", pictures, path, "--client", "anna")
        assert (status, err.count("\n")) == (2, 1)
        assert told in err


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "run"
    feddwa.run(out=str(path), **TINY)
    return path


def test_arrays_for_a_named_dataset(digits, call):
    x, y = test_samples(digits)[2]
    np.savez("new.npz", x=x, y=y)
    status, _, err = call("predict", digits, "new.npz", "--client", "2")
    accuracy = runs.read_models(digits).card.accuracy[2]
    assert (status, err) == (0, f"accuracy: {accuracy:.4g} % of {len(x)} samples with labels\n")
    np.savez("new.npz", x=x[:2], client=np.array([1.0, 3.0]))
    assert [row["client"] for row in rows_of(call("predict", digits, "new.npz")[1])] == ["1", "3"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"x": np.zeros((2, 8, 8), np.float32)}, r"new.npz: samples: got \(2, 8, 8\), must be of shape \(n, 1, 8, 8\)"),
        ({"x": np.full((2, 1, 8, 8), np.nan, np.float32)}, "got 'NaN or infinity', must be finite numbers"),
        ({"z": np.zeros(2)}, "must hold x, and may hold y and client; it has 'z'"),
        ({"x": np.zeros((2, 1, 8, 8)), "y": np.zeros(3)}, "y: got 3, must be as many as there are samples in x, 2"),
        ({"x": np.zeros((2, 1, 8, 8)), "y": np.array([1, 11])}, "row 2: label 11 is not among the classes 0, 1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(digits, call, content, told):
    np.savez("new.npz", **content)
    status, out, err = call("predict", digits, "new.npz", "--client", "2")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.search(told, err), err
    Path("new.npz").write_bytes(b"PK")
    assert "not a readable .npz file" in call("predict", digits, "new.npz", "--client", "2")[2]
    assert "an .npz file with x" in call("predict", digits, digits, "--client", "2")[2]
