"""Defences: the server's protection against hostile clients (`--defence NAME,...`)."""

from typing import Any

from feddwa.defences.base import Defence, Weighted
from feddwa.defences.bounds import CentredClipping, Clip, NormBound
from feddwa.defences.coordinates import Median, TrimmedMean
from feddwa.defences.distances import NNM, GeometricMedian, Krum, MultiKrum
from feddwa.defences.rows import Bucketing, RobustRows
from feddwa.plugins import dataclass_of

__all__ = ["DEFENCES", "Defence", "Weighted", "adopt"]

DEFENCES: dict[str, type[Defence]] = {
    "clip": Clip,
    "norm-bound": NormBound,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "centred-clipping": CentredClipping,
    "nnm": NNM,
    "bucketing": Bucketing,
    "robust-rows": RobustRows,
}


def adopt(defence: Any) -> type[Defence]:
    """Check a defence from outside the package; raises Unfit if it cannot be one."""
    return dataclass_of(Defence, defence)
