"""Many encoded images as one array: each is decoded straight into its place."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from feddwa.data import arrays
from feddwa.data.images import Broken, Decoded, Encoded, HasColour, OtherSize, Tell, decode_into, shape_of
from feddwa.data.labels import in_words
from feddwa.data.options import DataOptions
from feddwa.data.own.plan import Plan
from feddwa.errors import InputError, counted

Scratch = Callable[[tuple[int, ...]], np.ndarray]  # shape -> an empty uint8 array, in memory or on disk


class Pictures(NamedTuple):
    """The decoded images of a plan's rows."""

    plan: Plan
    x: np.ndarray  # (m, C, H, W) uint8
    notes: tuple[str, ...]


def in_memory(shape: tuple[int, ...]) -> np.ndarray:
    """Room for samples that are not kept."""
    try:
        return np.empty(shape, dtype=np.uint8)
    except MemoryError:
        raise InputError(f"{shape[0]:,} images of shape {shape[1:]} do not fit into memory; --resize them") from None


def read_pictures(
    images: Callable[[], Encoded],
    count: int,
    plan_of: Callable[[np.ndarray], Plan],
    options: DataOptions,
    scratch: Scratch,
    tell: Tell,
) -> Pictures:
    """Decode `count` images, as grey ones until one of them has colour.

    images: a function that begins with the first one; plan_of: the plan of the rows (count,) that can be read; scratch:
    where the pixels go.
    """
    first, (channels, height, width) = _first(images(), count)
    size = options.size or (height, width)
    keep = np.ones(count, dtype=bool)
    plan = plan_of(keep)
    place = np.full(count, -1)
    place[plan.rows] = np.arange(len(plan.rows))
    try:
        x, found = _decoded(images, scratch, (len(plan.rows), channels, *size), place, options, tell)
    except OtherSize as error:
        raise InputError(f"{error} as {first} is; --resize {size[1]}x{size[0]} scales all images to one size") from None
    scaled = f"{counted(found.scaled, 'image')} of another size scaled to {size[1]}x{size[0]}"
    notes = [scaled] if found.scaled else []
    if found.broken:
        _refuse_or_mark(found.broken, keep, options)
        plan = plan_of(keep)
        x = arrays.copy_rows(x, place[plan.rows], scratch((len(plan.rows), *x.shape[1:])))
        notes.append(f"{len(found.broken):,} of {count:,} images cannot be read, left out: {_named(found.broken)}")
    return Pictures(plan, x, tuple(notes))


def _decoded(
    images: Callable[[], Encoded],
    scratch: Scratch,
    shape: tuple[int, ...],
    place: np.ndarray,
    options: DataOptions,
    tell: Tell,
) -> tuple[np.ndarray, Decoded]:
    x = scratch(shape)
    try:
        return x, decode_into(x, images(), place, options.size is not None, tell)
    except HasColour:
        x = scratch((shape[0], 3, *shape[2:]))
        return x, decode_into(x, images(), place, options.size is not None, tell)


def _first(images: Encoded, count: int) -> tuple[str, tuple[int, int, int]]:
    """The first image that can be opened: where it is, and its shape."""
    why = ""
    for where, data in images:
        try:
            return where, shape_of(where, data)
        except InputError as error:
            why = why or str(error)
    raise InputError(f"{why}; {count:,} of {count:,} images cannot be read")


def _refuse_or_mark(broken: Sequence[Broken], keep: np.ndarray, options: DataOptions) -> None:
    """Mark images that cannot be read, where the options allow to leave them out."""
    keep[[each.number for each in broken]] = False
    if not (options.skip_broken and keep.any()):
        many = f"{len(broken):,} of {len(keep):,} images cannot be read"
        raise InputError(f"{broken[0].why}; {many}; --skip-broken leaves such images out")


def _named(broken: Sequence[Broken]) -> str:
    """The files by the last parts of their paths: owner, class and name."""
    return in_words(["/".join(each.why.split(": ")[0].split("/")[-3:]) for each in broken])
