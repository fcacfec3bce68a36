"""Columns of a table as inputs of a network: the encoding of numbers, words and lists is fitted to training rows."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from feddwa.data import tables
from feddwa.data.images import decode
from feddwa.data.labels import in_words
from feddwa.data.options import CATEGORIES, DataOptions
from feddwa.data.tables import Part
from feddwa.errors import InputError, counted

TOKENS = ("tokens", "input_ids")  # columns of token ids
INDEX = ("", "unnamed: 0", "index", "id", "idx", "row", "__index_level_0__")  # names of columns of row numbers
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}.*|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( .*)?")
_COMMA = re.compile(r"-?\d+,\d+")
_AMOUNT = re.compile(r"\W*\d[\d., \u00a0']*\W*")  # a number with other characters: "1,000.50", "5 %", "$3"


@dataclass(frozen=True)
class Column:
    """The encoding of one column as inputs."""

    name: str
    kind: Literal["number", "category", "list", "tokens", "image"] = "number"
    fill: float | str | None = None  # replaces missing values; None: there were none in training, and none are allowed
    categories: tuple[str, ...] = ()  # one-hot inputs

    @property
    def width(self) -> int:
        """The number of inputs."""
        return len(self.categories) if self.kind == "category" else 1


class Rows:
    """Several parts as one table; errors name a row in its own file."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.names = list(parts[0].table.column_names)
        self.starts = np.cumsum([0, *(part.table.num_rows for part in parts)])
        self._check_alike()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def where(self, row: int) -> str:
        """The file and row, counted from 1."""
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.parts[part].where}: row {row - self.starts[part] + 1}"

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of all parts: numbers of different types become float."""
        found = [tables.plain(part.table[name]) for part in self.parts]
        kinds = {each.type for each in found if not pa.types.is_null(each.type)} or {pa.null()}
        if len(kinds) > 1:
            if not all(map(tables.is_number, kinds)) and not all(map(tables.is_text, kinds)):
                self._refuse_kinds(name, found)
            kinds = {pa.float64() if all(map(tables.is_number, kinds)) else pa.large_string()}
        kind = kinds.pop()
        return pa.chunked_array([chunk for each in found for chunk in each.cast(kind).chunks], type=kind)

    def _refuse_kinds(self, name: str, found: list[pa.ChunkedArray]) -> None:
        other = next(i for i, each in enumerate(found) if each.type != found[0].type)
        raise InputError(
            f"{self.parts[other].where}: column {name!r} holds {found[other].type}, in {self.parts[0].where} it holds "
            f"{found[0].type}"
        )

    def _check_alike(self) -> None:
        """All parts must have the same columns, in any order."""
        first = self.parts[0]
        for part in self.parts[1:]:
            lacking = [name for name in self.names if name not in part.table.column_names]
            further = [name for name in part.table.column_names if name not in self.names]
            if lacking or further or part.image_column != first.image_column:
                name = (lacking or further or [first.image_column or part.image_column])[0]
                has = "no" if lacking or (first.image_column and not further) else "a"
                raise InputError(f"{part.where}: not like {first.where}: it has {has} column {name!r}")


def counts_rows(rows: Rows, name: str) -> bool:
    """Whether a column only numbers the rows of its file, starting anywhere."""
    if name.lower() not in INDEX:
        return False
    for part in rows.parts:
        column = part.table[name]
        if not pa.types.is_integer(column.type) or column.null_count:
            return False
        if (np.diff(np.asarray(column.to_numpy()).astype(np.int64)) != 1).any():
            return False
    return len(rows) > 1


def fit(rows: Rows, names: list[str], train: np.ndarray, options: DataOptions) -> tuple[Column, ...]:
    """The encodings of the columns `names`, fitted to the rows `train`."""
    if not names:
        raise InputError(f"{rows.parts[0].where}: no feature columns beside label and client")
    first = rows.column(names[0])
    if len(names) == 1 and tables.is_list(first.type):
        return (Column(names[0], _kind_of_list(rows, names[0], first.type)),)
    return tuple(_fit_one(rows, name, rows.column(name), train, options) for name in names)


def _fit_one(rows: Rows, name: str, column: pa.ChunkedArray, train: np.ndarray, options: DataOptions) -> Column:
    gaps = tables.missing(column)
    if gaps.all():
        raise InputError(f"{rows.parts[0].where}: column {name!r} has no value in any row; --drop {name}")
    if options.impute is None and gaps.any():
        more = int(gaps.sum()) - 1
        others = f" (and {more:,} other row{'s' * (more > 1)})" if more else ""
        raise InputError(
            f"{rows.where(int(gaps.argmax()))} has no value in column {name!r}{others}; --impute mean fills it in, "
            "--impute drop leaves such rows out"
        )
    known = train[~gaps[train]]
    if not len(known):
        raise InputError(f"{rows.parts[0].where}: column {name!r} has no value in any training row; --drop {name}")
    if tables.is_number(column.type):
        values = numbers(column)
        _refuse_infinite(rows, name, column, values)
        return Column(name, fill=float(values[known].mean(dtype=np.float64)))
    if tables.is_text(column.type):
        return _category(rows, name, words(column), known, options)
    if pa.types.is_temporal(column.type):
        raise _date(rows, name, str(column[int(known[0])]))
    hint = "; lists must be the only features, so --drop the other columns" if tables.is_list(column.type) else ""
    raise InputError(f"{rows.parts[0].where}: column {name!r} holds {column.type}; features must be numbers{hint}")


def _category(rows: Rows, name: str, values: np.ndarray, known: np.ndarray, options: DataOptions) -> Column:
    """One input per word; refuses words that are numbers, dates or row names."""
    found, counts = np.unique(values[known], return_counts=True)
    some = [str(value) for value in found.tolist()]
    if are_dates(some):
        raise _date(rows, name, some[0])
    number = np.array([tables.writes_number(value) for value in values.tolist()])
    hints = {
        "write decimals with a point, and thousands without a sign": all(
            _COMMA.fullmatch(v) or tables.writes_number(v) for v in some
        ),
        "leave the cell empty where a value is missing": number[known].mean() > 0.5,
        "write it without signs for thousands, shares or money": all(map(_AMOUNT.fullmatch, some)),
    }
    if any(hints.values()):
        raise _meant_as_number(rows, name, values, number, next(hint for hint, fits in hints.items() if fits))
    most = options.max_categories or CATEGORIES
    unlike = len(found) == len(known) > 2
    if len(found) > most or unlike:
        count = "a different text in every row" if unlike else f"{len(found):,} different texts, more than {most}"
        hint = "" if unlike else ", --max-categories raises the bound"
        raise InputError(
            f"{rows.parts[0].where}: column {name!r} has {count}; --drop {name} leaves it out{hint}; text to learn "
            "from must become token ids"
        )
    return Column(name, "category", str(found[counts.argmax()]), tuple(some))


def are_dates(values: Iterable[str]) -> bool:
    """Whether all texts are written as dates."""
    return all(map(_DATE.fullmatch, values))


def _date(rows: Rows, name: str, value: str) -> InputError:
    return InputError(
        f"{rows.parts[0].where}: column {name!r} holds dates ({value}), which are no features; turn it into numbers, "
        f"--drop {name}, or --time-column {name} to hold out the last rows"
    )


def _refuse_infinite(rows: Rows, name: str, column: pa.ChunkedArray, values: np.ndarray) -> None:
    """values: (n,) float32 of the column."""
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        value = float(column[row].as_py())
        what = "an infinite value" if np.isinf(value) else f"the value {value:g}, beyond 3.4e38,"
        raise InputError(f"{rows.where(row)} has {what} in column {name!r}")


def _kind_of_list(rows: Rows, name: str, kind: pa.DataType) -> Literal["list", "tokens"]:
    where, inner = rows.parts[0].where, kind.value_type
    whole = pa.types.is_integer(inner)
    if not (whole or pa.types.is_floating(inner)):
        raise InputError(f"{where}: column {name!r} holds {kind}; lists must hold numbers")
    if whole and name not in TOKENS:
        raise InputError(
            f"{where}: column {name!r} holds lists of whole numbers, which may be numbers or token ids; store numbers "
            f"as float32, and name a column of token ids {TOKENS[0]!r}"
        )
    return "tokens" if whole else "list"


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """(n,) float32, NaN for missing values."""
    with np.errstate(over="ignore"):  # beyond float32: infinite, and refused
        return np.asarray(tables.plain(column).cast(pa.float64()).to_numpy()).astype(np.float32)


def _meant_as_number(rows: Rows, name: str, values: np.ndarray, number: np.ndarray, hint: str) -> InputError:
    """The error for a text column that should be numeric; number: (n,) whether a value is a number."""
    wrong = np.flatnonzero(~number & (values != ""))
    if not len(wrong):
        return InputError(f"{rows.parts[0].where}: column {name!r} holds numbers as text; store them as numbers")
    value = str(values[wrong[0]])
    return InputError(f"{rows.where(int(wrong[0]))}: {value!r} in column {name!r} is not a number; {hint}")


def words(column: pa.ChunkedArray) -> np.ndarray:
    """(n,) stripped text; "" for missing values."""
    return np.array([(value or "").strip() for value in tables.plain(column).to_pylist()], dtype=str)


def encode(part: Part, columns: tuple[Column, ...], shape: tuple[int, ...], resize: bool = False) -> np.ndarray:
    """The inputs (n, *shape) of a part that was not in training."""
    if columns[0].kind == "image":
        if part.image_column != columns[0].name:
            raise InputError(f"{part.where}: no image column {columns[0].name!r}")
        return decode(part.images(), part.table.num_rows, shape, resize=resize, upright=True)
    for column in columns:
        tables.pick(part.where, part.table.column_names, (column.name,), "feature")
    return inputs(Rows([part]), columns, np.arange(part.table.num_rows), shape)


def inputs(rows: Rows, columns: tuple[Column, ...], chosen: np.ndarray, shape: tuple[int, ...] = ()) -> np.ndarray:
    """The inputs (m, k) of the rows `chosen` (m,): float32, or int64 for token ids."""
    if columns[0].kind in ("list", "tokens"):
        return _list_values(rows, columns[0], chosen, shape)
    x = np.zeros((len(chosen), sum(column.width for column in columns)), dtype=np.float32)
    place = 0
    for column in columns:
        found = rows.column(column.name)
        if column.kind == "number":
            if not (tables.is_number(found.type) or pa.types.is_null(found.type)):
                raise InputError(
                    f"{rows.parts[0].where}: column {column.name!r} holds {found.type}; must be numbers, as in training"
                )
            values = numbers(found)[chosen]
            x[:, place] = np.where(np.isnan(values), np.float32(column.fill or 0.0), values)
        else:
            values = words(found.cast(pa.string()))[chosen]
            values = np.where(values == "", str(column.fill), values)
            x[:, place : place + column.width] = values[:, None] == np.array(column.categories)[None]
        place += column.width
    return x


def coding(columns: tuple[Column, ...]) -> list[str]:
    """A note on columns of words, which become inputs of 0 and 1."""
    coded = [f"{column.name!r} ({in_words(column.categories)})" for column in columns if column.kind == "category"]
    return [f"one input for each word in columns {in_words(coded)}"] if coded else []


def changes(rows: Rows, columns: tuple[Column, ...], chosen: np.ndarray) -> list[str]:
    """Notes on filled-in values of the rows `chosen` (m,), and on values that no training row has."""
    filled, new = [], []
    for column in columns:
        if column.fill is None:
            continue
        found = rows.column(column.name)
        if gaps := int(tables.missing(found)[chosen].sum()):
            filled.append(f"{column.name!r} ({gaps:,})")
        if column.kind == "category":
            values = words(found.cast(pa.string()))[chosen]
            strange = values[~np.isin(values, [*column.categories, ""])]
            if len(strange):
                told = f"{counted(len(strange), 'row')} with a value that no training row has ({str(strange[0])!r})"
                new.append(f"column {column.name!r}: {told}, all of its inputs are 0 there")
    return [*([f"missing values filled in, in columns {in_words(filled)}"] if filled else []), *new]


def _list_values(rows: Rows, column: Column, chosen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(m, length) from a column of lists of equal length."""
    found = rows.column(column.name).combine_chunks()
    where = rows.parts[0].where
    lengths = {len(row) for row in found.to_pylist() if row is not None}
    if len(lengths) != 1 or found.null_count or (shape and lengths != {shape[0]}):
        wanted = f"of length {shape[0]}" if shape else "of one length"
        raise InputError(f"{where}: lists in column {column.name!r} must be {wanted}, got {sorted(lengths)[:5]}")
    flat = found.flatten()
    values = flat.to_numpy(zero_copy_only=False)
    if flat.null_count or not np.isfinite(values).all():
        row = int((~np.isfinite(values.astype(np.float64))).argmax()) // lengths.pop()
        raise InputError(f"{rows.where(row)} has a missing or infinite value in column {column.name!r}")
    x: np.ndarray = values.reshape(len(found), -1)[chosen]
    with np.errstate(over="ignore"):  # beyond float32: infinite, and refused
        x = x.astype(np.int64 if column.kind == "tokens" else np.float32)
    if not np.isfinite(x).all():
        raise InputError(f"{where}: column {column.name!r} has numbers beyond those of float32")
    return x
