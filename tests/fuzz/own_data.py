"""Own data: tables, arrays and folders of images, sound and damaged. What is read can be divided, and is finite."""

import io
import random
import shutil
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.data.options import DataOptions
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.fuzz.case import TEXTS, Case, Target, damaged, packed, unpacked

OPTIONS: dict[str, list[Any]] = {
    "label": ["a", "label"], "client": ["b"], "time_column": ["a"], "test_column": ["b"], "drop": ["a", "b,größe"],
    "impute": ["mean", "drop"], "standardise": [True, False], "resize": ["4", "3x2"], "skip_broken": [True],
    "min_samples": [1, 2], "small_clients": ["drop", "refuse"], "split": ["random", "time"], "max_categories": [1, 3],
}  # fmt: skip
HEADERS = ("a", "b", "label", "client", "tokens", "image", "", "größe")
TABULAR = ("impute", "standardise", "split", "max_categories", "drop")
CELLS = ("", " ", "NA", "01", "1", "1.0", "true", "[1]", "yes", '"', "hospital-3", "\ufeff", "2020-01-01", "1e400",
         "-1", "1e38", "nan", "inf", "0.1", "2", "3", "x", *TEXTS)  # fmt: skip


class OwnData(Target):
    """Data at a path, with a few options."""

    file: str
    fitting: tuple[str, ...]  # options that have an effect on data of this kind

    @abstractmethod
    def contents(self, rng: random.Random) -> dict[str, str]:
        """Paths below the folder, and the bytes there."""

    def draw(self, rng: random.Random) -> Case:
        """Files and options."""
        chosen = rng.sample(self.fitting if rng.random() < 0.8 else [*OPTIONS], rng.choice([0, 0, 0, 1, 2]))
        return {"files": self.contents(rng), "options": {name: rng.choice(OPTIONS[name]) for name in chosen}}

    def check(self, case: Case) -> str:
        """Read, with finite numbers, and divisible; or one line."""
        for name, content in case["files"].items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(unpacked(content))
        try:
            options = DataOptions(**case["options"])
            data = load(self.file, None, options)
            assert len(data.x) == len(data.y)
            assert np.isfinite(data.x).all()
            assert data.client is None or len(data.client_names) == data.owners
            assert np.isfinite(data.mean).all()
            assert np.isfinite(data.std).all()
            assert np.all(data.std)
            task = load_task(RunConfig(dataset=self.file, clients=2, **options.given()).resolved())
            assert all(len(rows) for rows in (*task.partition.train, *task.partition.test))
        except InputError as error:
            refusal = str(error)
            assert len(refusal.splitlines()) == 1, refusal
            assert 10 < len(refusal) < 1000, refusal
            return refusal
        finally:
            for path in Path(".").iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return ""


def _maybe(rng: random.Random, data: bytes) -> str:
    return packed(damaged(rng, data) if rng.random() < 0.25 else data)


class Csv(OwnData):
    """Tables as text, in the separators and encodings that programs write."""

    name, file, fitting = "own-csv", "own.csv", TABULAR

    def contents(self, rng: random.Random) -> dict[str, str]:
        """Mostly a sound table with odd cells."""
        header = rng.sample(HEADERS, rng.randint(1, 5)) if rng.random() < 0.3 else ["a", "b", "label"]
        sound, separator = rng.random() < 0.8, rng.choice([",", ",", ",", ";", "\t"])
        odd = rng.choice([0.0, 0.0, 0.02, 0.2]) if sound else 1.0
        cell = lambda: rng.choice(CELLS) if rng.random() < odd else rng.choice(["0", "1", "2.5", "-3", "0.25"])  # noqa: E731
        rows = [[cell() for _ in header] for _ in range(rng.choice([0, 1, 4, 20, 20, 30]))]
        for row in rows:
            if sound and header[-1] == "label":
                row[-1] = rng.choice(["yes", "no"])
        text = rng.choice(["\n", "\n", "\r\n"]).join(separator.join(row) for row in [header, *rows])
        encoding = rng.choice(["utf-8"] * 8 + ["utf-8-sig", "latin-1", "utf-16"])
        return {self.file: _maybe(rng, text.encode(encoding, "replace"))}


class Parquet(OwnData):
    """Tables with a column of any type that Parquet has and people use."""

    name, file, fitting = "own-parquet", "own.parquet", TABULAR

    def contents(self, rng: random.Random) -> dict[str, str]:
        """A table of a few columns."""
        header, rows = rng.choices(HEADERS, k=rng.randint(1, 5)), rng.choice([0, 1, 4, 20, 20, 30])
        if rng.random() < 0.8:
            header = [*rng.sample(["a", "b", "größe"], 2), *["client"] * (rng.random() < 0.2), "label"]
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_arrays([_column(rng, name, rows) for name in header], header), buffer)
        return {self.file: _maybe(rng, buffer.getvalue())}


def _column(rng: random.Random, name: str, rows: int) -> pa.Array:
    small, real = lambda: rng.randint(0, 3), lambda: rng.choice([0.0, 0.5, -2.0, 1e30, float("nan"), float("inf")])
    text = lambda: rng.choice(["x", "y", "", "é", *TEXTS[:3]])  # noqa: E731
    kinds = {
        "whole": (small, pa.int64()), "small": (small, pa.uint8()), "real": (real, pa.float32()),
        "fine": (rng.random, pa.float64()), "half": (lambda: np.float16(small()), pa.float16()),
        "names": (text, pa.string()), "bytes": (lambda: rng.randbytes(2), pa.binary()),
        "truth": (lambda: rng.random() < 0.5, pa.bool_()), "list": (lambda: [small(), small()], pa.list_(pa.int64())),
        "lists": (lambda: [[small()]] * small(), pa.list_(pa.list_(pa.int64()))),
        "reals": (lambda: [real()] * small(), pa.list_(pa.float32())), "nothing": (lambda: None, pa.null()),
        "struct": (lambda: {"bytes": rng.randbytes(3)}, pa.struct([("bytes", pa.binary())])),
        "date": (small, pa.date32()), "map": (lambda: [("a", 1)], pa.map_(pa.string(), pa.int64())),
        "long": (text, pa.large_string()), "fixed": (lambda: [small(), small()], pa.list_(pa.int32(), 2)),
        "time": (small, pa.timestamp("s")), "exact": (small, pa.decimal128(5, 2)),
    }  # fmt: skip
    usual = ["whole", "names", "truth"] if name in ("label", "client") else ["fine", "fine", "small"]
    draw, kind = kinds[rng.choice(usual if rng.random() < 0.8 else [*kinds])]
    gaps = rng.random() < 0.1
    values = [None if gaps and rng.random() < 0.3 else draw() for _ in range(rows)]
    column = pa.array(values, type=kind)
    plain = pa.types.is_string(kind) or pa.types.is_int64(kind)
    return column.dictionary_encode() if plain and rng.random() < 0.3 else column


class Npz(OwnData):
    """Arrays of any type and shape."""

    name, file, fitting = "own-npz", "own.npz", ("standardise", "split")

    def contents(self, rng: random.Random) -> dict[str, str]:
        """Mostly x and y of one length."""
        rows = rng.choice([1, 4, 20, 30])
        found = {"x": _array(rng, rows, "x"), "y": _array(rng, rows, "y")}
        for name in ("client", "tokens", "x_test", "y_test", "client_test", "z"):
            if rng.random() < 0.05:
                found[name] = _array(rng, rows, name)
        for name in rng.sample([*found], rng.choice([0, 0, 0, 1])):
            del found[name]
        buffer = io.BytesIO()
        np.savez(buffer, **found)
        return {self.file: _maybe(rng, buffer.getvalue())}


def _array(rng: random.Random, rows: int, name: str) -> np.ndarray:
    noise = np.random.default_rng(rng.getrandbits(32))
    if rng.random() < 0.8:
        if name.startswith(("y", "client", "tokens")):
            return noise.integers(0, 3, (rows, *[5] * (name == "tokens")))
        return noise.normal(size=(rows, *rng.choice([(3,), (2, 3), (4, 4, 3), (1, 4, 4)]))).astype(np.float32)
    kind = rng.choice(["f2", "f4", "f8", "i1", "i4", "i8", "u2", "u8", "?", "U4", "S4", "c8", "m8[s]", "M8[s]"])
    shape = rng.choice([(), (0,), (rows,), (rows, 2), (rows, 2, 2), (rows + 1, 3), (rows, 0), (rows, 1, 1, 1, 1)])
    values = noise.normal(128, 100, shape)
    if rng.random() < 0.2 and values.size:
        values.flat[0] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e300])
    with np.errstate(all="ignore"):
        return values.astype(kind)


class Images(OwnData):
    """Folders of encoded images of any format and mode, among files that are none."""

    name, file, fitting = "own-images", "own", ("resize", "skip_broken", "split")

    def contents(self, rng: random.Random) -> dict[str, str]:
        """Mostly two classes of images of one size."""
        found = {}
        classes = rng.choice(
            [["a", "b"], ["x/a", "x/b", "y/a", "y/b"], ["train/a", "train/b", "test/a", "test/b"], [""]]
        )
        odd = ["", "x/y/z/a", "train/x/a", ".hidden/a", "größe/a"]
        for number in range(rng.choice([0, 1, 16, 16, 24])):
            place = rng.choice(classes if rng.random() < 0.97 else odd)
            ending = rng.choice([".png"] * 40 + [".PNG", ".jpg", ".tif", ".gif", ".txt", ".parquet"])
            found[f"{self.file}/{place}/{number}{ending}".replace("//", "/")] = packed(_image(rng))
        return found or {f"{self.file}/notes.txt": packed(b"nothing")}

    def check(self, case: Case) -> str:
        """As of all data; Pillow may warn of a damaged TIFF."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
            return super().check(case)


def _image(rng: random.Random) -> bytes:
    sound = rng.random() < 0.97
    mode = "L" if sound else rng.choice(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
    size = (3, 2) if sound else rng.choice([(1, 1), (3, 2), (2, 3)])
    buffer, image = io.BytesIO(), Image.new(mode, size)
    try:
        image.save(buffer, "PNG" if sound else rng.choice(["PNG", "JPEG", "BMP", "GIF", "TIFF", "PPM", "WEBP"]))
    except (OSError, KeyError, ValueError):  # a format that does not have this mode
        return b"no image"
    return damaged(rng, buffer.getvalue()) if rng.random() < 0.02 else buffer.getvalue()
