"""Columns of Parquet and CSV files: encoded images in the Hugging Face layout, labels, numbers, token lists."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from feddwa.data.files import first_line
from feddwa.data.labels import from_text
from feddwa.errors import InputError

IMAGE_COLUMNS = ("img", "image")
TOKENS = "tokens"  # the column of token ids
TEST_SPLITS = ("test", "val", "valid", "validation")
_UNREADABLE = (pa.ArrowException, OSError, ValueError)  # what Arrow raises on foreign bytes


def split_files(folder: Path, split: str) -> list[Path]:
    """The Parquet files of a split, `train-00000-of-00003.parquet` and so on or `train.parquet`; all or an error."""
    files = sorted(f for f in folder.rglob(f"{split}*.parquet") if re.match(rf"{split}(-|\.parquet$)", f.name))
    parts = [match for f in files if (match := re.search(r"-(\d+)-of-(\d+)", f.name))]
    if parts:
        missing = set(range(int(parts[0][2]))) - {int(match[1]) for match in parts}
        if missing:
            raise InputError(f"{folder}: part {min(missing)} of {parts[0][2]} of the {split} split is missing")
    return files


def held_out_files(folder: Path) -> list[Path]:
    """The files of the split that tests: `test`, or the validation split where there is no test split."""
    return next((files for split in TEST_SPLITS if (files := split_files(folder, split))), [])


def open_parquet(file: Path) -> pq.ParquetFile:
    """A Parquet file, or an error that says it is none."""
    try:
        return pq.ParquetFile(file)
    except _UNREADABLE as error:
        raise InputError(f"{file}: not a readable Parquet file, truncated or foreign ({first_line(error)})") from None


def read_table(file: Path, text: Sequence[str] = (), columns: list[str] | None = None) -> pa.Table:
    """A Parquet or CSV file. The columns `text` of a CSV file stay text: "01" is not the number 1.

    columns: those of a Parquet file that are read; None: all.
    """
    try:
        table = _read_csv(file, text) if file.suffix == ".csv" else open_parquet(file).read(columns)
    except _UNREADABLE as error:
        raise InputError(f"{file}: not a readable table, truncated or foreign ({first_line(error)})") from None
    twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    if twice:
        raise InputError(f"{file}: {table.column_names.count(twice[0])} columns are named {twice[0]!r}; rename them")
    return table


def _read_csv(file: Path, text: Sequence[str]) -> pa.Table:
    data = file.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}: line {line} is not UTF-8 text; save the file in that encoding") from None
    kinds = dict.fromkeys(text, pa.string())
    return pa.csv.read_csv(pa.BufferReader(data), convert_options=pa.csv.ConvertOptions(column_types=kinds))


def names_column(file: Path, table: pa.Table, name: str) -> np.ndarray:
    """A column of labels or owners (n,): integers, real numbers, truth values or text; none of them missing."""
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (is_text or is_number):
        raise InputError(f"{file}: column {name!r} holds {kind}; must be numbers or names")
    if column.null_count:
        row = column.is_null().index(True).as_py() + 1
        raise InputError(f"{file}: row {row} has no {name}; fill it in, or leave the row out")
    if not is_text:
        return np.asarray(column.to_numpy())
    values = np.array(column.to_pylist(), dtype=str)
    return from_text(values) if file.suffix == ".csv" else values


def pick(file: Path, columns: Sequence[str], wanted: Sequence[str], what: str) -> str:
    """The first of the wanted columns that the file has."""
    for name in wanted:
        if name in columns:
            return name
    raise InputError(
        f"{file}: no {what} column; looked for {' or '.join(map(repr, wanted))}, the file has {', '.join(columns)}"
    )


def integer_labels(file: Path, name: str) -> np.ndarray:
    """A label column as int64."""
    column = read_table(file, columns=[name])[name]
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InputError(f"{file}: label column {name!r} must hold integers without gaps, got {column.type}")
    return np.asarray(column.to_numpy(), dtype=np.int64)


def class_names(file: Path, label: str) -> tuple[str, ...]:
    """The class names that the hub keeps in the schema, or ()."""
    info = (open_parquet(file).schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(info).get("info", {}).get("features", {}).get(label, {}).get("names", ())
    except (ValueError, AttributeError):
        raise InputError(f"{file}: the class names in its schema are damaged") from None
    return tuple(names.values() if isinstance(names, dict) else names)


def encoded_images(file: Path, column: str) -> Iterator[tuple[str, bytes]]:
    """The image bytes of each row, read batch by batch."""
    parquet, row = open_parquet(file), 1
    kind = parquet.schema_arrow.field(column).type
    if not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0):
        raise InputError(f"{file}: image column {column!r} must be struct{{bytes, path}}, got {kind}")
    try:
        for batch in parquet.iter_batches(batch_size=1024, columns=[f"{column}.bytes"]):
            for data in batch.column(0).field("bytes").to_pylist():
                yield f"{file} row {row}", data or b""
                row += 1
    except _UNREADABLE as error:
        raise InputError(f"{file}: damaged from row {row} on ({first_line(error)})") from None


def features(file: Path, table: pa.Table) -> np.ndarray:
    """(n, k) float32 from columns of numbers, or (n, length) from one column of equally long lists.

    Lists of whole numbers are int64 token ids, in a column of the name TOKENS.
    """
    if table.num_columns == 1 and _is_list(table.schema.field(0).type):
        return _list_column(file, table.column_names[0], table.column(0).combine_chunks())
    numbers = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise InputError(f"{file}: column {name!r} holds {kind}; features must be numbers")
        values = column.cast(pa.float64()).to_numpy().astype(np.float32)
        if column.null_count or not np.isfinite(values).all():
            raise InputError(f"{file}: column {name!r} has missing or infinite values")
        numbers.append(values)
    if not numbers:
        raise InputError(f"{file}: no feature columns beside label and client")
    return np.stack(numbers, axis=1)


def _is_list(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _list_column(file: Path, name: str, column: Any) -> np.ndarray:
    """(n, length) int64 or float32."""
    inner = column.type.value_type
    whole = pa.types.is_integer(inner)
    if not (whole or pa.types.is_floating(inner)):
        raise InputError(f"{file}: column {name!r} holds {column.type}; lists must hold numbers")
    if whole and name != TOKENS:
        raise InputError(
            f"{file}: column {name!r} holds lists of whole numbers, which may be numbers or token ids; store numbers "
            f"as float32, and name a column of token ids {TOKENS!r}"
        )
    lengths = {len(row) for row in column.to_pylist() if row is not None}
    if len(lengths) != 1 or column.null_count:
        raise InputError(f"{file}: lists in column {name!r} must be of one length, got {sorted(lengths)[:5]}")
    flat = column.flatten()
    values = flat.to_numpy(zero_copy_only=False)
    if flat.null_count or not np.isfinite(values).all():
        raise InputError(f"{file}: column {name!r} has missing or infinite values")
    return np.asarray(values.reshape(len(column), -1), dtype=np.int64 if whole else np.float32)
