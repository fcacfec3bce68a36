"""Random own data, sound and damaged: each is read, or refused in one line, and what is read can be divided.

Kinds of damage are drawn from what files suffer: bytes changed, cut or put in, columns renamed, cells emptied, files
of another kind. A sound file must be read: otherwise a loader that refuses everything would pass.
"""

import io
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.data.options import DataOptions
from feddwa.data.own.plan import EVERYBODY
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.conftest import FUZZED

SOME = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
CELLS = st.one_of(
    st.integers(-3, 10).map(str),
    st.floats(allow_nan=True).map(str),
    st.sampled_from(["", " ", "NA", "01", "1", "1.0", "true", "[1]", "yes", '"', "hospital-3", "\ufeff", "2020-01-01"]),
    NAMES,
)
OPTIONS = st.just(EVERYBODY) | st.builds(
    DataOptions,
    label=st.sampled_from([None, "a", "label"]),
    client=st.sampled_from([None, "b"]),
    time_column=st.sampled_from([None, None, "a"]),
    test_column=st.sampled_from([None, None, "b"]),
    drop=st.sampled_from([None, None, "a", "b,größe"]),
    impute=st.sampled_from([None, "mean", "drop"]),
    standardise=st.sampled_from([None, True, False]),
    resize=st.sampled_from([None, "4", "3x2"]),
    skip_broken=st.sampled_from([None, True]),
    min_samples=st.sampled_from([None, 1, 2]),
)
HEADERS = st.lists(
    st.sampled_from(["a", "b", "label", "client", "tokens", "image", "", "größe"]), min_size=1, max_size=5
)


@st.composite
def bytes_of(draw, data: bytes) -> bytes:
    """The bytes as they are, cut, changed, lengthened, or others altogether."""
    place = draw(st.integers(0, max(0, len(data) - 1)))
    some = draw(st.binary(min_size=1, max_size=8))
    kinds = {
        "sound": data, "cut": data[:place], "changed": data[:place] + some + data[place + len(some) :],
        "lengthened": data[:place] + some + data[place:], "others": some, "nothing": b"",
    }  # fmt: skip
    return kinds[draw(st.sampled_from(list(kinds)))]


def is_read_or_one_line(path: Path, options: DataOptions = EVERYBODY) -> bool:
    """Load and divide the data at a path; whether they were accepted."""
    FUZZED[f"own {path.suffix[1:] or 'images'}"] += 1
    try:
        data = load(str(path), None, options)
        assert len(data.x) == len(data.y)
        assert np.isfinite(data.x).all()
        assert data.client is None or len(data.client_names) == data.owners
        assert np.isfinite(data.mean).all()
        assert np.all(data.std)
        load_task(RunConfig(dataset=str(path), clients=2, **options.given()).resolved())
    except InputError as error:
        refusal = str(error)
    else:
        return True
    assert "\n" not in refusal
    assert 10 < len(refusal) < 1000
    return False


@SOME
@given(header=HEADERS, data=st.data(), separator=st.sampled_from([",", ",", ",", ";", "\t"]),
       encoding=st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16"]))  # fmt: skip
def test_any_csv(header, data, separator, encoding):
    rows = data.draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=6))
    text = "\n".join(separator.join(row) for row in [header, *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "own.csv")
        path.write_bytes(data.draw(bytes_of(text.encode(encoding, "replace"))))
        is_read_or_one_line(path, data.draw(OPTIONS))


@st.composite
def columns(draw, rows: int) -> pa.Array:
    """A column of any type that Parquet has and people use."""
    small = st.integers(0, 3)
    values = {
        "whole": (small, pa.int64()), "small": (small, pa.uint8()), "real": (st.floats(width=32), pa.float32()),
        "half": (st.floats(0, 4, width=16), pa.float16()), "names": (NAMES, pa.string()),
        "bytes": (st.binary(max_size=3), pa.binary()),
        "truth": (st.booleans(), pa.bool_()), "list": (st.lists(small, min_size=2, max_size=2), pa.list_(pa.int64())),
        "lists": (st.lists(st.lists(small, max_size=2), max_size=2), pa.list_(pa.list_(pa.int64()))),
        "reals": (st.lists(st.floats(width=32), max_size=2), pa.list_(pa.float32())),
        "struct": (st.fixed_dictionaries({"bytes": st.binary(max_size=3)}), pa.struct([("bytes", pa.binary())])),
        "date": (st.dates(), pa.date32()), "nothing": (st.none(), pa.null()),
        "map": (st.just([("a", 1)]), pa.map_(pa.string(), pa.int64())), "long": (NAMES, pa.large_string()),
        "fixed": (st.lists(small, min_size=2, max_size=2), pa.list_(pa.int32(), 2)),
    }  # fmt: skip
    strategy, kind = values[draw(st.sampled_from(list(values)))]
    gaps = strategy if draw(st.booleans()) else st.none() | strategy
    column = pa.array(draw(st.lists(gaps, min_size=rows, max_size=rows)), type=kind)
    plain = pa.types.is_string(kind) or pa.types.is_int64(kind)
    return column.dictionary_encode() if plain and draw(st.booleans()) else column


@SOME
@given(header=HEADERS, rows=st.integers(0, 6), data=st.data())
def test_any_parquet(header, rows, data):
    table = pa.Table.from_arrays([data.draw(columns(rows)) for _ in header], header)
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "own.parquet")
        path.write_bytes(data.draw(bytes_of(buffer.getvalue())))
        is_read_or_one_line(path, data.draw(OPTIONS))


ARRAYS = st.builds(
    lambda shape, kind, seed: np.random.default_rng(seed).normal(128, 100, shape).astype(kind),
    st.lists(st.integers(0, 4), max_size=4).map(lambda rest: (4, *rest)) | st.just(()) | st.just((0,)),
    st.sampled_from(["f2", "f4", "f8", "i1", "i4", "i8", "u2", "u8", "?", "U4", "S4", "c8", "m8[s]"]),
    st.integers(0, 9),
)


@SOME
@given(content=st.dictionaries(st.sampled_from(
    ["x", "y", "client", "tokens", "x_test", "y_test", "client_test", "z"]), ARRAYS), data=st.data())  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_any_npz(content, data):
    buffer = io.BytesIO()
    np.savez(buffer, **content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "own.npz")
        path.write_bytes(data.draw(bytes_of(buffer.getvalue())))
        is_read_or_one_line(path, data.draw(OPTIONS))


@st.composite
def images(draw) -> bytes:
    """An encoded image of any format and mode, sound or not."""
    mode = draw(st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"]))
    buffer = io.BytesIO()
    image = Image.new(mode, (draw(st.integers(1, 3)), 2))
    try:
        image.save(buffer, draw(st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "TIFF", "PPM", "WEBP"])))
    except (OSError, KeyError, ValueError):  # a format that does not have this mode
        return b"no image"
    return draw(bytes_of(buffer.getvalue()))


PLACES = st.sampled_from(
    ["", "a", "b", "x/a", "x/b", "y/a", "train/a", "train/b", "test/a", "train/x/a", "test/x/a", "x/y/z/a", "x/y/z/a/b"]
)
FILES = st.sampled_from(["1.png", "2.PNG", "3.jpg", "4.tif", ".hidden.png", "notes.txt", "train.parquet", "größe.gif"])


@SOME
@given(files=st.dictionaries(st.tuples(PLACES, FILES), images(), max_size=8), options=OPTIONS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Pillow, about damaged TIFF files
def test_any_folder(files, options):
    with tempfile.TemporaryDirectory() as folder:
        for (place, name), content in files.items():
            path = Path(folder, "own", place)
            path.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        Path(folder, "own").mkdir(exist_ok=True)
        is_read_or_one_line(Path(folder, "own"), options)


def test_sound_files_are_read(tmp_path, rng):
    """What the fuzzers damage is fine before."""
    table = pa.table({"a": rng.normal(size=20), "label": ["no", "yes"] * 10, "client": ["x"] * 10 + ["y"] * 10})
    pq.write_table(table, tmp_path / "own.parquet")
    pa.csv.write_csv(table, tmp_path / "own.csv")
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2, client=np.arange(20) // 10)
    for i in range(20):
        path = tmp_path / "own" / "xy"[i // 10] / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), i).save(path)
    assert all(is_read_or_one_line(tmp_path / name) for name in ("own.csv", "own.parquet", "own.npz", "own"))
