"""The options for reading own data. Imports here must be fast."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from feddwa.errors import InputError, require
from feddwa.params import AtMost, Option

LABEL, CLIENT = "label", "client"  # columns of these names need no option
CATEGORIES = 20  # default limit of different values in a text column
LARGEST_SIDE = 4096  # of an image, in pixels
_SIZE = re.compile(r"(?P<width>[1-9]\d{0,3})(x(?P<height>[1-9]\d{0,3}))?")


@dataclass(frozen=True)
class DataOptions:
    """Options for own data. None: not given; named datasets accept none of these."""

    label: Annotated[str | None, Option(metavar="COLUMN")] = None
    """Column of the labels in a table [label]."""
    client: Annotated[str | None, Option(metavar="COLUMN")] = None
    """Column with the owner of each row [client, if present]."""
    test_column: Annotated[str | None, Option(metavar="COLUMN")] = None
    """Column that marks the test rows: true/false, 1/0 or test/train."""
    time_column: Annotated[str | None, Option(metavar="COLUMN")] = None
    """Column to order rows by, for `--split time`, which it implies; it is not a feature."""
    drop: Annotated[str | None, Option(metavar="COLUMN,...")] = None
    """Columns to leave out, separated by commas."""
    split: Literal["random", "time"] | None = None
    """Which fifth of a client's rows is held out: any, or the last ones (recordings, overlapping windows) [random]."""
    impute: Literal["mean", "drop"] | None = None
    """Missing values: the training rows' mean (for text the most frequent value), or leave these rows out [refuse]."""
    standardise: bool | None = None
    """Scale features to mean 0 and deviation 1 over training rows [tables: yes; no: --no-standardise]."""
    max_categories: Annotated[int | None, AtMost(10_000)] = None
    """Largest number of different values in a text column; each becomes one input, 0 or 1 [20]."""
    resize: Annotated[str | None, Option(metavar="SIZE")] = None
    """Scale images to this size: 64, or 64x48 (width x height)."""
    skip_broken: bool | None = None
    """Leave out unreadable images [refuse]."""
    min_samples: int | None = None
    """Smallest number of samples per client; smaller clients are left out, and named [2, refuse]."""
    small_clients: Literal["drop", "refuse"] | None = None
    """Leave out or refuse clients below --min-samples [drop]."""

    def given(self) -> dict[str, Any]:
        """Name -> value of the given options of own data."""
        names = [field.name for field in dataclasses.fields(DataOptions)]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def check_options(self) -> None:
        """Raise InputError unless the values are valid, separately and together."""
        if self.resize is not None:
            size = _SIZE.fullmatch(self.resize)
            valid = size is not None and max(self.size or (0,)) <= LARGEST_SIDE
            require(valid, "--resize", self.resize, f"of the form 64 or 64x48, at most {LARGEST_SIDE}")
        for name in ("min_samples", "max_categories"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"--{name.replace('_', '-')}", value, "at least 1")
        for name in ("label", "client", "test_column", "time_column", "drop"):
            value = getattr(self, name)
            empty = value is not None and not value.strip(", ")
            require(not empty, f"--{name.replace('_', '-')}", value, "the name of a column")
        if self.small_clients is not None and self.min_samples is None:
            raise InputError("--small-clients: says what becomes of clients below --min-samples, which is not given")
        if self.split == "random" and self.time_column is not None:
            raise InputError("--time-column: orders rows for --split time, not for --split random; leave one out")

    def refuse_given(self, why: str) -> None:
        """Raise InputError if an option of own data was given; `why`: the reason it has no effect."""
        for name in self.given():
            raise InputError(f"--{name.replace('_', '-')}: {why}; leave it out")

    def refuse_unused(self, where: str, used: tuple[str, ...]) -> None:
        """Raise InputError if a given option has no effect on the data at `where`."""
        for name in self.given():
            if name not in used:
                valid = ", ".join(f"--{each.replace('_', '-')}" for each in used)
                raise InputError(f"--{name.replace('_', '-')}: has no effect on {where}; valid there: {valid}")

    @property
    def size(self) -> tuple[int, int] | None:
        """(H, W) to which images are scaled."""
        found = _SIZE.fullmatch(self.resize or "")
        return None if found is None else (int(found["height"] or found["width"]), int(found["width"]))

    @property
    def dropped(self) -> tuple[str, ...]:
        """Names of the columns to leave out."""
        return tuple(name.strip() for name in (self.drop or "").split(",") if name.strip())

    @property
    def in_time(self) -> bool:
        """Whether the last rows of every client are held out."""
        return self.split == "time" or self.time_column is not None
