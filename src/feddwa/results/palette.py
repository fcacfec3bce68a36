"""Colours and dashes of methods, in the report and in all figures, distinguishable for the colour-blind and in print.

The hues are those of Okabe and Ito, darkened if too pale for lines on white; then dashes, then hues of Tol and three
others. Local, the baseline, is always grey; FedDWA is blue and FedAvg vermilion.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

GREY = ("#6b7280", "#9ca3af")
HUES = (  # on white, on black
    ("#0072b2", "#4aa8e0"),
    ("#d55e00", "#f0803c"),
    ("#009e73", "#2fc79b"),
    ("#b4578a", "#e08cbb"),
    ("#b07d00", "#e6b13d"),
    ("#3a9bd9", "#8fd0ff"),
    ("#6f4fb3", "#a48be0"),
)
MORE = (
    ("#882255", "#d9778f"),
    ("#117733", "#8fc76a"),
    ("#332288", "#8c8cf5"),
    ("#74741c", "#d3d36b"),
    ("#8c564b", "#d09a8c"),
    ("#00707f", "#40c4d4"),
    ("#a31515", "#ff8a80"),
)
DASHES = ("solid", "dashed", "dotted")
LOOKS = [(hue, dash) for hues in (HUES, MORE) for dash in DASHES for hue in hues]
FIRST = {"feddwa": 0, "fedavg": 1}  # algorithm -> index in LOOKS


class Style(NamedTuple):
    """The style of a method's line."""

    light: str
    dark: str
    dash: str


def styles(algorithms: Sequence[str]) -> list[Style]:
    """One style per line, from the algorithm of each."""
    taken = {FIRST[name] for name in algorithms if name in FIRST}
    free = (place for place in itertools.count() if place not in taken)
    reserved = dict(FIRST)  # for the first line of an algorithm; variants take free ones
    found, grey = [], False
    for name in algorithms:
        if name == "local" and not grey:
            grey = True
            found.append(Style(*GREY, "dashed"))
            continue
        place = reserved.pop(name, None)
        place = next(free) if place is None else place
        hue, dash = LOOKS[place % len(LOOKS)]
        found.append(Style(*hue, dash))
    return found
