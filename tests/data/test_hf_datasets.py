"""Datasets of the package `datasets`, written by `save_to_disk` or in the hub's Parquet layout."""

import io

import numpy as np
import pytest
from PIL import Image

from feddwa.data.options import DataOptions
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.data.conftest import refuses

hf = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(path, **options):
    return load(str(path), None, DataOptions(**options))


def labelled(count=20, names=("no", "yes", "never"), **columns):
    """A Dataset whose labels have names, of which one does not occur."""
    content = {"x": [i / 10 for i in range(count)], **columns, "label": [i % 2 for i in range(count)]}
    dataset = hf.Dataset.from_dict(content)
    return dataset.cast_column("label", hf.ClassLabel(names=list(names)))


def tokens(ids):
    return hf.Dataset.from_dict({"input_ids": ids, "label": [i % 2 for i in range(len(ids))]})


def photos(count=20, size=(8, 8)):
    images = [Image.new("RGB", size, (i, i, i)) for i in range(count)]
    content = {"image": images, "label": [i % 2 for i in range(count)], "client": [f"s{i % 4}" for i in range(count)]}
    features = {"image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog"]), "client": hf.Value("string")}
    return hf.Dataset.from_dict(content, hf.Features(features))


@pytest.fixture
def saved(tmp_path):
    def save(dataset):
        path = tmp_path / "saved"
        dataset.save_to_disk(str(path))
        return path

    return save


def test_a_saved_dataset_keeps_its_class_names(saved):
    data = read(saved(labelled()))
    assert (data.class_names, data.classes, data.x.shape) == (("no", "yes", "never"), 3, (20, 1))
    assert np.array_equal(data.y, np.rint(data.x[:, 0] * 10).astype(int) % 2)
    assert len(data.mean) == 1  # a table: standardised


def test_splits_of_a_saved_dict(saved):
    splits = {"train": labelled(20), "validation": labelled(6), "test": labelled(8)}
    data = read(saved(hf.DatasetDict(splits)))
    assert (data.train_count, len(data.x)) == (20, 28)
    assert data.notes == ("splits validation are not used",)


@pytest.mark.parametrize("only", ["train", "everything"])
def test_a_dict_with_one_split_is_held_out_from(saved, only):
    assert read(saved(hf.DatasetDict({only: labelled(20)}))).train_count == 16


def test_images_of_a_saved_dataset(saved):
    path = saved(photos())
    data = read(path)
    assert (data.x.shape, data.x.dtype, data.class_names) == ((20, 3, 8, 8), np.uint8, ("cat", "dog"))
    assert data.client_names == ("s0", "s1", "s2", "s3")
    assert np.array_equal(data.x[:, 0, 0, 0] % 2, data.y)
    assert np.array_equal(data.x[:, 0, 0, 0] % 4, data.client)
    assert read(path, resize="4").x.shape == (20, 3, 4, 4)
    new = data.form.read(path)
    assert (new.x.shape, new.y.tolist(), new.names[0]) == ((20, 3, 8, 8), [0, 1] * 10, "saved row 1")


def test_rows_that_were_chosen_before_saving(saved):
    data = read(saved(labelled(30).select(range(5, 15))))
    assert sorted(np.rint(data.x[:, 0] * 10).astype(int).tolist()) == list(range(5, 15))


def test_parquet_of_the_hub_keeps_class_names(tmp_path):
    labelled().to_parquet(tmp_path / "train-00000-of-00001.parquet")
    labelled(6).to_parquet(tmp_path / "test-00000-of-00001.parquet")
    data = read(tmp_path)
    assert (data.class_names, data.train_count) == (("no", "yes", "never"), 20)
    new = data.form.read(tmp_path / "test-00000-of-00001.parquet")
    assert new.y.tolist() == [0, 1] * 3


def test_token_ids(saved):
    data = read(saved(tokens([[i, 2, 3] for i in range(20)])))
    assert (data.x.dtype, data.x.shape, data.form.tokens) == (np.int64, (20, 3), True)


def test_a_saved_dataset_is_read_once(saved, monkeypatch):
    path = saved(labelled())
    read(path)
    monkeypatch.setattr("feddwa.data.hub.load_saved", lambda *_: pytest.fail("read again"))
    assert isinstance(read(path).x, np.memmap)


REFUSED = {
    "splits without names we know": (
        lambda: hf.DatasetDict({"a": labelled(), "b": labelled()}),
        {},
        "has the splits a, b; must have train",
    ),
    "no label column": (
        lambda: labelled().rename_column("label", "target"),
        {},
        "the file has x, target; name it with --label",
    ),
    "a label without a name": (lambda: labelled().map(lambda row: {"label": -1}), {}, "row 1 has no label"),
    "text": (
        lambda: labelled(30, text=[f"it was {i}" for i in range(30)]),
        {},
        "'text' has a different text in every row",
    ),
    "unequal token lists": (
        lambda: tokens([[1] * (1 + i % 3) for i in range(10)]),
        {},
        "must be of one length, got [1, 2, 3]",
    ),
    "lists beside numbers": (lambda: labelled(20, mask=[[1, 1]] * 20), {}, "column 'mask' holds list"),
    "standardised tokens": (lambda: tokens([[1, 2]] * 10), {"standardise": True}, "--standardise:"),
    "sizes of images": (
        lambda: hf.concatenate_datasets([photos(8), photos(4, (9, 5))]),
        {},
        "row 9: image of 9x5 pixels, must be 8x8",
    ),
    "missing values of images": (lambda: photos(8), {"impute": "mean"}, "--impute: has no effect on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_in_one_line(case, saved):
    make, options, words = REFUSED[case]
    refuses(saved(make()), "saved" if not words.startswith("--") else "", words, **options)


def test_a_broken_image_of_a_saved_dataset_is_named_by_its_row(saved):
    content = [{"bytes": image, "path": None} for image in (b"broken", *[_png()] * 9)]
    features = hf.Features({"image": hf.Image(decode=False), "label": hf.Value("int64")})
    path = saved(hf.Dataset.from_dict({"image": content, "label": [0, 1] * 5}, features))
    refuses(path, "row 1: not a readable image", "1 of 10 images cannot be read; --skip-broken")
    assert len(read(path, skip_broken=True).x) == 9


def test_a_damaged_folder_is_refused(saved):
    path = saved(labelled())
    (path / "state.json").write_text("{")
    refuses(path, "not a readable dataset of `save_to_disk`")


def test_a_repository_that_cannot_be_reached_is_one_line(monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the hub\non two lines")

    monkeypatch.setattr(hf, "load_dataset", offline)
    refuses("hf:lab/scans", "--dataset hf:lab/scans: cannot be fetched (ConnectionError: Couldn't reach the hub)")


def test_a_repository_of_the_hub_is_read_as_a_saved_one_is(monkeypatch, own_cache):
    """The package's own loader on a local dataset: the network is the one thing that is not there."""
    asked = []

    def fetched(name, revision=None):
        asked.append((name, revision))
        return hf.DatasetDict({"train": labelled(20), "test": labelled(8)})

    monkeypatch.setattr(hf, "load_dataset", fetched)
    data = read("hf:lab/scans@abc")
    assert (data.train_count, data.name, asked) == (20, "hf:lab/scans@abc", [("lab/scans", "abc")])
    assert [entry.name[:10] for entry in own_cache.iterdir()] == ["own-scans-"]


def test_a_name_of_the_hub_is_no_reference():
    with pytest.raises(InputError, match="unknown name 'hub:x/y'"):
        load("hub:x/y")


def _png():
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "PNG")
    return buffer.getvalue()
