"""Own data: folders, arrays and tables, with and without owners."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.data.options import DataOptions
from feddwa.data.own import assemble, load_own
from feddwa.data.partition import make
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.data.conftest import refuses


def write_image(path, level, side=8, grey=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (side, side) if grey else (side, side, 3)
    Image.fromarray(np.full(shape, level, dtype=np.uint8)).save(path)


# Folders of images.


def test_a_folder_per_class(tmp_path, own_cache):
    for c, name in enumerate(["cat", "dog"]):
        for i in range(10):
            write_image(tmp_path / "pets" / name / f"{i}.png", 100 * c + i)
    pets = load(str(tmp_path / "pets"))
    assert (pets.name, pets.classes, pets.class_names, pets.client) == (str(tmp_path / "pets"), 2, ("cat", "dog"), None)
    assert pets.x.shape == (20, 3, 8, 8)
    assert pets.train_count == 16
    assert np.bincount(pets.y[16:]).tolist() == [2, 2]
    assert np.array_equal(pets.x[:, 0, 0, 0] >= 100, pets.y == 1)
    assert [entry.name[:9] for entry in own_cache.iterdir()] == ["own-pets-"]
    again = load(str(tmp_path / "pets"))
    assert isinstance(again.x, np.memmap)
    assert np.array_equal(again.x, pets.x)


def test_a_folder_that_bears_the_name_of_a_dataset_is_not_taken_for_it(tmp_path):
    for i in range(20):
        write_image(tmp_path / "cifar100" / "ab"[i % 2] / f"{i}.png", i, side=8)
    config = RunConfig(dataset=str(tmp_path / "cifar100"), partition="pathological", clients=2).resolved()
    assert "pathological.classes_per_client=2" in config.param  # not the paper's six of CIFAR-100
    assert len(load_task(config).partition.train) == 2


def test_a_folder_per_client_keeps_the_owners(tmp_path):
    for owner, count in (("anna", 5), ("bert", 10)):
        for i in range(count):
            write_image(tmp_path / owner / "ab"[i % 2] / f"{i}.png", 50 if owner == "anna" else 200, grey=True)
    data = load(str(tmp_path))
    assert data.x.shape == (15, 1, 8, 8)
    assert data.owners == 2
    partition = make("natural", {}, data, 2, 0)
    assert [len(rows) for rows in partition.train] == [4, 8]
    assert [len(rows) for rows in partition.test] == [1, 2]
    assert (data.x[partition.train[0]] == 50).all()


def test_train_and_test_folders_are_kept(tmp_path):
    for split, level in (("train", 10), ("test", 20)):
        for owner in "xy":
            for c in "ab":
                write_image(tmp_path / split / owner / c / "1.png", level)
    data = load(str(tmp_path))
    assert data.train_count == 4
    assert (data.x[:4] == 10).all()
    assert (data.x[4:] == 20).all()
    assert data.owners == 2


def test_bad_folders_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    refuses(tmp_path / "empty", "holds no images")
    write_image(tmp_path / "flat" / "1.png", 0)
    refuses(tmp_path / "flat", "<class>/", "<client>/<class>/")
    write_image(tmp_path / "mixed" / "a" / "1.png", 0)
    write_image(tmp_path / "mixed" / "a" / "2.png", 0, side=9)
    refuses(tmp_path / "mixed", "2.png: image of 9x9 pixels, must be 8x8")
    write_image(tmp_path / "lonely" / "anna" / "a" / "1.png", 0)
    for i in range(3):
        write_image(tmp_path / "lonely" / "bert" / "a" / f"{i}.png", 0)
    refuses(tmp_path / "lonely", "client anna has 1 sample, must be at least 2")
    (tmp_path / "broken" / "a").mkdir(parents=True)
    (tmp_path / "broken" / "a" / "1.png").write_bytes(b"no image")
    refuses(tmp_path / "broken", "1.png: not a readable image")
    refuses(tmp_path / "nothing", "no such file or folder")
    (tmp_path / "data.xls").write_bytes(b"")
    refuses(tmp_path / "data.xls", "must be a folder or a file .npz, .csv, .tsv, .parquet")


# Arrays.


def test_npz_with_owners(tmp_path, rng):
    x, y = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), rng.integers(5, 8, 40)
    np.savez(tmp_path / "own.npz", x=x, y=y, client=np.arange(40) % 4)
    data = load(str(tmp_path / "own.npz"))
    assert data.x.shape == (40, 3, 8, 8)
    assert data.class_names == ("5", "6", "7")
    assert data.train_count == 32
    for i in range(4):
        assert (data.client[:32] == i).sum() == 8
    match = (data.x[:, None] == x.transpose(0, 3, 1, 2)[None]).all(axis=(2, 3, 4)).argmax(axis=1)
    assert np.array_equal(data.y + 5, y[match])
    assert np.array_equal(data.client, match % 4)


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (np.zeros((20, 6), dtype=np.float64), (20, 6), np.float32),
        (np.zeros((20, 6), dtype=bool), (20, 6), np.float32),
        (np.zeros((20, 8, 8), dtype=np.uint8), (20, 1, 8, 8), np.uint8),
        (np.zeros((20, 3, 8, 8), dtype=np.uint8), (20, 3, 8, 8), np.uint8),
        (np.zeros((20, 1, 8, 8), dtype=np.float32), (20, 1, 8, 8), np.float32),
    ],
)
def test_samples_of_any_kind(x, shape, dtype):
    data = assemble("own", x, np.arange(20) % 2)
    assert data.x.shape == shape
    assert data.x.dtype == dtype


def test_targets_of_any_kind():
    x = np.zeros((20, 3))
    assert assemble("own", x, np.linspace(0, 1, 20)).classes == 0
    text = assemble("own", x, np.array(["no", "yes"] * 10))
    assert (text.class_names, text.classes) == (("no", "yes"), 2)
    tokens = assemble("own", x, np.arange(100).reshape(20, 5))
    assert (tokens.y.shape, tokens.classes) == ((20, 5), 100)
    assert len(make("iid", {}, tokens, 2, 0).train) == 2
    with pytest.raises(InputError, match="no class labels"):
        make("dirichlet", {}, tokens, 2, 0)


def test_bad_arrays_are_named(tmp_path):
    file = tmp_path / "own.npz"
    file.write_bytes(b"something else")
    refuses(file, "not a readable .npz file")
    np.savez(file, inputs=np.zeros(3))
    refuses(file, "must hold x (or tokens) and y", "it has 'inputs'")
    np.savez(file, x=np.zeros((3, 2)), y=np.zeros(4, dtype=int))
    refuses(file, "3 samples, 4 labels")
    np.savez(file, x=np.full((4, 2), np.nan), y=np.zeros(4, dtype=int))
    refuses(file, "missing or infinite")
    np.savez(file, x=np.array(["a", "b"]), y=np.array([0, 1]))
    refuses(file, "must be numbers")
    np.savez(file, x=np.array([{}, {}], dtype=object), y=np.array([0, 1]))
    refuses(file, "x holds Python objects")  # they would have to be unpickled
    np.savez(file, x=np.zeros((5, 2)), y=np.zeros(5, dtype=int), client=np.array([0, 0, 0, 0, 1]))
    refuses(file, "client 1 has 1 sample")


# Tables.


def test_csv_with_label_and_client(tmp_path):
    lines = ["age,height,label,client"] + [f"{i},{i / 10},{'ab'[i % 2]},clinic-{i % 3}" for i in range(30)]
    (tmp_path / "people.csv").write_text("\n".join(lines))
    data = load(str(tmp_path / "people.csv"))
    assert (data.x.shape, data.x.dtype) == ((30, 2), np.float32)
    assert (data.class_names, data.owners, data.train_count) == (("a", "b"), 3, 24)
    age = data.x[:, 0].astype(int)
    assert np.array_equal(data.y, age % 2)
    assert np.array_equal(data.client, age % 3)


def test_other_column_names(tmp_path):
    (tmp_path / "own.csv").write_text("a,target,site\n" + "".join(f"{i},{i % 2},{i % 4}\n" for i in range(20)))
    data = load_own(tmp_path / "own.csv", DataOptions(label="target", client="site"))
    assert (data.x.shape, data.classes, data.owners) == ((20, 1), 2, 4)
    refuses(tmp_path / "own.csv", "no label column; looked for 'label'", "has a, target, site; name it with --label")


def test_parquet_with_tokens_images_and_a_test_file(tmp_path):
    tokens = pa.table({"tokens": [[i, i + 1, i + 2] for i in range(10)], "label": [0, 1] * 5})
    pq.write_table(tokens, tmp_path / "text.parquet")
    text = load(str(tmp_path / "text.parquet"))
    assert (text.x.shape, text.x.dtype) == ((10, 3), np.int64)

    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), 9, dtype=np.uint8)).save(buffer, "PNG")
    pictures = pa.table({"image": [{"bytes": buffer.getvalue(), "path": None}] * 4, "label": ["x", "y"] * 2})
    for split in ("train", "test"):
        pq.write_table(pictures, tmp_path / f"{split}.parquet")
    data = load(str(tmp_path))
    assert (data.x.shape, data.train_count, data.class_names) == ((8, 1, 4, 4), 4, ("x", "y"))


def test_bad_tables_are_named(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("name,label\nanna,1\nbert,2\nchris,1\ndora,2\n")
    refuses(file, "column 'name' has a different text in every row; --drop name leaves it out")
    file.write_text("a,label\n1,1\n,2\n3,1\n")
    refuses(file, "row 2 has no value in column 'a'; --impute mean fills it in")
    file.write_text("a,label\n1,1\n2,\n3,1\n")
    refuses(file, "row 2 has no label")
    file.write_text("label\n1\n2\n")
    refuses(file, "no feature columns")
    file.write_text("a,label\n")
    refuses(file, "no rows")
    file.write_text("a,label\n1,2,3\n")
    refuses(file, "not a readable table")
    parquet = tmp_path / "own.parquet"
    parquet.write_bytes(b"PAR1 and then nothing")
    refuses(parquet, "not a readable Parquet file")
    pq.write_table(pa.table({"tokens": [[1], [1, 2]], "label": [0, 1]}), parquet)
    refuses(parquet, "must be of one length, got [1, 2]")
