"""Labels and owners in files, converted to numbers with names."""

import re
from collections.abc import Sequence

import numpy as np

from feddwa.errors import InputError

# Missing values as written by pandas, R and spreadsheets.
MISSING = ("", "#N/A", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "nan", "null")
SHOWN = 3  # names in a note, followed by the number of others
PADDING = -100  # ignored target, as in torch's cross_entropy and in transformers
MOST_TOKENS = 2**20  # number of token ids; a network has an embedding row for each
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")  # as Python prints a 64-bit integer; "01" is a name, not the number 1
_REAL = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def from_text(column: np.ndarray) -> np.ndarray:
    """A column of text (n,) as integers or floats if all entries are numbers, else unchanged.

    Among numbers, a word for a missing value becomes NaN; among names it is a name, such as Namibia's "NA".
    """
    values, place = np.unique(np.char.strip(column), return_inverse=True)
    known = [value for value in values.tolist() if value not in MISSING]
    if known and len(known) == len(values) and all(map(_WHOLE.fullmatch, known)):
        return values.astype(np.int64)[place]
    if known and all(map(_REAL.fullmatch, known)):
        numbers = [np.nan if value in MISSING else float(value) for value in values.tolist()]
        return np.array(numbers)[place]
    return values[place]


def numbered(where: str, what: str, values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Names (n,) as numbers 0..k-1 (n,) int64, and the k names in order; `what` ("label") is named in errors.

    Integers are in ascending order, whatever their type: 1.0 and 1 are both named "1".
    """
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    refuse_missing(where, what, values)
    if values.dtype.kind == "f" and is_whole(values):
        values = values.astype(np.int64)
    found, numbers = np.unique(values, return_inverse=True)
    names = tuple(str(value) for value in found.tolist())
    strange = [name for name in names if not name.isprintable()]
    if strange:
        raise InputError(
            f"{where}: {what} {strange[0][:40]!r} has characters that cannot be printed; name it otherwise"
        )
    return numbers.astype(np.int64), names


def targets(where: str, y: np.ndarray, order: tuple[str, ...] = ()) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Targets (n, ...), their number of classes and the classes' names, in a given order where the data have one.

    One integer or name per sample is a class, including integral floats (0.0, 1.0, as pandas writes columns with
    missing values). Other floats stay unchanged, with 0 classes. Rows of integers are tokens, with as many classes as
    the largest requires; they may contain PADDING.
    """
    if y.dtype.kind == "f" and (y.ndim > 1 or not is_whole(y[np.isfinite(y)])):
        if not np.isfinite(y).all():
            raise InputError(f"{where}: targets have missing or infinite values")
        if np.abs(y).max(initial=0) > np.finfo(np.float32).max:
            raise InputError(f"{where}: targets are larger than float32 holds")
        return y.astype(np.float32), 0, ()
    if y.ndim > 1:
        if y.dtype.kind not in "iub" or y.size == 0 or y.max() < 0 or not are_tokens(y):
            raise InputError(
                f"{where}: y of type {y.dtype} and shape {y.shape}; rows of it must be whole numbers from 0, and "
                f"{PADDING} where there is nothing to predict; at most {MOST_TOKENS - 1:,}"
            )
        return y.astype(np.int64), int(y.max()) + 1, ()
    labels, names = numbered(where, "label", y)
    if order:
        return np.array([order.index(name) for name in names], dtype=np.int64)[labels], len(order), order
    return labels, len(names), names


def are_tokens(y: np.ndarray) -> bool:
    """Whether all integers in rows (n, ...) are from 0 to below MOST_TOKENS, or PADDING."""
    return bool((((y >= 0) & (y < MOST_TOKENS)) | (y == PADDING)).all())


def is_one_hot(y: np.ndarray) -> bool:
    """Whether targets (n, k) have a single 1 in every row, and 0 elsewhere."""
    return bool(y.ndim == 2 and y.shape[1] > 1 and np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all())


def is_whole(values: np.ndarray) -> bool:
    """Whether all numbers are integers that a float represents exactly."""
    values = values.astype(np.float64)
    return bool((np.isfinite(values) & (values == np.rint(values)) & (np.abs(values) < 2**53)).all())


def refuse_missing(where: str, what: str, values: np.ndarray) -> None:
    """Raise if a value is empty or not finite, with its row, counted from 1."""
    if values.size == 0 or values.dtype.kind not in "fUS":
        return
    missing = ~np.isfinite(values) if values.dtype.kind == "f" else np.char.str_len(np.char.strip(values)) == 0
    rows = missing.reshape(len(values), -1).any(axis=1)
    if rows.any():
        row = int(rows.argmax())
        infinite = values.dtype.kind == "f" and bool(np.isinf(values[row]).any())
        found = f"{'an infinite' if infinite else 'no'} {what}"
        raise InputError(f"{where}: row {row + 1} has {found}; fill it in, or leave the row out")


def in_words(names: Sequence[str]) -> str:
    """The first names, and the number of others."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def short(name: str, most: int = 24) -> str:
    """A name for a picture's axis: the beginning and end of a long one, which distinguish "ward-1" from "ward-2"."""
    half = (most - 2) // 2
    return name if len(name) <= most else f"{name[:half]}..{name[-half:]}"
