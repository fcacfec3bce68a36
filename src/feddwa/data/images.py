"""From encoded images to one uint8 array (n, C, H, W)."""

import io
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from feddwa.data.files import first_line
from feddwa.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "WEBP", "PPM", "BMP", "GIF", "TIFF")  # and none of the rare ones: less to try, less to trust
SIXTEEN_BITS = 257  # 65,535 = 257 * 255: one level of 8 bits in levels of 16
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values that exchange width and height

Encoded = Iterable[tuple[str, bytes]]  # images, each with the words that say where it is, for errors
Tell = Callable[[int, int], None]  # called with (images decoded, images in all)


class Broken(NamedTuple):
    """An image that cannot be read."""

    number: int  # in the order of the images
    why: str  # one line that names it


class Survey(NamedTuple):
    """What the headers of many images say."""

    shape: tuple[int, int, int]  # (C, H, W) of the first one, with three channels if any image has colour
    first: str  # where that is
    other: tuple[str, int, int] | None  # the first image of another size: where, H, W
    broken: list[Broken]


def survey(images: Encoded) -> Survey:
    """Look at the headers of all images; nothing is decoded."""
    channels, size, first, other, broken = 1, None, "", None, []
    for number, (where, data) in enumerate(images):
        try:
            colours, height, width = _shape_of(where, data)
        except InputError as error:
            broken.append(Broken(number, str(error)))
            continue
        channels = max(channels, colours)
        if size is None:
            size, first = (height, width), where
        elif other is None and size != (height, width):
            other = where, height, width
    height, width = size or (0, 0)
    return Survey((channels, height, width), first, other, broken)


def _shape_of(where: str, data: bytes) -> tuple[int, int, int]:
    """(C, H, W) of an encoded image as people see it, turned as its EXIF data say: one channel for grey, else three."""
    with _open(where, data) as image:
        channels = 1 if image.mode in ("1", "L", "LA") or _is_deep(image) else 3
        try:  # a PNG file may have EXIF data behind the pixels, for which Pillow decodes it
            turned = (image.format != "PNG" or b"eXIf" in data) and image.getexif().get(_ORIENTATION) in _SIDEWAYS
        except Exception as error:
            raise InputError(f"{where}: not a readable image, damaged EXIF data ({first_line(error)})") from None
        return (channels, image.width, image.height) if turned else (channels, image.height, image.width)


def decode(
    images: Encoded, count: int, shape: tuple[int, ...], reduce: int = 1, resize: bool = False, upright: bool = False
) -> np.ndarray:
    """(count, C, H, W) uint8 from encoded images, all of that shape, or `reduce` times larger and averaged down.

    resize: scale images of other sizes; upright: turn them as their EXIF data say. An image is read when its turn
    comes. A plain loop at 0.1 to 0.2 ms an image: threads were measured to be slower, as images this small leave
    nothing to do in parallel.
    """
    try:
        out = np.empty((count, *shape), dtype=np.uint8)
    except MemoryError:
        raise InputError(f"{count:,} images of shape {shape} do not fit into memory; make them smaller") from None
    for i, (where, data) in enumerate(images):
        out[i] = _decode_one(where, data, shape, reduce, resize, upright)
    return out


def decode_into(out: np.ndarray, images: Encoded, place: np.ndarray, resize: bool, tell: Tell) -> list[Broken]:
    """Decode image i into out[place[i]]; those with place -1 are passed over. Returns those that cannot be read."""
    broken, done, total = [], 0, int((place >= 0).sum())
    for number, (where, data) in enumerate(images):
        if place[number] < 0:
            continue
        try:
            out[place[number]] = _decode_one(where, data, out.shape[1:], 1, resize, upright=True)
        except InputError as error:
            broken.append(Broken(number, str(error)))
        done += 1
        tell(done, total)
    return broken


def _decode_one(
    where: str, data: bytes, shape: tuple[int, ...], reduce: int, resize: bool, upright: bool
) -> np.ndarray:
    """(C, H, W) uint8."""
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    with _open(where, data) as image:
        if resize:
            image.draft(None, (2 * max(height, width),) * 2)  # of a large JPEG a half, fourth or eighth is decoded
        larger = reduce > 1 and image.size == (reduce * width, reduce * height)
        if image.mode in ("I", "F") and not _is_deep(image):
            raise InputError(
                f"{where}: pixels of 32 bits, whose black and white are not known; must be of 8 or 16 bits"
            )
        try:
            tilted = upright and image.getexif().get(_ORIENTATION, 1) != 1
            turned = ImageOps.exif_transpose(image) if tilted else image
            size = turned.size
            if size == (width, height) or larger or resize:
                plain = _eight_bits(turned) if _is_deep(image) else turned
                plain = plain if plain.mode == mode else plain.convert(mode)
                plain = plain.resize((width, height), Image.Resampling.BILINEAR) if resize else plain
                pixels = np.asarray(plain.reduce(reduce) if larger else plain)
        except Exception as error:  # each of Pillow's readers has its own for damaged bytes
            raise InputError(f"{where}: not a readable image, truncated or damaged ({first_line(error)})") from None
        if size != (width, height) and not (larger or resize):
            raise InputError(f"{where}: image of {size[0]}x{size[1]} pixels, must be {width}x{height}")
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
