"""Texts of any length as token rows of one length, for networks that predict the next token at every position."""

from collections.abc import Iterable, Sequence

import numpy as np

from feddwa.data.labels import PADDING
from feddwa.errors import require


def pack(texts: Iterable[Sequence[int] | np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's texts (k,) of token ids, concatenated, as samples and targets (n, length) int64.

    The target of a token is the next one, even if that begins the next row; the last token of a text has none. Only the
    last row is padded, with 0 and PADDING.
    """
    require(length >= 1, "length", length, "at least 1")
    arrays = [np.asarray(text) for text in texts]
    for place, ids in enumerate(arrays):
        right = ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) > 0 and int(ids.min()) >= 0
        require(
            right, f"texts[{place}]", f"{ids.dtype} {ids.shape}", "token ids (k,), whole numbers from 0, at least one"
        )
    require(any(len(ids) > 1 for ids in arrays), "texts", "no token behind another", "a text of at least two tokens")
    x = np.concatenate(arrays).astype(np.int64)
    y = np.append(x[1:], PADDING)
    y[np.cumsum([len(ids) for ids in arrays]) - 1] = PADDING
    end = (0, -len(x) % length)
    return np.pad(x, end).reshape(-1, length), np.pad(y, end, constant_values=PADDING).reshape(-1, length)
