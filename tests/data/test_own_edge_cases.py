"""Own data as people have them: other encodings, doubtful numbers, gaps, deep images, and folders that are none."""

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from feddwa.build import completed, load_task, make_network
from feddwa.config import RunConfig
from feddwa.data import labels
from feddwa.data.own import assemble
from feddwa.data.own.clients import from_arrays
from feddwa.data.partition import make
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.data.conftest import refuses


@pytest.fixture
def csv(tmp_path):
    """Write the lines of a table; the path of the file."""

    def write(*lines: str, encoding: str = "utf-8") -> str:
        path = tmp_path / "own.csv"
        path.write_bytes("\n".join(lines).encode(encoding))
        return str(path)

    return write


# Text.


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_a_table_that_is_not_utf8_is_refused_by_line(csv, encoding):
    path = csv("a,label", "1,ja", "2,möglich", "3,ja", "4,ja", encoding=encoding)
    refuses(path, "own.csv: line", "is not UTF-8 text")
    path = csv("größe,label", "1,0", "2,1", encoding="latin-1")
    refuses(path, "line 1 is not UTF-8 text")


def test_utf8_with_and_without_a_mark_is_read(csv):
    for encoding in ("utf-8", "utf-8-sig"):
        data = load(csv("größe,label", *(f"{i},{'möglich' if i % 2 else 'ja'}" for i in range(10)), encoding=encoding))
        assert data.class_names == ("ja", "möglich")


def test_01_and_1_are_two_labels_and_two_clients(csv):
    codes = ("01", "1", "001")
    data = load(csv("a,label,client", *(f"{i},{codes[i % 3]},{codes[i // 10]}" for i in range(30))))
    assert data.class_names == ("001", "01", "1")
    assert data.client_names == ("001", "01", "1")
    assert np.array_equal(data.y, np.array([1, 2, 0])[data.x[:, 0].astype(int) % 3])


@pytest.mark.parametrize(
    ("written", "kind", "values"),
    [
        (["10", "9", "-2"], "i", [10, 9, -2]),
        (["1.0", "2", "3e0"], "f", [1, 2, 3]),
        ([" 1", "2 "], "i", [1, 2]),
        (["01", "1"], "U", ["01", "1"]),
        (["1", "-0"], "f", [1, 0]),
        (["123456789012345678901", "1"], "f", [1.2345678901234568e20, 1]),
        (["NA", "DE"], "U", ["NA", "DE"]),
        (["1", "NA"], "f", [1, np.nan]),
        (["+1", "1"], "U", ["+1", "1"]),
        ([".", "1"], "U", [".", "1"]),
    ],
)
def test_what_a_column_of_text_holds(written, kind, values):
    column = labels.from_text(np.array(written))
    assert column.dtype.kind == kind
    assert np.array_equal(column, np.array(values), equal_nan=kind == "f")


def test_whole_real_numbers_are_classes(csv, tmp_path):
    data = load(csv("a,label", *(f"{i},{i % 3}.0" for i in range(30))))
    assert (data.class_names, data.classes) == (("0", "1", "2"), 3)
    np.savez(tmp_path / "own.npz", x=np.zeros((20, 2)), y=np.arange(20) % 2 * 1.0)
    assert load(str(tmp_path / "own.npz")).class_names == ("0", "1")
    assert assemble("own", np.zeros((20, 2)), np.arange(20) / 2).classes == 0


def test_gaps_are_refused_by_row(csv, tmp_path):
    refuses(csv("a,label,client", "1,0,x", "2,1,", "3,0,x"), "row 2 has no client")
    refuses(csv("a,label,client", "1,0,1", "2,1,2", "3,0,"), "row 3 has no client")
    refuses(csv("a,label", "1,no", "2, ", "3,yes"), "row 2 has no label")
    refuses(csv("a,label", "1,0.0", "2,NaN", "3,1.0"), "row 2 has no label")
    file = tmp_path / "own.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0], "label": [0, None]}), file)
    refuses(file, "row 2 has no label")
    pq.write_table(pa.table({"a": [1.0, 2.0], "label": [0, 1], "client": ["", "a"]}), file)
    refuses(file, "row 1 has no client")
    np.savez(tmp_path / "own.npz", x=np.zeros((3, 2)), y=np.array([0, 1, 0]), client=np.array([0.0, np.nan, 0.0]))
    refuses(tmp_path / "own.npz", "row 2 has no client")
    np.savez(tmp_path / "own.npz", x=np.zeros((3, 2)), y=np.array([0, np.inf, 0]))
    refuses(tmp_path / "own.npz", "row 2 has an infinite label")


def test_names_that_cannot_be_printed_are_refused(csv):
    refuses(csv("a,label,client", *(f'{i},{i % 2},"two\nlines"' for i in range(4))), "cannot be printed")


def test_one_class_is_refused_where_it_would_be_trained(csv):
    path = csv("a,label", *(f"{i},same" for i in range(10)))
    assert load(path).classes == 1  # a site may have one class; the federation has more
    for clients in (None, 2):
        with pytest.raises(InputError, match="all 10 samples are of one class, same; there is nothing to classify"):
            load_task(RunConfig(dataset=path, clients=clients).resolved())


# Numbers.


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16, np.uint8])
def test_whole_numbers_with_the_axes_of_an_image_are_pixels(kind, rng):
    for shape in ((20, 8, 8), (20, 3, 8, 8), (20, 8, 8, 3)):
        pixels = rng.integers(0, 256, shape).astype(kind)
        data = assemble("own", pixels, np.arange(20) % 2)
        assert (data.x.dtype, data.x.shape[1:]) == (np.uint8, (1, 8, 8) if len(shape) == 3 else (3, 8, 8))
        assert data.x.max() == pixels.max()


def test_doubtful_whole_numbers_are_refused(tmp_path):
    labelled = {"y": np.arange(20) % 2}
    np.savez(tmp_path / "own.npz", x=np.arange(120).reshape(20, 6), **labelled)
    refuses(tmp_path / "own.npz", "may be numbers or token ids", "float32", "under the name tokens")
    np.savez(tmp_path / "own.npz", tokens=np.arange(120).reshape(20, 6), **labelled)
    assert load(str(tmp_path / "own.npz")).x.dtype == np.int64
    np.savez(tmp_path / "own.npz", tokens=np.full((20, 6), -1), **labelled)
    refuses(tmp_path / "own.npz", "tokens of type int64", "whole numbers from 0")
    np.savez(tmp_path / "own.npz", x=np.full((20, 8, 8), 4095), **labelled)
    refuses(tmp_path / "own.npz", "values from 4095 to 4095", "pixels must be 0..255")
    np.savez(tmp_path / "own.npz", x=np.zeros((20, 2)), tokens=np.zeros((20, 2), dtype=int), **labelled)
    refuses(tmp_path / "own.npz", "must hold x (or tokens) and y")
    file = tmp_path / "own.parquet"
    pq.write_table(pa.table({"pixels": [[i] * 4 for i in range(4)], "label": [0, 1] * 2}), file)
    refuses(file, "column 'pixels' holds lists of whole numbers", "name a column of token ids 'tokens'")


def test_the_test_arrays_of_an_npz_are_the_test_part(tmp_path):
    file = tmp_path / "own.npz"
    parts = {"x": np.zeros((6, 2)), "y": np.arange(6) % 2, "x_test": np.ones((4, 2)), "y_test": np.arange(4) % 2}
    np.savez(file, **parts)
    data = load(str(file))
    assert (data.train_count, len(data.x)) == (6, 10)
    assert (data.x[6:] == 1).all()
    owned = {**parts, "client": np.array(["a", "b"] * 3), "client_test": np.array(["a", "b"] * 2)}
    np.savez(file, **owned)
    partition = make("natural", {}, load(str(file)), 2, 0)
    assert [len(rows) for rows in (*partition.train, *partition.test)] == [3, 3, 2, 2]
    for name, words in {
        "y_test": "but no y_test",
        "client_test": "but no client_test",
        "x_test": "but no x_test",
    }.items():
        np.savez(file, **{key: value for key, value in owned.items() if key != name})
        refuses(file, "has a test part", words)
    np.savez(file, **{**parts, "x_test": np.ones((4, 3))})
    refuses(file, "(x_test, y_test): samples are float64 (3,), must be float64 (2,)")
    np.savez(file, **{**parts, "y_test": np.array(["a"] * 4)})
    refuses(file, "labels are names (), must be numbers ()")
    np.savez(file, **parts, validation=np.zeros(3))
    refuses(file, "it has 'x', 'y', 'x_test', 'y_test', 'validation'")


# Tables.


def test_columns_of_one_name_are_refused(csv, tmp_path):
    for header in ("a,label,label", "label,a,a", "client,client,label"):
        refuses(csv(header, "1,2,3", "4,5,6"), "2 columns are named")
    table = pa.Table.from_arrays([pa.array([1.0, 2.0]), pa.array([0, 1]), pa.array([0, 1])], ["a", "label", "label"])
    pq.write_table(table, tmp_path / "own.parquet")
    refuses(tmp_path / "own.parquet", "2 columns are named 'label'; rename them")


def test_columns_that_are_no_names_or_numbers_are_refused(tmp_path):
    file = tmp_path / "own.parquet"
    for nested in ([[[1, 2], [3, 4]]] * 4, [[{"a": 1}]] * 4, [["a"]] * 4):
        pq.write_table(pa.table({"tokens": nested, "label": [0, 1] * 2}), file)
        refuses(file, "column 'tokens' holds list", "lists must hold numbers")
    pq.write_table(pa.table({"tokens": [[1.0, None]] * 4, "label": [0, 1] * 2}), file)
    refuses(file, "row 1 has a missing or infinite value in column 'tokens'")
    for labels_ in ([[0], [1]] * 2, [{"a": 1}] * 4, [b"\xff"] * 4):
        pq.write_table(pa.table({"a": [1.0] * 4, "label": labels_}), file)
        refuses(file, "column 'label' holds", "must be numbers or names")


def test_categories_of_a_table_are_names(tmp_path):
    column = pa.array(["no", "yes"] * 5).dictionary_encode()
    pq.write_table(pa.table({"a": np.arange(10.0), "label": column}), tmp_path / "own.parquet")
    assert load(str(tmp_path / "own.parquet")).class_names == ("no", "yes")


# Images.


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_grey_of_16_bits_keeps_its_levels(tmp_path, suffix):
    levels = np.array([[0, 257, 25700], [32896, 65278, 65535]], dtype=np.uint16)
    for i in range(10):
        write(tmp_path / "deep" / "ab"[i % 2] / f"{i}.{suffix}", levels)
    data = load(str(tmp_path / "deep"))
    assert data.x.shape == (10, 1, 2, 3)
    assert (data.x == np.array([[0, 1, 100], [128, 254, 255]])).all()


def test_deep_and_plain_grey_agree(tmp_path, rng):
    plain = rng.integers(0, 256, (4, 4), dtype=np.uint8)
    for c in "ab":
        write(tmp_path / "both" / c / "8.png", plain)
        write(tmp_path / "both" / c / "16.png", plain.astype(np.uint16) * 257)
    data = load(str(tmp_path / "both"))
    assert (data.x == plain).all()


def test_pixels_of_32_bits_are_refused(tmp_path):
    for i in range(4):
        write(tmp_path / "deep" / "ab"[i % 2] / f"{i}.tif", np.zeros((4, 4), dtype=np.float32))
    refuses(tmp_path / "deep", "pixels of 32 bits", "must be of 8 or 16 bits")


def test_the_cache_goes_by_the_bytes_of_images(tmp_path):
    """Folders of one name whose files agree in name, size and time, but not in their pixels."""
    for which, level in (("one", 10), ("two", 200)):
        for i in range(10):
            file = tmp_path / which / "photos" / "ab"[i % 2] / f"{i}.bmp"
            write(file, np.full((4, 4), level + i, dtype=np.uint8))
            os.utime(file, (1, 1))
    one, two = (load(str(tmp_path / which / "photos")) for which in ("one", "two"))
    assert one.x.max() < 100 < two.x.min()


# Folders and numbers beyond all measure.


def test_a_folder_that_is_a_disk_is_refused_at_once(tmp_path):
    start = time.perf_counter()
    refuses("/", "--dataset /: ")
    assert time.perf_counter() - start < 5
    deep = tmp_path / "deep" / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    refuses(tmp_path / "deep", "a/b/c/d is too deep")
    full = tmp_path / "full"
    full.mkdir()
    for i in range(1001):
        (full / f"{i}.txt").touch()
    refuses(full, "holds more than 1,000 files that are no data")


def test_what_is_no_regular_file_is_refused(tmp_path):
    (tmp_path / "own" / "a").mkdir(parents=True)
    os.mkfifo(tmp_path / "own" / "a" / "1.png")
    refuses(tmp_path / "own", "a/1.png is not a regular file")
    (tmp_path / "own" / "a" / "1.png").unlink()
    (tmp_path / "own" / "a" / "1.png").symlink_to("nowhere")
    refuses(tmp_path / "own", "a/1.png is not a regular file")


@pytest.mark.parametrize("clients", [899, 10**9, 10**30])
def test_more_clients_than_samples_are_refused_before_they_are_made(clients):
    digits = load("digits")
    for name in ("iid", "rotations", "dirichlet", "pathological", "groups", "label-permutation"):
        with pytest.raises(InputError, match=f"--clients: {clients} are too many for 1797 samples: .*at most 898"):
            make(name, {}, digits, clients, 0)


def test_a_data_folder_that_is_given_must_be_there(tmp_path):
    for name in ("digits", "mnist", str(tmp_path)):
        with pytest.raises(InputError, match=r"--data-dir: no folder .*nowhere"):
            load(name, tmp_path / "nowhere")
    assert load("digits", tmp_path).classes == 10


# What would be learnt otherwise than it is meant.


def started(x, y, **options):
    """The task and network of clients with these arrays."""
    config = RunConfig(dataset="own.npz", **options).resolved()
    np.savez("own.npz", x=x, y=y)
    task = load_task(config)
    return make_network(completed(config, task.dataset), task.dataset)


def test_one_hot_rows_are_no_targets_unless_a_loss_is_named(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    x, y = rng.normal(size=(40, 3)), np.eye(3)[np.arange(40) % 3]
    for rows in (y, y.astype(int)):
        with pytest.raises(
            InputError, match=r"targets are rows of 3 with a single 1; give class numbers, y.argmax\(1\)"
        ):
            started(x, rows)
    assert started(x, y, loss="bce")(torch.ones(2, 3)).shape == (2, 3)
    started(x, y + 0.5)


def test_labels_in_a_column_of_their_own_are_told(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"targets of shape \(1,\), whole numbers; give one class a sample"):
        started(rng.normal(size=(40, 3)), np.arange(40)[:, None] % 2)


def test_images_whose_channels_stand_last_get_no_network_by_themselves(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    x, y = rng.random((40, 8, 8, 3)), np.arange(40) % 2
    with pytest.raises(InputError, match=r"samples of shape \(8, 8, 3\) appear to have channels last"):
        started(x, y)
    started(x, y, model="mlp")
    started(x.transpose(0, 3, 1, 2), y)


def test_samples_without_an_axis_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.arange(40.0), y=np.arange(40) % 2)
    refuses(tmp_path / "own.npz", "x has shape (40,); one number for each sample must be a column, (40, 1)")


def test_arrays_of_objects_are_named(tmp_path):
    names = np.array(["a", "b"] * 20, dtype=object)
    np.savez(tmp_path / "own.npz", x=np.ones((40, 3)), y=names)
    refuses(tmp_path / "own.npz", "own.npz: y holds Python objects, which are not read; store names as text")


def test_clients_in_memory(rng):
    x, names = rng.normal(size=(20, 3)), np.array(["a", "b"] * 10, dtype=object)
    assert from_arrays([(x, names)]).class_names == ("a", "b")
    assert from_arrays([(torch.ones(20, 3, dtype=torch.bfloat16), np.arange(20) % 2)]).x.dtype == np.float32
    with pytest.raises(InputError, match=r"clients\[0\]: got 'labels from -1', must be labels from 0"):
        from_arrays([(x, np.arange(20) % 2 - 1)])
