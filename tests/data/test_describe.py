"""A partition in numbers, as a table and as a picture; partitioners of other libraries; two processes at one cache."""

import io
import subprocess
import sys
import types

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from feddwa.data import cache
from feddwa.data.adapter import from_partitioner
from feddwa.data.dataset import Dataset
from feddwa.data.describe import describe, draw, table
from feddwa.data.partition import Partition, make
from feddwa.data.sources import load
from feddwa.errors import InputError


def by_hand(*label_lists):
    """Clients with these labels: the last of each is the test row."""
    y = np.concatenate(label_lists)
    ends = np.cumsum([len(labels) for labels in label_lists])
    rows = np.split(np.arange(len(y)), ends[:-1])
    dataset = Dataset("hand", np.zeros((len(y), 1)), y, 1, int(y.max()) + 1)
    return dataset, Partition([r[:-1] for r in rows], [r[-1:] for r in rows])


def test_figures_by_hand():
    figures = describe(*by_hand([0, 0, 0, 0], [1, 1, 2, 2], [0, 0, 1, 1]))
    assert figures.counts.tolist() == [[4, 0, 0], [0, 2, 2], [2, 2, 0]]
    assert figures.effective_classes == pytest.approx([1, 2, 2])
    assert figures.label_distance == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert figures.summary()["classes_mean"] == pytest.approx(5 / 3)


def test_extremes():
    digits = load("digits")
    iid = describe(digits, make("iid", {}, digits, 5, 0)).summary()
    assert iid["label_distance_mean"] < 0.1
    assert iid["effective_classes_mean"] > 9.7
    assert describe(digits, make("iid", {}, digits, 1, 0)).label_distance == 0
    relabelled = describe(digits, make("label-permutation", {}, digits, 8, 0))
    assert relabelled.label_distance < 0.15  # all classes are equally frequent whatever their names


def test_labels_are_counted_as_the_client_sees_them():
    dataset, partition = by_hand([0, 0, 0], [0, 0, 1])
    swapped = Partition(partition.train, partition.test, relabel=np.array([[0, 1], [1, 0]]))
    assert describe(dataset, swapped).counts.tolist() == [[3, 0], [1, 2]]


def test_the_table_names_groups_sizes_and_classes():
    digits = load("digits")
    console = Console(width=100, file=io.StringIO())
    console.print(table(describe(digits, make("rotations", {}, digits, 20, 0)), most=3))
    for word in ("client", "group", "quarter turns", "effective", "largest classes", "and 17 more clients"):
        assert word in console.file.getvalue()


@pytest.mark.parametrize(("name", "clients"), [("groups", 20), ("dirichlet", 6)])
def test_the_picture_is_written(tmp_path, name, clients):
    digits = load("digits")
    figures = describe(digits, make(name, {"alpha": 1.0} if name == "dirichlet" else {}, digits, clients, 0))
    draw(figures, tmp_path / "p.png", "digits")
    with Image.open(tmp_path / "p.png") as image:
        assert min(image.size) > 300
    with pytest.raises(InputError, match=r"--out .*cannot write the picture"):
        draw(figures, tmp_path / "nowhere" / "p.png")
    with pytest.raises(InputError, match=r"--out .*cannot write the picture"):
        draw(figures, tmp_path / "p.unknown")


def test_many_classes_are_drawn_as_a_map(tmp_path):
    dataset = Dataset("many", np.zeros((4000, 1)), np.arange(4000) % 40, 3000, 40)
    draw(describe(dataset, make("iid", {}, dataset, 5, 0)), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


def test_of_targets_that_are_no_classes_the_sizes_are_described():
    dataset = Dataset("real", np.zeros((10, 1)), np.linspace(0, 1, 10), 8, 0)
    description = describe(dataset, make("iid", {}, dataset, 2, 0))
    assert not description.classed
    assert description.train_sizes.sum() == 8
    assert description.test_sizes.sum() == 2


# Partitioners of other libraries.


class Columns(dict):
    """The little of a Hugging Face dataset that a partitioner like the one below needs."""

    @classmethod
    def from_dict(cls, columns):
        return cls({name: list(values) for name, values in columns.items()})

    def select(self, rows):
        return Columns({name: [values[i] for i in rows] for name, values in self.items()})


class ByLabel:
    """One client per label, in the form of flwr-datasets."""

    def __init__(self, overlap=False):
        self.overlap = overlap

    @property
    def num_partitions(self):
        return len(set(self.dataset["label"]))

    def load_partition(self, i):
        labels = self.dataset["label"]
        return self.dataset.select(
            [row for row, label in enumerate(labels) if label == i or (self.overlap and row == 0)]
        )


@pytest.fixture
def columns(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=Columns))


@pytest.mark.usefixtures("columns")
def test_a_foreign_partitioner_divides_our_rows():
    digits = load("digits")
    partition = from_partitioner(ByLabel(), digits, seed=1)
    assert len(partition.train) == 10
    for label in range(10):
        rows = np.concatenate([partition.train[label], partition.test[label]])
        assert np.array_equal(np.sort(rows), np.flatnonzero(digits.y == label))
        assert len(partition.test[label]) == round(0.2 * len(rows))
    again = from_partitioner(ByLabel(), digits, seed=1)
    assert all(map(np.array_equal, partition.train, again.train))
    with pytest.raises(InputError, match="partitioner ByLabel: it gives a row to two clients"):
        from_partitioner(ByLabel(overlap=True), digits)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'feddwa\[hub\]'"):
        from_partitioner(ByLabel(), load("digits"))


def test_the_real_partitioners_of_flwr_datasets():
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    digits = load("digits")
    pathological = partitioner.PathologicalPartitioner(
        num_partitions=10, partition_by="label", num_classes_per_partition=2, class_assignment_mode="deterministic"
    )
    figures = describe(digits, from_partitioner(pathological, digits))
    assert ((figures.counts > 0).sum(axis=1) == 2).all()


# Two processes at one cache.

WRITER = """
import sys
from feddwa.data import cache
from feddwa.data.sources import load
dataset = load("digits")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    stored = cache.store("race", "a" * 16, dataset)
    assert stored.x.sum() == dataset.x.sum()
"""


@pytest.mark.slow
def test_two_processes_that_write_the_same_entry_at_once(own_cache):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER], **pipes) for _ in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    assert [entry.name for entry in own_cache.iterdir()] == ["race-" + "a" * 16]
    assert cache.find("race", "a" * 16).train_count == 1438
