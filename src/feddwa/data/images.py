"""From encoded images to one uint8 array (n, C, H, W)."""

import io
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
from PIL import Image

from feddwa.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
CHUNK = 2048  # images that are held encoded at a time


def shape_of(where: str, data: bytes) -> tuple[int, int, int]:
    """(C, H, W) of an encoded image: one channel for grey, else three."""
    with _open(where, data) as image:
        return (1 if image.mode in ("1", "L") else 3), image.height, image.width


def decode(images: Iterable[tuple[str, bytes]], count: int, shape: tuple[int, ...], reduce: int = 1) -> np.ndarray:
    """(count, C, H, W) uint8 from encoded images, all of that shape, or `reduce` times larger and averaged down.

    An image comes with the words that say where it is, for errors; it is read when its turn comes.
    """
    iterator, start = iter(images), 0
    out = np.empty((count, *shape), dtype=np.uint8)
    with ThreadPoolExecutor() as pool:  # the decoders release the interpreter lock
        while chunk := list(islice(iterator, CHUNK)):
            for i, pixels in enumerate(
                pool.map(lambda item: _decode_one(item[0], item[1], shape, reduce), chunk), start
            ):
                out[i] = pixels
            start += len(chunk)
    return out


def _decode_one(where: str, data: bytes, shape: tuple[int, ...], reduce: int) -> np.ndarray:
    channels, height, width = shape
    with _open(where, data) as image:
        larger = reduce > 1 and image.size == (reduce * width, reduce * height)
        if image.size != (width, height) and not larger:
            raise InputError(f"{where}: image of {image.width}x{image.height} pixels, must be {width}x{height}")
        try:
            plain: Image.Image = image.convert("L" if channels == 1 else "RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(f"{where}: not a readable image, truncated or damaged ({error})") from None
    pixels = np.asarray(plain.reduce(reduce) if larger else plain)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _open(where: str, data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{where}: not a readable image ({error})") from None
