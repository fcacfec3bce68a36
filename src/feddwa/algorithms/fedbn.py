"""FedBN: FedAvg of everything except BatchNorm, whose layers stay with their clients (Li et al., ICLR 2021).

    client  (w_i, b_i) <- E epochs of SGD from (w, b_i),   b_i: scales and shifts of its BatchNorm layers
    server  w = sum_{k in S_t} (n_k / n) w_k

Crosses the network: w down and up, the model without BatchNorm. Scale, shift, running mean and variance never leave the
client. (w, b_i) is evaluated. FedBN equals FedAvg under the BatchNorm policy "all-local".

Where the paper, its code and others differ: the official code and libraries find BatchNorm by "bn" in the names of
parameters, and so average torchvision's "downsample.1" and every layer of a Sequential; we go by the layers' type. The
original weighs clients equally. A client that has never trained is tested with untrained statistics. A network without
BatchNorm is refused, because FedBN would silently be FedAvg; so is the policy "mean", which would send the statistics.
Meant for clients whose inputs differ (scanners, styles), not for label skew.
"""

from dataclasses import dataclass

from feddwa.algorithms.base import Problem
from feddwa.algorithms.partial import PartlyShared
from feddwa.errors import InputError


@dataclass(frozen=True)
class FedBN(PartlyShared):
    """FedBN."""

    title = "FedBN"
    summary = "FedAvg of everything except BatchNorm layers"
    kind, year = "shared-body", 2021
    models_down = models_up = "1 - batchnorm"
    models_kept = "batchnorm"
    server_ops = "m * (1 - batchnorm)"
    policies = ("local", "all-local")
    discloses, evaluated = "its trained model without BatchNorm", "the global model with its own BatchNorm"

    def own(self, problem: Problem) -> tuple[str, ...]:
        """Scales and shifts."""
        if not 0 < len(problem.batchnorm) < len(problem.initial):
            what = "needs a network with BatchNorm layers that are trained, and others; without them it is fedavg"
            raise InputError(f"algorithm fedbn: {what}")
        return problem.batchnorm
