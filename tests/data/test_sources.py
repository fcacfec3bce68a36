"""Named datasets from Parquet files, the cache and the hub; the real ones where they are at hand."""

import contextlib
import inspect
import io
import json
import subprocess
import sys
import time
import types
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feddwa import cli
from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.data import cache, originals
from feddwa.data.catalogue import DATASETS
from feddwa.data.entry import Files
from feddwa.data.partition import make_scheme
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.data.conftest import refuses

OBJECTS = DATASETS["cifar10"].class_names


def encode(pixels, kind="PNG"):
    """(C, H, W) uint8 -> bytes of an image file."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def write_parquet(path, x, y, image="img", label="label", names=None):
    """The hub's layout: struct{bytes, path}, integer labels, class names in the schema."""
    columns = {image: [{"bytes": encode(pixels), "path": None} for pixels in x], label: pa.array(y, pa.int64())}
    table = pa.table(columns)
    if names is not None:
        features = {label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


@pytest.fixture
def small_cifar(tmp_path, rng):
    """A folder with cifar10 in two training parts and a test part, and the pixels in it."""
    x = rng.integers(0, 256, (30, 3, 32, 32), dtype=np.uint8)
    y = np.arange(30) % 10
    folder = tmp_path / "data" / "cifar10"
    write_parquet(folder / "train-00000-of-00002.parquet", x[:10], y[:10], names=OBJECTS)
    write_parquet(folder / "train-00001-of-00002.parquet", x[10:20], y[10:20], names=OBJECTS)
    write_parquet(folder / "test-00000-of-00001.parquet", x[20:], y[20:], names=OBJECTS)
    return folder, x, y


def test_digits_are_split_once_and_for_all():
    digits = load("digits")
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == np.float32
    assert set(np.unique(digits.x * 16)) == set(range(17))
    assert digits.train_count == 1438
    counts = np.bincount(digits.y[digits.train_count :])
    assert counts == pytest.approx(0.2 * np.bincount(digits.y), abs=1)
    again = load("digits")
    assert np.array_equal(digits.x, again.x)
    from sklearn.datasets import load_digits

    original = {(image.tobytes(), label) for image, label in zip(*load_digits(return_X_y=True), strict=True)}
    ours = {((image * 16).astype(float).tobytes(), label) for image, label in zip(digits.x, digits.y, strict=True)}
    assert ours == original


def test_parquet_is_read_in_order_with_the_facts_of_the_catalogue(small_cifar):
    folder, x, y = small_cifar
    cifar = load("cifar10", folder.parent)
    assert np.array_equal(cifar.x, x)
    assert np.array_equal(cifar.y, y)
    assert (cifar.train_count, cifar.classes, cifar.class_names) == (20, 10, OBJECTS)
    assert cifar.mean == (0.4914, 0.4822, 0.4465)
    assert cifar.std == (0.2023, 0.1994, 0.2010)


def test_the_folder_can_be_named_by_the_environment_and_be_the_dataset_itself(small_cifar, monkeypatch):
    folder, x, _ = small_cifar
    assert np.array_equal(load("cifar10", folder).x, x)
    monkeypatch.setenv("FEDDWA_DATA", str(folder.parent))
    assert np.array_equal(load("cifar10").x, x)


def test_validation_stands_in_for_the_test_split_and_large_images_are_averaged(tmp_path, rng):
    x = rng.integers(0, 256, (6, 3, 64, 64), dtype=np.uint8)
    write_parquet(
        tmp_path / "tiny-imagenet" / "data" / "train-00000-of-00001.parquet", x[:4], [0, 1, 198, 199], "image"
    )
    write_parquet(tmp_path / "tiny-imagenet" / "data" / "valid-00000-of-00001.parquet", x[4:], [0, 199], "image")
    assert np.array_equal(load("tiny-imagenet", tmp_path).x, x)
    small = load("tiny-imagenet-32", tmp_path)
    box = x.reshape(6, 3, 32, 2, 32, 2).mean(axis=(3, 5))
    assert small.x.shape == (6, 3, 32, 32)
    assert np.abs(small.x - box).max() <= 0.5
    assert (small.train_count, small.mean) == (4, (0.5, 0.5, 0.5))


def test_cifar100_reads_the_fine_label(tmp_path, rng):
    x = rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    for split in ("train", "test"):
        write_parquet(tmp_path / "cifar100" / f"{split}.parquet", x, [0, 7, 50, 99], label="fine_label")
    assert load("cifar100", tmp_path).y.tolist() == [0, 7, 50, 99] * 2


def test_letters_are_not_mistaken_for_the_classes_in_the_same_folder(tmp_path, rng):
    x = rng.integers(0, 256, (2, 1, 28, 28), dtype=np.uint8)
    for split in ("train", "test"):
        write_parquet(tmp_path / "emnist" / f"{split}.parquet", x, [0, 25])
    assert load("emnist", tmp_path).classes == 62
    refuses("emnist-letters", "not found", data_dir=tmp_path)


# Bad files.


def test_a_missing_part_is_named(small_cifar):
    folder = small_cifar[0]
    (folder / "train-00001-of-00002.parquet").unlink()
    refuses("cifar10", "part 1 of 00002 of the train split is missing", data_dir=folder.parent)


def test_a_missing_test_split_is_named(small_cifar):
    folder = small_cifar[0]
    (folder / "test-00000-of-00001.parquet").unlink()
    refuses("cifar10", "no test split", "test, testing, val", data_dir=folder.parent)


@pytest.mark.parametrize("content", [b"", b"not parquet at all", None])
def test_a_truncated_or_foreign_file_is_named(small_cifar, content):
    folder = small_cifar[0]
    file = folder / "train-00000-of-00002.parquet"
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    refuses("cifar10", str(file), "not a readable Parquet file", data_dir=folder.parent)


def test_damage_inside_a_file_is_named(small_cifar):
    folder = small_cifar[0]
    file = folder / "train-00000-of-00002.parquet"
    data = bytearray(file.read_bytes())
    data[100:4000] = bytes(3900)
    file.write_bytes(data)
    refuses("cifar10", str(file), data_dir=folder.parent)


def test_no_single_wrong_byte_gives_more_than_a_clear_error(small_cifar, rng):
    folder = small_cifar[0]
    file = folder / "test-00000-of-00001.parquet"
    good = file.read_bytes()
    for place in np.concatenate([rng.integers(0, len(good), 40), len(good) - rng.integers(1, 1500, 80)]):
        bad = bytearray(good)
        bad[place] ^= 1 << rng.integers(8)
        file.write_bytes(bad)
        with contextlib.suppress(InputError):
            load("cifar10", folder.parent)


def test_a_wrong_label_column_an_image_of_another_size_and_other_classes_are_named(tmp_path, rng):
    x = rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    file = tmp_path / "cifar10" / "train.parquet"
    write_parquet(file.with_name("test.parquet"), x, [0, 1, 2, 3])
    write_parquet(file, x, [0, 1, 2, 3], label="target")
    refuses("cifar10", str(file), "no label column", "'label'", "img, target", data_dir=tmp_path)
    write_parquet(file, x, [0, 1, 2, 3], image="picture")
    refuses("cifar10", str(file), "no image column", "'img' or 'image'", "picture, label", data_dir=tmp_path)
    write_parquet(file, x[:, :, :28, :28], [0, 1, 2, 3])
    refuses("cifar10", f"{file} row 1", "28x28", "must be 32x32", data_dir=tmp_path)
    write_parquet(file, x, [0, 1, 2, 10])
    refuses("cifar10", "has 11 classes, cifar10 has 10", data_dir=tmp_path)
    write_parquet(file, x, [0, 1, 2, 3], names=["cat", "dog", "bird", "ship"])
    refuses("cifar10", "classes, cifar10 has 10", data_dir=tmp_path)
    pq.write_table(pa.table({"img": [{"bytes": b"no image", "path": None}] * 4, "label": [0, 1, 2, 3]}), file)
    refuses("cifar10", f"{file} row 1", "not a readable image", data_dir=tmp_path)
    pq.write_table(pa.table({"img": [{"bytes": encode(x[0])[:200], "path": None}] * 4, "label": [0, 1, 2, 3]}), file)
    refuses("cifar10", f"{file} row 1", "truncated", data_dir=tmp_path)
    pq.write_table(pa.table({"img": ["a.png"] * 4, "label": [0, 1, 2, 3]}), file)
    refuses("cifar10", str(file), "must be struct{bytes, path}, got string", data_dir=tmp_path)
    pq.write_table(pa.table({"img": [{"bytes": encode(x[0]), "path": None}] * 2, "label": [0, None]}), file)
    refuses("cifar10", str(file), "'label' must hold integers without gaps", data_dir=tmp_path)


def test_a_name_that_is_none_and_a_folder_that_is_none():
    refuses("cifar", "unknown name 'cifar'", "valid: digits, emnist", "cifar10")
    refuses("cifar10", "--data-dir: no folder '/nowhere'", data_dir="/nowhere")
    for name in ("d" * 300, "d" * 5000, f"{'d' * 300}.npz", "a\0b"):  # that no file can have
        refuses(name, "unknown name", "and no such file or folder")
        refuses("cifar10", "--data-dir: no folder", data_dir=name)


def test_when_nothing_is_found_the_error_says_what_was_tried_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refuses(
        "cifar10",
        "not found; tried --data-dir and FEDDWA_DATA (not set)",
        "cache",
        "hub uoft-cs/cifar10 (package huggingface_hub is not installed: pip install 'feddwa[hub]')",
        "pass --data-dir DIR",
    )
    refuses(
        "cifar10", f"tried {tmp_path} (nothing readable under cifar10, cifar-10, cifar-10-batches-py", data_dir=tmp_path
    )


# The cache.


def test_the_second_load_is_memory_mapped_and_needs_no_files(small_cifar, own_cache):
    folder, x, _ = small_cifar
    first = load("cifar10", folder.parent)
    entry = next(own_cache.glob("cifar10-*"))
    stamp = (entry / "x.npy").stat().st_mtime_ns
    second = load("cifar10", folder.parent)
    assert isinstance(second.x, np.memmap)
    assert (entry / "x.npy").stat().st_mtime_ns == stamp
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(load("cifar10").x, x)  # no data folder: found in the cache


def test_changed_files_are_decoded_anew(small_cifar):
    folder, x, y = small_cifar
    load("cifar10", folder.parent)
    write_parquet(folder / "test-00000-of-00001.parquet", 255 - x[20:], y[20:], names=OBJECTS)
    assert np.array_equal(load("cifar10", folder.parent).x[20:], 255 - x[20:])


@pytest.mark.parametrize("damage", ["flip", "truncate", "manifest", "missing"])
def test_a_damaged_entry_is_made_anew(small_cifar, own_cache, damage, caplog):
    folder, x, _ = small_cifar
    load("cifar10", folder.parent)
    entry = next(own_cache.glob("cifar10-*"))
    if damage == "flip":
        data = bytearray((entry / "x.npy").read_bytes())
        data[5000] ^= 1
        (entry / "x.npy").write_bytes(data)
    elif damage == "truncate":
        (entry / "x.npy").write_bytes((entry / "x.npy").read_bytes()[:5000])
    elif damage == "manifest":
        (entry / "manifest.json").write_text("{")
    else:
        (entry / "y.npy").unlink()
    assert np.array_equal(load("cifar10", folder.parent).x, x)
    assert "damaged" in caplog.text


def test_of_two_writers_the_second_takes_the_firsts(own_cache):
    dataset = load("digits")
    first = cache.store("twice", "0" * 16, dataset)
    written = next(own_cache.glob("twice-*")).stat().st_mtime_ns
    second = cache.store("twice", "0" * 16, dataset)
    assert np.array_equal(first.x, second.x)
    assert next(own_cache.glob("twice-*")).stat().st_mtime_ns == written
    assert [entry.name for entry in own_cache.iterdir()] == ["twice-" + "0" * 16]  # nothing half-written is left


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, small_cifar):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "file" / "cache"))
    refuses("cifar10", "cannot write", "set FEDDWA_CACHE", data_dir=small_cifar[0].parent)


def test_the_cache_follows_the_users_settings(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDDWA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root() == tmp_path / "feddwa"


# The hub.


def serve(monkeypatch, folder):
    """A hub that gives `folder` and remembers what it was asked for."""
    asked = []

    def snapshot_download(repo, **options):
        asked.append((repo, options))
        return str(folder)

    module = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_the_hub_is_asked_last_at_a_pinned_revision_and_rows_are_counted(small_cifar, monkeypatch):
    folder, x, _ = small_cifar
    asked = serve(monkeypatch, folder)
    refuses("cifar10", "got (20, 10) training and test rows, must be (50000, 10000)")
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], rows=(20, 10)))
    assert np.array_equal(load("cifar10").x, x)
    repo, options = asked[-1]
    assert (repo, options["repo_type"]) == ("uoft-cs/cifar10", "dataset")
    assert len(options["revision"]) == 40
    load("cifar10")
    assert len(asked) == 2  # from the cache now


def test_transposed_images_of_the_hub_are_turned_upright(tmp_path, rng, monkeypatch):
    x = rng.integers(0, 256, (2, 1, 28, 28), dtype=np.uint8)
    for split in ("train", "test"):
        write_parquet(tmp_path / "hub" / "emnist-letters" / f"{split}.parquet", x, [0, 25], "image")
    serve(monkeypatch, tmp_path / "hub")
    monkeypatch.setitem(DATASETS, "emnist-letters", replace(DATASETS["emnist-letters"], rows=(2, 2)))
    assert np.array_equal(load("emnist-letters").x[:2], x.swapaxes(2, 3))


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    def snapshot_download(repo, **options):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    refuses("mnist", "hub ylecun/mnist (cannot be fetched (ConnectionError: no route))")


def test_every_entry_of_the_catalogue_is_consistent():
    wanted = "emnist emnist-letters emnist-balanced cifar10 cifar100 cinic10 tiny-imagenet tiny-imagenet-32"
    assert set(DATASETS) >= {"digits", "mnist", "fashion-mnist", *wanted.split()}
    for name, info in DATASETS.items():
        assert info.name == name
        assert len(info.class_names) in (0, info.classes)
        assert len(info.mean) == len(info.std)
        assert len(info.mean) in (0, info.shape[0])
        if isinstance(info.source, Files):
            hub = info.source.hub
            assert hub is None or hub.revision == "main" or len(hub.revision) == 40
            assert set(info.source.others) <= set(info.source.places)
            reader = getattr(originals, info.source.reader)
            inspect.signature(reader).bind("tree", info.shape, **info.source.options)
        else:
            assert callable(getattr(originals, info.source))
        for scheme in info.defaults.schemes:
            make_scheme(scheme, {}, name)


def test_the_facts_of_datasets_are_known_without_waiting():
    code = "import sys, feddwa.data.catalogue; print({'torch', 'numpy', 'PIL', 'pyarrow'} & sys.modules.keys())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


# The output directory.


def test_data_are_loaded_whatever_the_output_directory(tmp_path):
    """Only what writes a run directory asks whether it is free."""
    (tmp_path / "file").write_text("")
    assert load_task(RunConfig(out=str(tmp_path / "file"), clients=4).resolved()).clients == 4


@pytest.mark.parametrize("command", ["run", "compare", "federate"])
def test_a_directory_that_is_not_free_is_refused_before_data_are_loaded(command, tmp_path, monkeypatch, capsys):
    if command == "federate":
        pytest.importorskip("flwr")
    monkeypatch.setattr("feddwa.data.sources.load", lambda *_: pytest.fail("data were loaded"))
    (tmp_path / "file").write_text("")
    assert cli.main([command, "--out", str(tmp_path / "file")]) == 2
    assert "file: cannot write there" in capsys.readouterr().err


# The real ones.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "train_each", "test_each", "first"),
    [
        ("cifar10", (3, 32, 32), 5000, 1000, [6, 9, 9, 4, 1]),  # frog, truck, truck, deer, automobile
        ("tiny-imagenet-32", (3, 32, 32), 500, 50, None),
        ("emnist-letters", (1, 28, 28), 1600, 260, None),
    ],
)
def test_real_datasets_have_the_right_counts_per_class(real_data, name, shape, train_each, test_each, first):
    dataset = load(name, real_data)
    assert dataset.x.shape[1:] == shape
    assert dataset.x.dtype == np.uint8
    assert np.array_equal(np.bincount(dataset.y[: dataset.train_count]), np.full(dataset.classes, train_each))
    assert np.array_equal(np.bincount(dataset.y[dataset.train_count :]), np.full(dataset.classes, test_each))
    if first is not None:
        assert dataset.y[:5].tolist() == first


def test_real_cifar10_has_the_known_pixels_and_loads_in_under_a_second(real_data):
    load("cifar10", real_data)
    start = time.perf_counter()
    cifar = load("cifar10", real_data)
    assert time.perf_counter() - start < 1
    train = cifar.x[: cifar.train_count : 10] / 255
    assert train.mean(axis=(0, 2, 3)) == pytest.approx(cifar.mean, abs=0.01)
    assert train.std(axis=(0, 2, 3)) == pytest.approx((0.2470, 0.2435, 0.2616), abs=0.01)
    assert cifar.x[0, :, 0, 0].tolist() == [59, 62, 63]  # the first frog's first pixel
