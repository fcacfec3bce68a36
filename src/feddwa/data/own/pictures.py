"""Many encoded images as one array: sizes and colours from their headers first, then each is decoded into its place."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from feddwa.data import arrays
from feddwa.data.images import Broken, Encoded, Survey, Tell, decode_into, survey
from feddwa.data.options import DataOptions
from feddwa.data.own.plan import Plan, in_words
from feddwa.errors import InputError

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
    """Decode `count` images. images: a function that begins with the first one; plan_of: the plan of the rows (count,)
    that can be read; scratch: where the pixels go."""
    found = survey(images())
    keep = np.ones(count, dtype=bool)
    if found.broken and not options.skip_broken:  # count those whose header is sound, too
        keep[[each.number for each in found.broken]] = False
        hidden = decode_into(np.empty((1, *found.shape), np.uint8), images(), np.where(keep, 0, -1), True, tell)
        _refuse_or_skip([*found.broken, *hidden], keep, options)
    _refuse_or_skip(found.broken, keep, options)
    shape = _shape(found, options)
    plan = plan_of(keep)
    x = scratch((len(plan.rows), *shape))
    place = np.full(count, -1)
    place[plan.rows] = np.arange(len(plan.rows))
    broken = decode_into(x, images(), place, options.size is not None, tell)
    if broken:
        _refuse_or_skip([*found.broken, *broken], keep, options)
        plan = plan_of(keep)
        x = arrays.copy_rows(x, place[plan.rows], scratch((len(plan.rows), *shape)))
    notes = [] if found.other is None else [f"images of several sizes, scaled to {shape[2]}x{shape[1]}"]
    if lost := [*found.broken, *broken]:
        notes.append(f"{len(lost):,} of {count:,} images cannot be read, left out: {_named(lost)}")
    return Pictures(plan, x, tuple(notes))


def _refuse_or_skip(broken: Sequence[Broken], keep: np.ndarray, options: DataOptions) -> None:
    """Mark images that cannot be read, where the options allow to leave them out."""
    keep[[each.number for each in broken]] = False
    if broken and not (options.skip_broken and keep.any()):
        many = f"{len(broken):,} of {len(keep):,} images cannot be read"
        raise InputError(f"{broken[0].why}; {many}; --skip-broken leaves such images out")


def _named(broken: Sequence[Broken]) -> str:
    return in_words([each.why.split(": ")[0].rpartition("/")[2] for each in broken])


def _shape(found: Survey, options: DataOptions) -> tuple[int, int, int]:
    channels, height, width = found.shape
    if options.size is not None:
        return channels, *options.size
    if found.other is not None:
        where, other_height, other_width = found.other
        raise InputError(
            f"{where}: image of {other_width}x{other_height} pixels, must be {width}x{height} as {found.first} is; "
            f"--resize {width}x{height} scales all images to one size"
        )
    return channels, height, width
