"""Arrays as samples: pixels, features or token ids, by their type and shape; and their statistics."""

from pathlib import Path

import numpy as np

from feddwa.data.files import first_line
from feddwa.data.labels import MOST_TOKENS
from feddwa.errors import InputError

ROWS = 4096  # rows per block for arrays that may be larger than memory


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; nothing is unpickled."""
    name = ""
    try:
        with path.open("rb") as handle, np.lib.npyio.NpzFile(handle, allow_pickle=False) as file:
            found = {}
            for name in file.files:
                found[name] = file[name]
            return found
    except Exception as error:  # NumPy, zip and zlib have different exceptions
        if "Object arrays" in str(error):
            raise InputError(
                f"{path}: {name} holds Python objects, which are not read; store names as text, {name}.astype(str), "
                "and numbers as an array of one type"
            ) from None
        raise InputError(f"{path}: not a readable .npz file ({first_line(error)})") from None


def samples(where: str, x: np.ndarray, tokens: bool = False) -> np.ndarray:
    """Pixels (n, C, H, W) uint8, features float32, or with `tokens` token ids (n, length) int64.

    Integers of any type are pixels if a sample has the axes of an image. In a flat row they could be numbers or token
    ids, which train differently, so such a row is refused.
    """
    if tokens:
        return _tokens(where, x)
    if np.issubdtype(x.dtype, np.integer) and x.ndim in (3, 4):
        return _pixels(where, x)
    if np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8:
        raise InputError(
            f"{where}: x of type {x.dtype} and shape {x.shape} may be numbers or token ids; store numbers as float32, "
            "and token ids under the name tokens"
        )
    if np.issubdtype(x.dtype, np.floating) or x.dtype in (np.uint8, np.bool_):
        with np.errstate(over="ignore"):  # beyond float32: infinite, and refused
            values = x.astype(np.float32)
        if not np.isfinite(values).all():
            row = int((~np.isfinite(values.reshape(len(values), -1))).any(axis=1).argmax()) + 1
            raise InputError(f"{where}: x has missing or infinite values, the first in row {row}")
        return values
    raise InputError(f"{where}: x of type {x.dtype}, must be numbers")


def _pixels(where: str, x: np.ndarray) -> np.ndarray:
    """(n, C, H, W) uint8 from grey images (n, H, W), or from images with channels first or last."""
    if x.size and not 0 <= x.min() <= x.max() <= 255:
        raise InputError(
            f"{where}: x of type {x.dtype} and shape {x.shape} has values from {x.min()} to {x.max()}; pixels must be "
            "0..255, store other numbers as float32"
        )
    pixels = x.astype(np.uint8)
    if x.ndim == 3:
        return pixels[:, None]
    return pixels.transpose(0, 3, 1, 2) if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) else pixels


def _tokens(where: str, x: np.ndarray) -> np.ndarray:
    """Token ids (n, length) int64."""
    if not np.issubdtype(x.dtype, np.integer) or x.ndim != 2 or (x.size and not 0 <= x.min() <= x.max() < MOST_TOKENS):
        raise InputError(
            f"{where}: tokens of type {x.dtype} and shape {x.shape}, must be (n, length) whole numbers from 0 to "
            f"{MOST_TOKENS - 1:,}"
        )
    return x.astype(np.int64)


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (C,) float64 of samples (n, C, ...), over all axes except C; bytes are scaled to
    0..1.

    The deviation of a constant is 1, to avoid division by zero. Sums are over blocks of rows, relative to the first
    row, so that large numbers with small differences keep their deviation.
    """
    top = 255.0 if x.dtype == np.uint8 else 1.0
    axes = (0, *range(2, x.ndim))
    origin = x[:1].astype(np.float64).mean(axis=axes)  # (C,)
    line = (-1, *[1] * (x.ndim - 2))
    total, square = np.zeros_like(origin), np.zeros_like(origin)
    for start in range(0, len(x), ROWS):
        part = x[start : start + ROWS].astype(np.float64) - origin.reshape(line)
        total += part.sum(axis=axes)
        square += (part**2).sum(axis=axes)
    count = x.size / max(1, x.shape[1])
    mean = total / count
    std = np.sqrt(np.maximum(square / count - mean**2, 0.0))
    steady = std <= 1e-7 * np.maximum(1.0, abs(mean + origin))
    return (mean + origin) / top, np.where(steady, 1.0, std / top)


def copy_rows(source: np.ndarray, rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Fill `target` with source[rows], a block at a time."""
    for start in range(0, len(rows), ROWS):
        target[start : start + ROWS] = source[rows[start : start + ROWS]]
    return target
