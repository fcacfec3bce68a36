"""Tables from CSV, Parquet and other columnar data: labels, owners, encoded images in the Hugging Face layout."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from feddwa.data.files import TEST_SPLITS, first_line
from feddwa.data.labels import from_text
from feddwa.errors import InputError

SUFFIXES = (".csv", ".tsv", ".parquet")
IMAGE_COLUMNS = ("img", "image")
_QUOTED = re.compile('"[^"]*"')
BLOCK = 1024  # rows of encoded images in memory at once
_UNREADABLE = (pa.ArrowException, OSError, ValueError)  # Arrow's exceptions for invalid bytes


class Part(NamedTuple):
    """The rows of one file or object."""

    where: str  # its name in errors
    table: pa.Table  # without the column of images
    is_text: bool = False  # from CSV, where "1" may be a number and "01" is a name
    image_column: str = ""  # "" without images
    images: Callable[[], Iterator[tuple[str, bytes]]] = lambda: iter(())  # of every row, each with its location
    class_names: Mapping[str, tuple[str, ...]] = {}  # column -> names of its numbers, if the file has them
    owner: str = ""  # the rows' owner, if the file belongs to one


def split_files(folder: Path, split: str, suffixes: Sequence[str] = (".parquet",)) -> list[Path]:
    """The files of a split, `train-00000-of-00003.parquet` and so on or `train.parquet`; raises if one is missing."""
    found = (file for file in folder.rglob("*") if file.name.lower().endswith(tuple(suffixes)))
    files = sorted(file for file in found if re.match(rf"{split}(-|\.[a-z]+$)", file.name, re.IGNORECASE))
    parts = [match for file in files if (match := re.search(r"-(\d+)-of-(\d+)", file.name))]
    if parts:
        missing = set(range(int(parts[0][2]))) - {int(match[1]) for match in parts}
        if missing:
            raise InputError(f"{folder}: part {min(missing)} of {parts[0][2]} of the {split} split is missing")
    return files


def held_out_files(folder: Path, suffixes: Sequence[str] = (".parquet",)) -> list[Path]:
    """The files of the test split: `test`, or the validation split without one."""
    return next((files for split in TEST_SPLITS if (files := split_files(folder, split, suffixes))), [])


def all_files(folder: Path) -> list[Path]:
    """All tables in a folder, without hidden ones."""
    return sorted(f for f in folder.rglob("*") if is_table(f) and f.is_file() and not f.name.startswith("."))


def is_table(file: Path) -> bool:
    """Whether a file name is that of a table, in upper or lower case."""
    return file.suffix.lower() in SUFFIXES


def is_parquet(file: Path) -> bool:
    """Whether a table is Parquet rather than text."""
    return file.suffix.lower() == ".parquet"


def open_parquet(file: Path) -> pq.ParquetFile:
    """A Parquet file; raises InputError for anything else."""
    try:
        return pq.ParquetFile(file)
    except _UNREADABLE as error:
        raise InputError(f"{file}: not a readable Parquet file, truncated or foreign ({first_line(error)})") from None


def read_part(file: Path, text: Sequence[str] = ()) -> Part:
    """The rows of a CSV, TSV or Parquet file. The columns `text` of CSV stay text: "01" is not the number 1."""
    if not is_parquet(file):
        return Part(str(file), _checked(file, read_table(file, text)), is_text=True)
    schema = open_parquet(file).schema_arrow
    _check_names(file, schema.names)
    image = image_column(schema)
    rest = [name for name in schema.names if name != image]
    table = _checked(file, read_table(file, columns=rest if image else None))
    names = {name.strip(): found for name in rest if (found := class_names(file, name))}
    return Part(str(file), table, False, image, lambda: encoded_images(file, image), names)


def image_column(schema: pa.Schema) -> str:
    """The first column with encoded images, by name or type; "" if there is none."""
    return next((field.name for field in schema if field.name in IMAGE_COLUMNS or _has_bytes(field.type)), "")


def _has_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def read_table(file: Path, text: Sequence[str] = (), columns: list[str] | None = None) -> pa.Table:
    """A Parquet or CSV file. columns: the columns of a Parquet file to read; None: all."""
    try:
        if not is_parquet(file):
            return from_csv(str(file), file.read_bytes(), text, tabs=file.suffix.lower() == ".tsv")
        return open_parquet(file).read(columns)
    except InputError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(file, error) from None


def _unreadable(file: object, error: Exception) -> InputError:
    return InputError(f"{file}: not a readable table, truncated or foreign ({first_line(error)})")


def _checked(file: Path, table: pa.Table) -> pa.Table:
    """The table with unique, stripped column names."""
    _check_names(file, table.column_names)
    return table.rename_columns([name.strip() for name in table.column_names])


def _check_names(file: Path, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(name.strip() for name in names).items() if count > 1]
    if twice:
        count = sum(name.strip() == twice[0] for name in names)
        raise InputError(f"{file}: {count} columns are named {twice[0]!r}; rename them")


def from_csv(where: str, data: bytes, text: Sequence[str] = (), tabs: bool = False) -> pa.Table:
    """A table in text; the columns `text` are not parsed.

    One block, so that column types depend on all rows; one thread, so that errors name the row.
    """
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line} is not UTF-8 text; save the file in that encoding") from None
    header = data.split(b"\n", 1)[0].decode("utf-8-sig")
    if data.strip() and b"\n" not in data.strip():
        raise InputError(f"{where}: no rows")
    between = "\t" if tabs else max(",;\t", key=_QUOTED.sub("", header).count)
    try:
        names = next(csv.reader([header.rstrip("\r")], delimiter=between), [])
    except csv.Error as error:
        raise InputError(f"{where}: the first line cannot be read as column names: {error}") from None
    if _are_values(names):
        raise InputError(f"{where}: the first line is {header.strip()[:60]}; it must name the columns")
    kinds = {name: pa.string() for name in names if name.strip() in text}
    try:
        return pa.csv.read_csv(
            pa.BufferReader(data),
            pa.csv.ReadOptions(use_threads=False, block_size=min(max(len(data), 2**20), 2**31 - 1)),
            pa.csv.ParseOptions(delimiter=between),
            pa.csv.ConvertOptions(column_types=kinds),
        )
    except _UNREADABLE as error:
        raise _unreadable(where, error) from None


def _are_values(names: Sequence[str]) -> bool:
    """Whether a header is a row of numbers; 0, 1, 2, ... are pandas' default names."""
    try:
        values = [float(name) for name in names]
    except ValueError:
        return False
    return len(values) > 0 and values != list(range(len(values)))


def names_column(where: str, column: pa.ChunkedArray, name: str, names: Sequence[str] = ()) -> np.ndarray:
    """A column of labels or owners (n,): integers, real numbers, truth values or text; missing: NaN or "".

    names: of its numbers, if the file has them; negative numbers are then missing.
    """
    column = plain(column)
    kind = column.type
    if is_text(kind):
        return np.array([value or "" for value in column.to_pylist()], dtype=str)
    if not is_number(kind):
        raise InputError(f"{where}: column {name!r} holds {kind}; must be numbers or names")
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    values = np.asarray(column.to_numpy())
    if names and pa.types.is_integer(kind) and not column.null_count:
        if len(values) and values.max() >= len(names):
            raise InputError(f"{where}: column {name!r} has the number {values.max()}, and names for {len(names)}")
        return np.asarray(np.array([*names, ""])[np.maximum(values, -1)])
    return values


def texts(values: np.ndarray) -> np.ndarray:
    """A text column of CSV files, as numbers if all entries are."""
    return from_text(values) if values.dtype.kind == "U" and len(values) else values


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A categorical column as plain values, any other column unchanged; never of null type."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type is a feature without encoding."""
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def writes_number(text: str) -> bool:
    """Whether a text is a number in Python's syntax."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists."""
    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def missing(column: pa.ChunkedArray) -> np.ndarray:
    """(n,) whether a value is missing: null, NaN, or blank text."""
    column = plain(column)
    gaps = np.asarray(pc.is_null(column, nan_is_null=True).to_numpy(), dtype=bool)
    if is_text(column.type):
        empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True)
        gaps = gaps | np.asarray(empty.to_numpy(), dtype=bool)
    return gaps


def pick(file: object, columns: Sequence[str], wanted: Sequence[str], what: str, hint: str = "") -> str:
    """The first of the wanted columns that the file has."""
    for name in wanted:
        if name in columns:
            return name
    raise InputError(
        f"{file}: no {what} column; looked for {' or '.join(map(repr, wanted))}, the file has "
        f"{', '.join(columns)}{hint}"
    )


def integer_labels(file: Path, name: str) -> np.ndarray:
    """A label column as int64."""
    column = read_table(file, columns=[name])[name]
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InputError(f"{file}: label column {name!r} must hold integers without gaps, got {column.type}")
    return np.asarray(column.to_numpy(), dtype=np.int64)


def class_names(file: Path, label: str) -> tuple[str, ...]:
    """The class names in a hub file's schema, or ()."""
    info = (open_parquet(file).schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(info).get("info", {}).get("features", {}).get(label, {}).get("names", ())
    except (ValueError, AttributeError):
        raise InputError(f"{file}: the class names in its schema are damaged") from None
    return tuple(names.values() if isinstance(names, dict) else names)


def encoded_images(file: Path, column: str) -> Iterator[tuple[str, bytes]]:
    """The image bytes of each row, read batch by batch."""
    parquet = open_parquet(file)
    check_images(str(file), column, parquet.schema_arrow.field(column).type)
    batches = (batch.column(0) for batch in parquet.iter_batches(batch_size=BLOCK, columns=[f"{column}.bytes"]))
    return images_of(str(file), batches)


def check_images(where: str, column: str, kind: pa.DataType) -> None:
    """Raise unless a column of this type has the bytes of images."""
    if not _has_bytes(kind):
        raise InputError(f"{where}: image column {column!r} must be struct{{bytes, path}}, got {kind}")


def images_of(where: str, batches: Iterator[Any]) -> Iterator[tuple[str, bytes]]:
    """The image bytes of each row of some arrays struct{bytes, path}."""
    row = 1
    try:
        for batch in batches:
            for data in batch.field("bytes").to_pylist():
                yield f"{where} row {row}", data or b""
                row += 1
    except _UNREADABLE as error:
        raise InputError(f"{where}: damaged from row {row} on ({first_line(error)})") from None
