"""Columns of Parquet and CSV files: encoded images in the Hugging Face layout, labels, numbers, token lists."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from feddwa.data.files import first_line
from feddwa.errors import InputError

IMAGE_COLUMNS = ("img", "image")
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


def read_table(file: Path, columns: list[str] | None = None) -> pa.Table:
    """A Parquet or CSV file, all columns or some."""
    try:
        return pa.csv.read_csv(file) if file.suffix == ".csv" else open_parquet(file).read(columns)
    except _UNREADABLE as error:
        raise InputError(f"{file}: not a readable table, truncated or foreign ({first_line(error)})") from None


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
    column = read_table(file, [name])[name]
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
    parquet, row = open_parquet(file), 0
    kind = parquet.schema_arrow.field(column).type
    if not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0):
        raise InputError(f"{file}: image column {column!r} must be struct{{bytes, path}}, got {kind}")
    try:
        for batch in parquet.iter_batches(batch_size=1024, columns=[f"{column}.bytes"]):
            for data in batch.column(0).field("bytes").to_pylist():
                yield f"{file} row {row}", data or b""
                row += 1
    except _UNREADABLE as error:
        raise InputError(f"{file}: damaged after row {row} ({first_line(error)})") from None


def features(file: Path, table: pa.Table) -> np.ndarray:
    """(n, k) float32 from number columns, or (n, length) int64 or float32 from one column of equally long lists."""
    if table.num_columns == 1 and hasattr(table.schema.field(0).type, "value_type"):
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


def _list_column(file: Path, name: str, column: Any) -> np.ndarray:
    lengths = {len(row) for row in column.to_pylist() if row is not None}
    if len(lengths) != 1 or column.null_count:
        raise InputError(f"{file}: lists in column {name!r} must be of one length, got {sorted(lengths)[:5]}")
    values = column.flatten().to_numpy(zero_copy_only=False)
    kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float32
    return np.asarray(values.reshape(len(column), -1), dtype=kind)
