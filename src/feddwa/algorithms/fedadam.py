"""FedAdam: Adam on the server (Reddi et al., ICLR 2021).

    v = beta2 v + (1 - beta2) D^2;   everything else in `fedopt.py`

Crosses the network: as FedAvg, two model sizes.
"""

from dataclasses import dataclass

from torch import Tensor

from feddwa.algorithms.fedopt import Decaying


@dataclass(frozen=True)
class FedAdam(Decaying):
    """FedAdam with the paper's betas and tau, and a rate that suits CIFAR-10."""

    title = "FedAdam"
    summary = "FedAvg with Adam on the server"
    kind, year = "global", 2021

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """An exponential moving average."""
        return self.beta2 * old + (1 - self.beta2) * square
