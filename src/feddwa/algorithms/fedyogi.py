"""FedYogi: Yogi on the server, an Adam whose v changes by bounded steps (Reddi et al., ICLR 2021).

    v = v - (1 - beta2) D^2 sign(v - D^2);   everything else in `fedopt.py`

Crosses the network: as FedAvg, two model sizes. v moves by at most (1 - beta2) D^2, so it shrinks slowly after large
updates; from v = 0 its first step is Adam's.
"""

from dataclasses import dataclass

from torch import Tensor

from feddwa.algorithms.fedopt import Decaying


@dataclass(frozen=True)
class FedYogi(Decaying):
    """FedYogi with the paper's betas and tau, and a rate that suits CIFAR-10."""

    title = "FedYogi"
    summary = "FedAvg with Yogi on the server"
    kind, year = "global", 2021

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """A step of (1 - beta2) D^2 towards D^2."""
        return old - (1 - self.beta2) * square * (old - square).sign()
