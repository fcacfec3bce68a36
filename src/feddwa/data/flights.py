"""Flights as a table by airline: the information at departure, and whether the flight arrives late."""

import numpy as np
import pyarrow as pa

from feddwa.data import tables
from feddwa.data.options import DataOptions
from feddwa.errors import InputError

# Columns of the file that are used.
NUMBERS = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "dep_delay", "arr_delay", "distance")
NAMES = ("carrier", "origin", "dest")
ARRIVED = ("dep_delay", "arr_delay")  # missing for cancelled or diverted flights
WEEKDAYS = np.array(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"])
EARLIEST, LATEST = -30, 120  # limits of the departure delay in minutes: flights that are a day late would dominate
# Reading options: the last fifth of each airline's flights is the test part; every airport is an input.
OPTIONS = DataOptions(label="late", client="carrier", time_column="time", min_samples=2, max_categories=1_000)


def at_departure(where: str, flights: pa.Table) -> pa.Table:
    """A row per flight that arrived: `late` (0 or 1), `carrier`, `time`, and the information at departure.

    The month is left out, because the test months do not occur in training.
    """
    for name in (*NUMBERS, *NAMES):
        column = flights[tables.pick(where, flights.column_names, (name,), name)]
        gaps = name not in ARRIVED and tables.missing(column).any()
        valid, what = (tables.is_number, "numbers") if name in NUMBERS else (tables.is_text, "names")
        if gaps or not valid(column.type):
            found = f"{column.type}{' and has gaps' if gaps else ''}"
            raise InputError(f"{where}: column {name!r} holds {found}; must be {what} without gaps")
    gaps = tables.missing(flights["dep_delay"]) | tables.missing(flights["arr_delay"])
    arrived = flights.filter(pa.array(~gaps))
    year, month, day, departs, arrives, behind, late, distance = (
        np.asarray(arrived[name].to_numpy()).astype(np.int64) for name in NUMBERS
    )
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + day - 1  # since 1970-01-01, a Thursday
    return pa.table({
        "late": (late > 0).astype(np.int64),
        "time": 1_440 * days + _minutes(departs),
        "weekday": WEEKDAYS[(days + 3) % 7],
        "departs": _minutes(departs),
        "planned": (_minutes(arrives) - _minutes(departs)) % 1_440,  # by the clocks of both airports
        "behind": behind.clip(EARLIEST, LATEST),
        "distance": distance,
        **{name: arrived[name] for name in NAMES},
    })  # fmt: skip


def _minutes(clock: np.ndarray) -> np.ndarray:
    """Minutes since midnight (n,) of 1435, which is 14:35."""
    minutes: np.ndarray = clock // 100 * 60 + clock % 100
    return minutes
