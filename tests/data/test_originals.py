"""The datasets' original distributions, as small files of the same form."""

import gzip
import io
import json
import pickle
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feddwa
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.data.catalogue import DATASETS
from feddwa.data.entry import DatasetInfo, Defaults, Files, Hub
from feddwa.data.files import Tree
from feddwa.data.sources import load
from tests.data.conftest import refuses

# CIFAR's python batches.


def write_batch(path, x, labels, key=b"labels", protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {b"batch_label": b"a batch", key: list(labels), b"data": x.reshape(len(x), -1), b"filenames": [b"a.png"]}
    path.write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.fixture
def cifar10_batches(tmp_path, rng):
    x = rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    for i in range(5):
        write_batch(folder / f"data_batch_{i + 1}", x[2 * i : 2 * i + 2], [i, 9 - i])
    write_batch(folder / "test_batch", x[10:], [3, 4])
    names = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    return folder, x


def test_cifar10_batches_from_a_folder_and_from_the_archive(cifar10_batches, tmp_path):
    folder, x = cifar10_batches
    cifar = load("cifar10", tmp_path)
    assert np.array_equal(cifar.x, x)
    assert cifar.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 3, 4]
    assert (cifar.train_count, cifar.class_names[0], cifar.class_names[9]) == (10, "airplane", "truck")
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(folder, "cifar-10-batches-py")
    again = load("cifar10", packed)
    assert np.array_equal(again.x, x)
    assert np.array_equal(again.y, cifar.y)
    (packed / "cifar-10-python.tar.gz").write_bytes(b"broken")
    refuses("cifar10", "cifar-10-python.tar.gz: not a readable zip or tar archive", data_dir=packed)


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar100_batches_of_the_usual_pickle_protocols(tmp_path, rng, protocol):
    x = rng.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    write_batch(tmp_path / "cifar-100-python" / "train", x[:2], [99, 0], b"fine_labels", protocol)
    write_batch(tmp_path / "cifar-100-python" / "test", x[2:], [5, 7], b"fine_labels", protocol)
    cifar = load("cifar100", tmp_path)
    assert np.array_equal(cifar.x, x)
    assert cifar.y.tolist() == [99, 0, 5, 7]


class Harm:
    def __reduce__(self):
        return (open, ("/tmp/harm", "w"))


def test_a_pickle_that_wants_more_than_arrays_is_refused(cifar10_batches, tmp_path):
    (cifar10_batches[0] / "data_batch_3").write_bytes(pickle.dumps({b"data": Harm()}, protocol=2))
    refuses("cifar10", "data_batch_3: not a CIFAR batch (it wants to load", "open", data_dir=tmp_path)


def test_bad_cifar_batches_are_named(cifar10_batches, tmp_path, rng):
    folder, x = cifar10_batches
    good = (folder / "data_batch_2").read_bytes()
    (folder / "data_batch_2").write_bytes(good[:100])
    refuses("cifar10", "data_batch_2: not a CIFAR batch", data_dir=tmp_path)
    (folder / "data_batch_2").write_bytes(pickle.dumps([1, 2]))
    refuses("cifar10", "data_batch_2: not a CIFAR batch (holds list)", data_dir=tmp_path)
    write_batch(folder / "data_batch_2", x[:2], [1], protocol=2)
    refuses("cifar10", "data_batch_2: data of shape (2, 3072) with 1 labels", data_dir=tmp_path)
    write_batch(folder / "data_batch_2", x[:2], [1, 2], b"classes")
    refuses("cifar10", "data_batch_2: must hold b'data'", "b'labels'", data_dir=tmp_path)
    (folder / "data_batch_2").unlink()
    refuses("cifar10", "data_batch_2 is missing", data_dir=tmp_path)


# IDX files.


def write_idx(path, values, packed=True):
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    data = header + values.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if packed else data)


def write_idx_pair(folder, prefix, x, y, packed=True, dot="-"):
    end = ".gz" if packed else ""
    write_idx(folder / f"{prefix}-images{dot}idx3-ubyte{end}", x, packed)
    write_idx(folder / f"{prefix}-labels{dot}idx1-ubyte{end}", np.array(y), packed)


@pytest.mark.parametrize(("packed", "dot"), [(True, "-"), (False, "-"), (False, ".")])
def test_mnist_idx_files(tmp_path, rng, packed, dot):
    x = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    write_idx_pair(tmp_path / "MNIST" / "raw", "train", x[:3], [0, 9, 4], packed, dot)
    write_idx_pair(tmp_path / "MNIST" / "raw", "t10k", x[3:], [1, 2], packed, dot)
    mnist = load("mnist", tmp_path)
    assert np.array_equal(mnist.x[:, 0], x)
    assert mnist.y.tolist() == [0, 9, 4, 1, 2]
    assert mnist.train_count == 3


def test_fashion_mnist_has_the_names_and_the_form_of_mnist(tmp_path, rng):
    upright = rng.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    write_idx_pair(tmp_path / "fashion_mnist", "train", upright[:3], [9, 0, 1])
    write_idx_pair(tmp_path / "fashion_mnist", "t10k", upright[3:], [8])
    fashion = load("fashion-mnist", tmp_path)
    assert np.array_equal(fashion.x[:, 0], upright)
    assert (fashion.mean, fashion.std) == ((0.5,), (0.5,))
    assert [fashion.class_names[c] for c in fashion.y] == ["Ankle boot", "T-shirt", "Trouser", "Bag"]


def test_emnist_is_stored_transposed_and_its_letters_count_from_one(tmp_path, rng):
    upright = rng.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    stored = upright.swapaxes(1, 2)
    for part, labels in (("byclass", [0, 61]), ("letters", [1, 26]), ("balanced", [0, 46])):
        write_idx_pair(tmp_path / "gzip", f"emnist-{part}-train", stored[:2], labels)
        write_idx_pair(tmp_path / "gzip", f"emnist-{part}-test", stored[2:], labels)
    shutil.make_archive(str(tmp_path / "data" / "gzip"), "zip", tmp_path, "gzip")  # all splits come in one archive
    for name, labels in (("emnist", [0, 61]), ("emnist-letters", [0, 25]), ("emnist-balanced", [0, 46])):
        emnist = load(name, tmp_path / "data")
        assert np.array_equal(emnist.x[:, 0], upright)
        assert emnist.y.tolist() == labels * 2
        assert emnist.class_names[emnist.y[1]] == {61: "z", 25: "Z", 46: "t"}[labels[1]]


def test_bad_idx_files_are_named(tmp_path, rng):
    x = rng.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    folder = tmp_path / "mnist"
    write_idx_pair(folder, "t10k", x, [1, 2, 3])
    refuses("mnist", "train-images-idx3-ubyte (or .gz) is missing", data_dir=tmp_path)
    write_idx_pair(folder, "train", x, [1, 2])
    refuses("mnist", "images (3, 28, 28) with 2 labels", data_dir=tmp_path)
    write_idx_pair(folder, "train", x[:, :14], [1, 2, 3])
    refuses("mnist", "(3, 14, 28)", "must be (n, 28, 28)", data_dir=tmp_path)
    write_idx_pair(folder, "train", x, [1, 2, 3])
    images = folder / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[:-20])
    refuses("mnist", "train-images-idx3-ubyte.gz: cannot be read, truncated or damaged", data_dir=tmp_path)
    images.write_bytes(gzip.compress(gzip.decompress(whole)[:-20]))
    refuses("mnist", "its header says (3, 28, 28); truncated?", data_dir=tmp_path)
    images.write_bytes(gzip.compress(b"something else"))
    refuses("mnist", "not an IDX file", data_dir=tmp_path)
    write_idx_pair(folder, "train", x, [1, 2, 10])
    refuses("mnist", "has 11 classes, mnist has 10", data_dir=tmp_path)


# Image folders.


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue())


CINIC = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def test_cinic10_uses_train_and_test_and_not_valid(tmp_path, rng):
    x = rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    for split in ("train", "valid", "test"):
        for i, name in enumerate(CINIC):
            pixels = 255 - x[i] if split == "test" else x[i] // (2 if split == "valid" else 1)
            write_image(tmp_path / "CINIC-10" / split / name / f"{i}.png", pixels)
    write_image(tmp_path / "CINIC-10" / "train" / "truck" / "grey.png", x[0, :, :, 0])  # some of its images are grey
    cinic = load("cinic10", tmp_path)
    assert cinic.train_count == 11
    assert cinic.y.tolist() == [*range(10), 9, *range(10)]
    assert np.array_equal(cinic.x[:10], x.transpose(0, 3, 1, 2))
    assert np.array_equal(cinic.x[11:], 255 - x.transpose(0, 3, 1, 2))
    assert np.array_equal(cinic.x[10], np.repeat(x[:1, :, :, 0], 3, axis=0))
    assert cinic.class_names == CINIC
    shutil.rmtree(tmp_path / "CINIC-10" / "train" / "ship")
    refuses("cinic10", "class 'ship' has no train images", data_dir=tmp_path)


@pytest.fixture
def tiny(tmp_path, rng):
    """200 classes with one training image each; validation images whose classes stand in the annotations."""
    folder = tmp_path / "tiny-imagenet-200"
    wnids = [f"n{i:08d}" for i in rng.permutation(200)]
    for i, wnid in enumerate(wnids):
        write_image(folder / "train" / wnid / "images" / f"{wnid}_0.png", np.full((64, 64, 3), i, dtype=np.uint8))
    lines = []
    for i, wnid in enumerate([wnids[7], wnids[100], wnids[3]]):
        write_image(folder / "val" / "images" / f"val_{i}.png", np.full((64, 64, 3), wnids.index(wnid), dtype=np.uint8))
        lines.append(f"val_{i}.png\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    write_image(folder / "test" / "images" / "test_0.png", np.zeros((64, 64, 3), dtype=np.uint8))  # has no label
    return folder, wnids


def check_tiny(dataset, wnids, side):
    assert dataset.x.shape == (203, 3, side, side)
    assert dataset.train_count == 200
    assert dataset.class_names == tuple(sorted(wnids))
    for pixels, label in zip(dataset.x, dataset.y, strict=True):  # an image's grey level says its class
        assert wnids[pixels[0, 0, 0]] == dataset.class_names[label]
    assert len(set(dataset.y[200:])) == 3


def test_tiny_imagenet_validation_is_mapped_by_its_annotations(tiny, tmp_path):
    folder, wnids = tiny
    check_tiny(load("tiny-imagenet", tmp_path), wnids, 64)
    check_tiny(load("tiny-imagenet-32", tmp_path), wnids, 32)
    packed = tmp_path / "packed"
    packed.mkdir()
    with zipfile.ZipFile(packed / "tiny-imagenet-200.zip", "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(tmp_path))
    check_tiny(load("tiny-imagenet", packed), wnids, 64)


def test_tiny_imagenet_rearranged_into_class_folders(tiny, tmp_path):
    folder, wnids = tiny
    for i, wnid in enumerate([wnids[7], wnids[100], wnids[3]]):
        (folder / "val" / wnid).mkdir()
        (folder / "val" / "images" / f"val_{i}.png").rename(folder / "val" / wnid / f"val_{i}.png")
    (folder / "val" / "val_annotations.txt").unlink()
    check_tiny(load("tiny-imagenet", tmp_path), wnids, 64)


def test_bad_tiny_imagenet_is_named(tiny, tmp_path):
    folder, _ = tiny
    (folder / "val" / "val_annotations.txt").write_text("val_0.png\tn00000001\n")
    refuses("tiny-imagenet", "val_1.png: not in val_annotations.txt", data_dir=tmp_path)
    shutil.rmtree(folder / "val")
    shutil.rmtree(next((folder / "train").iterdir()))
    refuses("tiny-imagenet", "has 199 classes, tiny-imagenet has 200", data_dir=tmp_path)


# A new one.


def test_a_dataset_of_the_package_is_one_entry(monkeypatch, tmp_path, rng):
    """Files, classes, network, settings and partition of a new dataset, known everywhere from its entry alone."""
    defaults = Defaults("linear", rounds=7, batch_size=4, lr=0.5, partition="groups", schemes={"groups": {"groups": 2}})
    names = {"train": "train", "test": "t10k"}
    files = Files("idx_files", Hub("nobody/marks", "main", "*"), places=("MARKS",), options=names)
    info = DatasetInfo("marks", "marks", (1, 6, 6), 2, (40, 20), files, defaults, class_names=("dot", "dash"))
    monkeypatch.setitem(DATASETS, "marks", info)
    for part, count in (("train", 40), ("t10k", 20)):
        images, labels = rng.integers(0, 256, (count, 6, 6)), np.arange(count) % 2
        write_idx_pair(tmp_path / "data" / "MARKS", part, images, labels)
    monkeypatch.chdir(tmp_path)
    result = feddwa.run(dataset="marks", data_dir="data", clients=4, out="run")
    config = from_toml("run/config.toml", RunConfig)
    assert (config.model, config.rounds, config.batch_size, config.lr) == ("linear", 7, 4, 0.5)
    assert (config.partition, "groups.groups=2" in config.param) == ("groups", True)
    assert set(result.partition.groups) == {0, 1}
    assert json.loads(Path("run/partition.json").read_text())["class_names"] == ["dot", "dash"]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_outside_of_an_archive_stay_where_they_are(kind, tmp_path):
    """Archives are read in memory: nothing is ever unpacked, and names that lead outside are not listed."""
    names = ["../evil", "a/../../evil", "good/file", "/tmp/feddwa-evil"]
    path = tmp_path / "inside" / f"archive.{kind}"
    path.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")
    else:
        with tarfile.open(path, "w") as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = 1
                tar.addfile(info, io.BytesIO(b"x"))
            link = tarfile.TarInfo("good/link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
    tree = Tree(path)
    assert "good/file" in tree.names
    assert not [name for name in tree.names if ".." in name or "link" in name]
    assert [tree.read(name) for name in tree.names] == [b"x"] * len(tree.names)
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == {path}
    assert not Path("/tmp/feddwa-evil").exists()
