"""Defences: what a server does against hostile clients (`--defence NAME,...`)."""

import dataclasses
from typing import Any

from feddwa.defences.base import Defence, Weighted
from feddwa.defences.bounds import CentredClipping, Clip
from feddwa.defences.coordinates import Median, TrimmedMean
from feddwa.defences.distances import NNM, GeometricMedian, Krum, MultiKrum
from feddwa.plugins import Unfit

__all__ = ["DEFENCES", "Defence", "Weighted", "adopt"]

DEFENCES: dict[str, type[Defence]] = {
    "clip": Clip,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "centred-clipping": CentredClipping,
    "nnm": NNM,
}


def adopt(defence: Any) -> type[Defence]:
    """A defence from outside the package; raises Unfit where it cannot be one."""
    if not (isinstance(defence, type) and issubclass(defence, Defence) and dataclasses.is_dataclass(defence)):
        raise Unfit("must be a frozen dataclass that inherits from feddwa.defences.Defence")
    return defence
