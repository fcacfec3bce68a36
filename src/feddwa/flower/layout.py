"""The form of samples and targets as text, from which a server makes blank ones: types and shapes, no values."""

import json
from math import prod
from typing import Any

import numpy as np

from feddwa.flower.codec import Malformed

TYPES = ("|u1", "<f4", "<f8", "<i8")  # bytes, real numbers, whole numbers: what datasets consist of
LARGEST = 2**24  # numbers of one sample


def of(array: np.ndarray) -> str:
    """Type and shape of one sample of an array (n, *shape), or of every field of a structured one (n,)."""
    if array.dtype.names is None:
        return json.dumps([array.dtype.str, list(array.shape[1:])])
    fields = {name: array.dtype[name] for name in array.dtype.names}
    return json.dumps({name: [kind.base.str, list(kind.shape)] for name, kind in fields.items()})


def blank(text: str, rows: int) -> np.ndarray:
    """Zeros of so many samples of a layout; raises Malformed where the text is none."""
    try:
        found = json.loads(text)
        fields = found if isinstance(found, dict) else {"": found}
        kinds = [(name, *_field(each)) for name, each in fields.items()]
    except (ValueError, TypeError, RecursionError):
        raise Malformed("samples: their layout is not one") from None
    if isinstance(found, dict):
        return np.zeros(rows, dtype=np.dtype(kinds))
    return np.zeros((rows, *kinds[0][2]), dtype=kinds[0][1])


def _field(value: Any) -> tuple[str, tuple[int, ...]]:
    kind, shape = value
    whole = isinstance(shape, list) and all(type(length) is int and length > 0 for length in shape)
    if kind not in TYPES or not whole or prod(shape) > LARGEST:
        raise ValueError
    return kind, tuple(shape)
