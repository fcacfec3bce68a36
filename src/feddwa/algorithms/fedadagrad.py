"""FedAdagrad: Adagrad on the server (Reddi et al., ICLR 2021).

    v = v + D^2;   everything else in `fedopt.py`

Crosses the network: as FedAvg, two model sizes. v only grows, so steps keep shrinking. beta1 is 0, as in the paper; one
library keeps Adam's 0.9, which is a different method.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from feddwa.algorithms.fedopt import FedOpt
from feddwa.params import Tunable


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAdagrad with the paper's beta1 and tau and the frameworks' rate."""

    title = "FedAdagrad"
    summary = "FedAvg with Adagrad on the server"
    kind, year = "global", 2021

    server_lr: Annotated[float, Tunable(1e-3, 1, log=True)] = 0.1
    """eta_g: the server's rate."""
    beta1: float = 0.0
    """Share of the old direction kept."""

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """The sum of all squares so far."""
        return old + square
