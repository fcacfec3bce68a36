"""Data that are in memory: pandas DataFrames and PyTorch datasets."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from feddwa.data.options import DataOptions
from feddwa.data.own.objects import from_frame, from_torch
from feddwa.data.partition import make
from feddwa.errors import InputError

pd = pytest.importorskip("pandas")


def frame(count=20, **columns):
    return pd.DataFrame({"x": np.arange(count) / 10, "label": np.arange(count) % 2, **columns})


def refused(make, *words):
    with pytest.raises(InputError) as error:
        make()
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


# DataFrames.


def test_one_frame_with_a_column_of_owners():
    data = from_frame(frame(client=["s1", "s2"] * 10))
    assert (data.client_names, data.x.shape, data.train_count) == (("s1", "s2"), (20, 1), 16)
    assert len(data.mean) == 1


def test_a_frame_for_each_client():
    data = from_frame({"north": frame(20), "south": frame(10)})
    assert data.client_names == ("north", "south")
    assert [len(rows) for rows in make("natural", {}, data, 2, 0).train] == [16, 8]
    assert from_frame({"alone": frame(20)}).client_names == ("alone",)


def test_columns_of_frames_are_those_of_tables():
    content = frame(
        kind=pd.Categorical(["u", "v"] * 10), age=pd.array([1, None] * 10, dtype="Int64"), ok=[True, False] * 10
    )
    data = from_frame(content, DataOptions(impute="mean"))
    assert data.x.shape == (20, 5)
    assert [column.kind for column in data.form.columns] == ["number", "category", "number", "number"]
    options = DataOptions(label="target", client="site")
    assert from_frame(frame(target=["a", "b"] * 10, site=[1, 2] * 10).drop(columns="label"), options).owners == 2


def test_the_index_of_a_frame_is_no_feature():
    assert from_frame(frame().set_index(pd.Index(range(100, 120)))).x.shape == (20, 1)


def test_a_named_index_is_a_column_where_it_is_needed():
    indexed = frame().assign(client=["a", "b"] * 10).set_index("client")
    assert from_frame(indexed).client_names == ("a", "b")
    assert from_frame(indexed).x.shape == (20, 1)
    assert from_frame(indexed.rename_axis("site")).client is None
    assert from_frame(indexed.rename_axis("site"), DataOptions(client="site")).client_names == ("a", "b")


def test_frames_are_a_function_of_object_and_options():
    content = frame(20)
    before = content.copy()
    first, second = from_frame(content), from_frame(content)
    assert np.array_equal(first.x, second.x)
    assert content.equals(before)


REFUSED_FRAMES = {
    "no frame": (lambda: from_frame([1, 2]), "dataset: a list, must be a pandas DataFrame"),
    "no clients": (lambda: from_frame({}), "dataset: clients []"),
    "a client without a name": (lambda: from_frame({"": frame()}), "must have a name"),
    "no label": (lambda: from_frame(frame().drop(columns="label")), "dataset: no label column", "--label"),
    "a gap": (lambda: from_frame(frame(z=[None] + [1.0] * 19)), "dataset: row 1 has no value in column 'z'"),
    "a gap of one client": (
        lambda: from_frame({"a": frame(), "b": frame(z=1).drop(columns="z").assign(x=[np.nan] * 20)}),
        "dataset['b']: row 1 has no value in column 'x' (and 19 other rows)",
    ),
    "other columns": (lambda: from_frame({"a": frame(), "b": frame(z=1)}), "dataset['b']: not like dataset['a']"),
    "dates": (lambda: from_frame(frame(day=pd.date_range("2026-01-01", periods=20))), "column 'day' holds dates"),
    "things": (lambda: from_frame(frame(z=[1, "a"] * 10)), "not a table that can be read"),
    "a column twice": (lambda: from_frame(pd.concat([frame(), frame()], axis=1)), "not a table", "uplicate"),
    "owners twice": (lambda: from_frame({"a": frame(client="s")}), "dataset['a']: has a column 'client'"),
    "a resize": (lambda: from_frame(frame(), DataOptions(resize="8")), "--resize: has no effect on"),
    "no rows": (lambda: from_frame(frame(0)), "no rows"),
}


@pytest.mark.parametrize("case", REFUSED_FRAMES)
def test_a_frame_is_refused_in_one_line(case):
    refused(*REFUSED_FRAMES[case])


# PyTorch.


def tensors(count=20, *shape):
    return TensorDataset(torch.arange(count).float().reshape(-1, 1).expand(count, 3), torch.arange(count) % 2)


class Photos(Dataset):
    """Pillow images and whole numbers, as torchvision's folders give them."""

    def __init__(self, count=10, mode="RGB"):
        self.count, self.mode = count, mode

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return Image.new(self.mode, (6, 4), i if self.mode == "L" else (i, i, i)), i % 2


class Stream(IterableDataset):
    def __iter__(self):
        return ((torch.full((3,), float(i)), i % 2) for i in range(10))


class Broken(Dataset):
    """Files of which one is missing."""

    def __len__(self):
        return 4

    def __getitem__(self, place):
        raise FileNotFoundError("gone")


class Untold(Broken):
    """Samples without targets."""

    def __getitem__(self, place):
        return torch.ones(3), None


def test_numbers_of_all_types_are_read():
    x, y = torch.arange(24.0).reshape(8, 3), torch.arange(8) % 2
    mixed = [TensorDataset(x.to(torch.bfloat16), y.int()), TensorDataset(x.double(), y), TensorDataset(x.half(), y)]
    data = from_torch(mixed)
    assert (str(data.x.dtype), data.classes, data.client_names) == ("float32", 2, ("0", "1", "2"))
    assert (np.sort(data.x, axis=0).reshape(8, 3, 3) == np.sort(x.numpy(), axis=0)[:, None]).all()


def test_a_dataset_for_each_client():
    data = from_torch({"north": tensors(20), "south": tensors(10)})
    assert (data.client_names, data.x.shape, data.x.dtype) == (("north", "south"), (30, 3), np.float32)
    assert data.mean == ()  # as they are, unless it is asked for
    assert from_torch([tensors(20), tensors(10)]).client_names == ("0", "1")
    assert from_torch(tensors(20)).client is None
    assert len(from_torch([tensors(20)], DataOptions(standardise=True)).mean) == 3


def test_clients_with_a_test_set_of_their_own():
    data = from_torch({"a": (tensors(8), tensors(4)), "b": (tensors(6), tensors(2))})
    assert (data.train_count, len(data.x)) == (14, 20)
    assert [len(rows) for rows in make("natural", {}, data, 2, 0).test] == [4, 2]


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_pillow_images_are_pixels(mode, channels):
    data = from_torch([Photos(10, mode), Photos(6, mode)])
    assert (data.x.shape, data.x.dtype) == ((16, channels, 4, 6), np.uint8)
    assert np.array_equal(data.x[:, 0, 0, 0] % 2, data.y)


def test_a_dataset_that_is_iterated():
    assert from_torch([Stream(), Stream()]).x.shape == (20, 3)


def test_whole_numbers_in_flat_rows_are_token_ids():
    data = from_torch([TensorDataset(torch.ones(10, 5, dtype=torch.int64), torch.arange(10) % 2)] * 2)
    assert (data.x.dtype, data.form.tokens) == (np.int64, True)


def test_real_targets_are_no_classes():
    assert from_torch([TensorDataset(torch.ones(10, 5), torch.rand(10))] * 2).classes == 0


REFUSED_TORCH = {
    "no dataset": (lambda: from_torch([[1, 2]]), "dataset[0]: is a list, must be a torch Dataset"),
    "three of them": (
        lambda: from_torch({"a": (tensors(),) * 3}),
        "dataset['a']: is a tuple, must be a torch Dataset, or a pair",
    ),
    "no clients": (lambda: from_torch([]), "dataset: has no clients"),
    "three tensors": (lambda: from_torch([TensorDataset(*[torch.ones(4)] * 3)]), "a TensorDataset of 3 tensors"),
    "unequal shapes": (
        lambda: from_torch([tensors(4), TensorDataset(torch.ones(4, 5), torch.zeros(4))]),
        "dataset: samples of the shapes [(3,), (5,)]",
    ),
    "unequal images": (
        lambda: from_torch([torch.utils.data.ConcatDataset([Photos(2), Photos(2, "L")])]),
        "dataset[0]: sample 2 has shape (4, 6), the first (3, 4, 6)",
    ),
    "a client without samples": (lambda: from_torch([tensors(0), tensors(8)]), "dataset[0]: has no samples"),
    "a client without a test set": (
        lambda: from_torch([(tensors(8), tensors(4)), tensors(8)]),
        "dataset[1]: all clients or none must be a pair",
    ),
    "an item that is not there": (lambda: from_torch([Broken()]), "its items cannot be read (FileNotFoundError: gone)"),
    "a target that is none": (lambda: from_torch([Untold()]), "dataset[0]: target 0 is a NoneType, must be numbers"),
    "one sample": (lambda: from_torch([tensors(8), tensors(1)]), "client 1 has 1 sample"),
    "not finite": (
        lambda: from_torch([TensorDataset(torch.full((4, 2), torch.nan), torch.arange(4))]),
        "x has missing or infinite values, the first in row 1",
    ),
    "a label column": (lambda: from_torch([tensors()], DataOptions(label="y")), "--label: has no effect on PyTorch"),
}


@pytest.mark.parametrize("case", REFUSED_TORCH)
def test_a_torch_dataset_is_refused_in_one_line(case):
    refused(*REFUSED_TORCH[case])
