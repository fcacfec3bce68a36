"""The doctor on made-up data, each with one thing wrong: it says so, with a remedy, and is silent about sound data."""

import csv
import re

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

from feddwa import cli, doctor
from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.data.dataset import Dataset
from feddwa.data.partition import Partition
from feddwa.data.task import Task
from feddwa.datacheck import data_findings, leaks, rows

RNG = np.random.default_rng(0)


def found(path, **options):
    """Level -> the texts of the doctor's findings about the data at a path."""
    task = load_task(RunConfig(dataset=str(path), **options).resolved())
    findings = list(data_findings(task))
    return {level: [each.text for each in findings if each.level == level] for level in ("ok", "note", "warning")}


def table(path, columns, labels, **more):
    """A CSV file of named columns."""
    names = [*columns, "label", *more]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*columns.values(), labels, *more.values(), strict=True))
    return path


def features(count=300):
    y = RNG.integers(0, 2, count)
    return {"age": RNG.normal(size=count) + y, "pulse": RNG.normal(size=count)}, y


def smooth_images(count=60, side=16):
    """Colour images of soft blobs, (n, 3, side, side) uint8, and their classes."""
    y = np.arange(count) % 2
    grid = np.linspace(-1, 1, side)
    centre = RNG.uniform(-0.5, 0.5, (count, 3, 2))
    down, across = ((grid - centre[..., i : i + 1]) ** 2 for i in (0, 1))
    blob = np.exp(-2 * down[..., :, None] - 2 * across[..., None, :])
    return (255 * blob * (0.5 + 0.5 * y[:, None, None, None])).astype(np.uint8), y


def test_what_there_is_is_told(tmp_path):
    columns, y = features(600)
    owners = np.where(np.arange(600) < 300, "hospital-a", "hospital-b")
    seen = found(table(tmp_path / "a.csv", columns, y, client=owners))
    assert seen["warning"] == []
    assert "480 training and 120 test samples: features (2,), 2 classes" in seen["ok"]
    assert "2 owners: hospital-a, hospital-b" in seen["ok"]
    assert any(text.startswith("columns have means up to") for text in seen["ok"])


def test_data_without_owners(tmp_path):
    columns, y = features(600)
    (note,) = found(table(tmp_path / "a.csv", columns, y))["note"]
    assert note.startswith("the data name no owners")


def test_a_class_with_one_sample(tmp_path):
    columns, y = features(600)
    y = y.astype("U1")
    y[0] = "z"
    (warning,) = found(table(tmp_path / "a.csv", columns, y))["warning"]
    assert warning.startswith("1 class (z) with one sample: it is trained or tested, never both")


def test_one_class_outweighs_the_others(tmp_path):
    columns, _ = features(600)
    (warning,) = found(table(tmp_path / "a.csv", columns, (np.arange(600) % 20 == 0).astype(int)))["warning"]
    assert warning.startswith("95 % of the samples are of class 0: always giving that answer is as good")


def test_a_rare_class_is_noted(tmp_path):
    columns, y = features(1000)
    y[:3] = 2
    notes = found(table(tmp_path / "a.csv", columns, y))["note"]
    assert any(note.startswith("1 class (2) with less than 1 % of the samples") for note in notes)


def test_a_small_test_part(tmp_path):
    columns, y = features(100)
    (warning,) = found(table(tmp_path / "a.csv", columns, y))["warning"]
    assert warning.startswith(
        "the whole test part has 20 samples: the standard error of an accuracy is up to 11 points"
    )


def test_columns_that_are_not_scaled(tmp_path):
    columns, y = features(600)
    columns["salary"] = 1e5 * (1 + 0.1 * columns["age"])
    path = table(tmp_path / "a.csv", columns, y)
    (warning,) = found(path, standardise=False)["warning"]
    assert warning.startswith("1 column (salary (mean 1.0")
    assert "standardise" in warning
    assert found(path)["warning"] == []  # tables are standardised unless one asks for the opposite


def test_columns_of_very_unlike_spread(tmp_path):
    columns, y = features(600)
    columns["pulse"] = 1e-4 * columns["pulse"]
    (warning,) = found(table(tmp_path / "a.csv", columns, y), standardise=False)["warning"]
    assert "age (mean" in warning
    assert "pulse (mean" in warning


def test_constant_columns(tmp_path):
    columns, y = features(600)
    columns["site"] = np.ones(600)
    notes = found(table(tmp_path / "a.csv", columns, y))["note"]
    assert any(note.startswith("1 column (site) constant in the training part") for note in notes)


def test_outliers(tmp_path):
    columns, y = features(600)
    columns["pulse"][7] = 9e4
    (warning,) = found(table(tmp_path / "a.csv", columns, y))["warning"]
    assert warning.startswith("column pulse: 1 of")
    assert "e.g. 9e+04): errors of typing or units, or marks of missing values?" in warning


def test_values_that_stand_for_missing_ones(tmp_path):
    columns, y = features(600)
    columns["pulse"][::8] = -999
    (warning,) = found(table(tmp_path / "a.csv", columns, y))["warning"]
    assert re.match(
        r"column pulse: [56]\d of 480 values lie more than 100 interquartile ranges from the median \(e.g. -999\)",
        warning,
    )


def test_a_column_that_numbers_the_rows(tmp_path):
    columns, y = features(600)
    columns["patient"] = 1000 + 3 * np.arange(600)
    (warning,) = found(table(tmp_path / "a.csv", columns, y))["warning"]
    assert warning.startswith("1 column (patient) rising from row to row, as numbers of rows and times do")


def test_series_that_are_not_scaled(tmp_path):
    x = 300 + 50 * RNG.normal(size=(600, 2, 20)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=RNG.integers(0, 2, 600))
    (warning,) = found(tmp_path / "a.npz")["warning"]
    assert warning.startswith("2 channels (0 (mean 30")


def test_duplicates_between_training_and_test_part(tmp_path):
    x, y = RNG.normal(size=(300, 5)).astype(np.float32), RNG.integers(0, 2, 300)
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=np.concatenate([x[:30], x[:90] + 1]), y_test=y[:120])
    (warning,) = found(tmp_path / "a.npz")["warning"]
    assert warning.startswith("30 of 120 test samples are in the training part, too (25 %; e.g. test sample 1")


def test_a_folder_of_images_with_copies_in_the_test_part(tmp_path):
    images, y = smooth_images(120, 8)
    for number, (image, label) in enumerate(zip(images, y, strict=True)):
        parts = ["train"] if number < 60 else ["test"]
        for part in [*parts, *(["test"] if number < 40 else [])]:
            folder = tmp_path / "data" / part / f"class-{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{number}.png")
    warnings = found(tmp_path / "data")["warning"]
    assert any(text.startswith("40 of 100 test samples are in the training part, too") for text in warnings)


def test_samples_with_more_than_one_client(tmp_path):
    x, y = RNG.normal(size=(300, 5)).astype(np.float32), RNG.integers(0, 2, 300)
    owners = np.repeat(["north", "south"], 300)
    np.savez(
        tmp_path / "a.npz", x=np.concatenate([x, x]), y=np.concatenate([y, y]), client=owners,
        x_test=x[:200] + 1, y_test=y[:200], client_test=owners[200:400],
    )  # fmt: skip
    (warning,) = found(tmp_path / "a.npz")["warning"]
    assert warning.startswith("600 of 600 training samples are with more than one client (2 clients (north, south))")


@pytest.mark.parametrize("stored", ["channels first", "channels last"])
def test_scrambled_images(tmp_path, stored):
    images, y = smooth_images(600)
    if stored == "channels first":  # bytes (C, H, W) taken for (H, W, C)
        np.savez(tmp_path / "a.npz", x=images.reshape(600, 16, 16, 3), y=y)
    else:  # bytes (H, W, C) taken for (C, H, W)
        np.savez(tmp_path / "a.npz", x=images.transpose(0, 2, 3, 1).copy().reshape(600, 3, 16, 16), y=y)
    warnings = found(tmp_path / "a.npz")["warning"]
    assert any(text.startswith("the images look scrambled") for text in warnings)
    for name, right in {"first.npz": images, "last.npz": images.transpose(0, 2, 3, 1)}.items():
        np.savez(tmp_path / name, x=right, y=y)
        assert not any("scrambled" in text for text in found(tmp_path / name)["warning"])


def test_real_images_with_their_channels_last_and_unscaled(tmp_path):
    images, y = smooth_images(600)
    np.savez(tmp_path / "a.npz", x=images.transpose(0, 2, 3, 1).astype(np.float32), y=y)
    warnings = found(tmp_path / "a.npz", model="mlp")["warning"]
    assert any("the channels seem to stand last; transpose the array" in text for text in warnings)
    assert any(text.startswith("pixels go up to 2") for text in warnings)


def recording(clients=4, steps=800):
    """A slow signal of several sensors for each client: (clients * steps, 6), labels, owners."""
    t = np.arange(steps) / 40
    signal = np.stack([np.sin(t * (1 + i / 3)) for i in range(6)], 1)
    x = np.concatenate([signal * (1 + c) + 0.01 * RNG.normal(size=signal.shape) for c in range(clients)])
    return x.astype(np.float32), np.tile((np.sin(t / 3) > 0).astype(int), clients), np.repeat(np.arange(clients), steps)


def test_a_recording_that_is_split_at_random(tmp_path):
    x, y, owner = recording()
    columns = {f"sensor-{i}": x[:, i] for i in range(6)}
    path = table(tmp_path / "a.csv", columns, y, client=owner)
    (warning,) = found(path)["warning"]
    assert "samples next to each other in the file are much alike" in warning
    assert "--split time" in warning
    assert not any("--split time" in text for text in found(path, split="time")["warning"])


def test_windows_that_overlap(tmp_path):
    x, y, owner = recording()
    x = x + RNG.normal(size=x.shape).astype(np.float32)
    starts = np.concatenate([np.arange(800 * client, 800 * client + 768, 16) for client in range(4)])
    windows = np.stack([x[start : start + 32].T for start in starts])  # half of each is in the next
    np.savez(tmp_path / "a.npz", x=windows, y=y[starts], client=owner[starts])
    warnings = found(tmp_path / "a.npz")["warning"]
    assert any("of the test windows overlap with training windows" in text for text in warnings)
    apart = starts[::2]
    np.savez(tmp_path / "b.npz", x=np.stack([x[s : s + 32].T for s in apart]), y=y[apart], client=owner[apart])
    assert not any("overlap" in text for text in found(tmp_path / "b.npz")["warning"])


def test_tiny_clients_are_named_with_a_remedy(tmp_path, capsys):
    columns, y = features(600)
    owners = np.where(np.arange(600) < 6, "tiny", np.where(np.arange(600) < 300, "north", "south"))
    path = table(tmp_path / "a.csv", columns, y, client=owners)
    cli.main(["doctor", "--dataset", str(path), "--rounds", "1"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "1 client (tiny) has fewer training samples than a batch of 10" in text
    assert "--min-samples" in text


@pytest.mark.parametrize("name", ["digits", "breast-cancer", "noise"])
def test_sound_data_give_no_alarm(tmp_path, name):
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        arrays = {"x": x.reshape(-1, 8, 8).astype(np.uint8) * 15, "y": y}
    elif name == "breast-cancer":
        x, y = load_breast_cancer(return_X_y=True)
        arrays = {"x": ((x - x.mean(0)) / x.std(0)).astype(np.float32), "y": y}
    else:
        arrays = {"x": RNG.integers(0, 256, (600, 3, 16, 16)).astype(np.uint8), "y": RNG.integers(0, 2, 600)}
    np.savez(tmp_path / "a.npz", **arrays, client=RNG.integers(0, 4, len(arrays["y"])))
    assert found(tmp_path / "a.npz")["warning"] == []


def test_the_default_configuration_gives_no_alarm_about_its_data():
    assert {level: len(texts) for level, texts in found("digits").items()} == {"ok": 3, "note": 0, "warning": 0}


def test_large_data_are_looked_at_in_part(monkeypatch):
    x = RNG.normal(size=(5000, 4)).astype(np.float32)
    monkeypatch.setattr(rows, "MOST_ROWS", 500)
    looked = []
    monkeypatch.setattr(leaks, "digests", lambda dataset, own: looked.append(len(own)) or [b""] * len(own))
    everybody = np.arange(4000)
    task = Task(Dataset("big", x, RNG.integers(0, 2, 5000), 4000, 2), Partition([everybody], [np.arange(4000, 5000)]))
    assert list(data_findings(task))
    assert looked == [500, 500]


def test_data_are_looked_at_even_where_the_network_does_not_fit(tmp_path):
    columns, y = features(100)
    config = RunConfig(dataset=str(table(tmp_path / "a.csv", columns, y)), model="cifar-cnn")
    findings = list(doctor.configuration(config))
    assert any("the whole test part has 20 samples" in each.text for each in findings)
    assert [each.text[:8] for each in findings if each.level == "error"] == ["--model "]


def test_a_column_of_numbers_of_patients(tmp_path):
    columns, y = features(600)
    columns["patient"] = RNG.permutation(600) + 1000
    (warning,) = found(table(tmp_path / "a.csv", columns, y))["warning"]
    assert warning.startswith("1 column (patient) with another whole number in every row")


def test_a_column_that_tells_the_class(tmp_path):
    columns, y = features(600)
    columns["discharge"] = np.where(y == 1, 3 + RNG.integers(0, 5, 600), RNG.integers(0, 3, 600))
    (warning,) = found(table(tmp_path / "a.csv", columns, y))["warning"]
    assert warning.startswith("1 column (discharge) from whose value alone the class can be told")
    columns["discharge"][np.flatnonzero(y == 1)[:40]] = 2  # a value of both classes
    assert not found(table(tmp_path / "a.csv", columns, y))["warning"]


def test_targets_that_are_not_scaled(tmp_path):
    columns, _ = features(600)
    (warning,) = found(table(tmp_path / "a.csv", columns, 2e5 + 1e4 * RNG.normal(size=600)))["warning"]
    assert re.match(r"targets with mean \S+e\+05 and spread \S+ are not scaled", warning)
    assert not found(table(tmp_path / "a.csv", columns, RNG.normal(size=600)))["warning"]
