"""From encoded images to one uint8 array (n, C, H, W)."""

import io
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from feddwa.data.files import first_line
from feddwa.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "WEBP", "PPM", "BMP", "GIF", "TIFF")  # no rare formats: fewer decoders to trust
SIXTEEN_BITS = 257  # 65,535 = 257 * 255: one level of 8 bits in levels of 16
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values that exchange width and height

Encoded = Iterable[tuple[str, bytes]]  # images, each with its location for errors
Tell = Callable[[int, int], None]  # called with (images decoded, images in all)


class Broken(NamedTuple):
    """An image that cannot be read."""

    number: int  # index among the images
    why: str  # one-line error that names it


class Decoded(NamedTuple):
    """The result of decoding many images."""

    broken: list[Broken]
    scaled: int  # images that had another size


class OtherSize(InputError):
    """An image has an unexpected size."""


class HasColour(Exception):  # not a user error: all images are decoded again, with three channels
    """An image has colour, but the array is grey."""


def shape_of(where: str, data: bytes) -> tuple[int, int, int]:
    """(C, H, W) of an encoded image after EXIF rotation: one channel for grey, else three."""
    with _open(where, data) as image:
        # A PNG may have EXIF data behind the pixels, for which Pillow decodes it; a TIFF's size is turned already.
        may_be = image.format in ("JPEG", "WEBP") or (image.format == "PNG" and b"eXIf" in data)
        try:
            turned = may_be and image.getexif().get(_ORIENTATION) in _SIDEWAYS
        except Exception as error:
            raise InputError(f"{where}: not a readable image, damaged EXIF data ({first_line(error)})") from None
        size = (image.width, image.height) if turned else (image.height, image.width)
        return _channels(image), *size


def decode(
    images: Encoded, count: int, shape: tuple[int, ...], reduce: int = 1, resize: bool = False, upright: bool = False
) -> np.ndarray:
    """(count, C, H, W) uint8 from encoded images, all of that shape, or `reduce` times larger and averaged down.

    resize: scale images of other sizes; upright: rotate them by their EXIF data. Images are read one at a time. A plain
    loop at 0.1 to 0.2 ms per image: threads were slower, since images this small gain nothing from parallel decoding.
    """
    try:
        out = np.empty((count, *shape), dtype=np.uint8)
    except MemoryError:
        raise InputError(f"{count:,} images of shape {shape} do not fit into memory; make them smaller") from None
    for i, (where, data) in enumerate(images):
        with _open(where, data) as image:
            out[i], _ = _pixels(where, image, shape, reduce, resize, upright)
    return out


def decode_into(out: np.ndarray, images: Encoded, place: np.ndarray, resize: bool, tell: Tell) -> Decoded:
    """Decode image i into out[place[i]]; images with place -1 are skipped, unreadable ones returned.

    Raises OtherSize for an image of another size that must not be scaled, and HasColour.
    """
    broken, scaled, done, total = [], 0, 0, int((place >= 0).sum())
    for number, (where, data) in enumerate(images):
        if place[number] < 0:
            continue
        try:
            with _open(where, data) as image:
                if _channels(image) > out.shape[1]:
                    raise HasColour
                out[place[number]], other = _pixels(where, image, out.shape[1:], 1, resize, upright=True)
            scaled += other
        except OtherSize:
            raise
        except InputError as error:
            broken.append(Broken(number, str(error)))
        done += 1
        tell(done, total)
    return Decoded(broken, scaled)


def _pixels(
    where: str, image: Image.Image, shape: tuple[int, ...], reduce: int, resize: bool, upright: bool
) -> tuple[np.ndarray, bool]:
    """(C, H, W) uint8, and whether the image had another size."""
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    if resize:
        image.draft(None, (2 * max(height, width),) * 2)  # large JPEGs are decoded at a half, fourth or eighth
    larger = reduce > 1 and image.size == (reduce * width, reduce * height)
    if image.mode in ("I", "F") and not _is_deep(image):
        raise InputError(f"{where}: pixels of 32 bits, whose black and white are not known; must be of 8 or 16 bits")
    try:
        tilted = upright and image.getexif().get(_ORIENTATION, 1) != 1
        plain = ImageOps.exif_transpose(image) if tilted else image
        size = plain.size
        other = size != (width, height)
        if resize or larger or not other:
            plain = _eight_bits(plain) if _is_deep(image) else plain
            plain = plain if plain.mode == mode else plain.convert(mode)
            plain = plain.resize((width, height), Image.Resampling.BILINEAR) if resize and other else plain
            pixels = np.asarray(plain.reduce(reduce) if larger else plain)
    except Exception as error:  # Pillow's readers raise different exceptions
        raise InputError(f"{where}: not a readable image, truncated or damaged ({first_line(error)})") from None
    if other and not (resize or larger):
        raise OtherSize(f"{where}: image of {size[0]}x{size[1]} pixels, must be {width}x{height}")
    return (pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)), other


def _channels(image: Image.Image) -> int:
    return 1 if image.mode in ("1", "L", "LA") or _is_deep(image) else 3


def _is_deep(image: Image.Image) -> bool:
    """Whether the pixels are 16-bit grey; those of PNG and PGM may be 32-bit integers."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8 bits, black to black and white to white; Pillow's own conversion clips all above 255."""
    levels = np.asarray(image).astype(np.int64)  # (H, W) 0..65535
    return Image.fromarray(((levels + SIXTEEN_BITS // 2) // SIXTEEN_BITS).astype(np.uint8))


def _open(where: str, data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise InputError(f"{where}: not a readable image (of none of the formats {', '.join(FORMATS)})") from None
    except Exception as error:
        raise InputError(f"{where}: not a readable image ({first_line(error)})") from None
