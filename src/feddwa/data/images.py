"""From encoded images to one uint8 array (n, C, H, W)."""

import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from feddwa.data.files import first_line
from feddwa.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "WEBP", "PPM", "BMP", "GIF", "TIFF")  # and none of the rare ones: less to try, less to trust
SIXTEEN_BITS = 257  # 65,535 = 257 * 255: one level of 8 bits in levels of 16


def shape_of(where: str, data: bytes) -> tuple[int, int, int]:
    """(C, H, W) of an encoded image: one channel for grey, else three."""
    with _open(where, data) as image:
        return (1 if image.mode in ("1", "L") or _is_deep(image) else 3), image.height, image.width


def decode(images: Iterable[tuple[str, bytes]], count: int, shape: tuple[int, ...], reduce: int = 1) -> np.ndarray:
    """(count, C, H, W) uint8 from encoded images, all of that shape, or `reduce` times larger and averaged down.

    An image comes with the words that say where it is, for errors, and is read when its turn comes. A plain loop at
    0.1 to 0.2 ms an image: threads were measured to be slower, as images this small leave nothing to do in parallel.
    """
    try:
        out = np.empty((count, *shape), dtype=np.uint8)
    except MemoryError:
        raise InputError(f"{count:,} images of shape {shape} do not fit into memory; make them smaller") from None
    for i, (where, data) in enumerate(images):
        out[i] = _decode_one(where, data, shape, reduce)
    return out


def _decode_one(where: str, data: bytes, shape: tuple[int, ...], reduce: int) -> np.ndarray:
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    with _open(where, data) as image:
        larger = reduce > 1 and image.size == (reduce * width, reduce * height)
        if image.size != (width, height) and not larger:
            raise InputError(f"{where}: image of {image.width}x{image.height} pixels, must be {width}x{height}")
        if image.mode in ("I", "F") and not _is_deep(image):
            raise InputError(
                f"{where}: pixels of 32 bits, whose black and white are not known; must be of 8 or 16 bits"
            )
        try:
            image = _eight_bits(image) if _is_deep(image) else image
            plain = image if image.mode == mode else image.convert(mode)
            pixels = np.asarray(plain.reduce(reduce) if larger else plain)
        except Exception as error:  # each of Pillow's readers has its own for damaged bytes
            raise InputError(f"{where}: not a readable image, truncated or damaged ({first_line(error)})") from None
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _is_deep(image: Image.Image) -> bool:
    """Whether the pixels are grey and of 16 bits; those of PNG and PGM may come as integers of 32."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits in 8, black to black and white to white; Pillow's own conversion clips all above 255."""
    levels = np.asarray(image).astype(np.int64)  # (H, W) 0..65535
    return Image.fromarray(((levels + SIXTEEN_BITS // 2) // SIXTEEN_BITS).astype(np.uint8))


def _open(where: str, data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:
        raise InputError(f"{where}: not a readable image ({first_line(error)})") from None
