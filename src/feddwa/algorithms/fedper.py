"""FedPer: the body of the network is shared, its head stays with the client (Arivazhagan et al., 2019).

    client  (phi_i, h_i) <- E epochs of SGD from (phi, h_i), all parameters together
    server  phi = sum_{k in S_t} (n_k / n) phi_k

Crosses the network: the body phi down and up. The head h_i never leaves its client. (phi, h_i) is evaluated: the new
body with the head of the client's last participation.

Where the paper, its code and others differ: there is no official code. The paper keeps the classifier and the last
blocks of a ResNet private (one to four layers); libraries, and we by default, keep the last layer alone. Its clients
draw their own heads; ours start from a common one. One library averages and sends heads that nobody uses. Body and head
train in one pass; FedRep trains them in two, one after the other. BatchNorm layers belong to the body unless named as
head, and follow the BatchNorm policy. A head of all layers is Local, an empty one FedAvg; both are refused.
"""

from dataclasses import dataclass

from feddwa.algorithms.base import Problem
from feddwa.algorithms.partial import PartlyShared


@dataclass(frozen=True)
class FedPer(PartlyShared):
    """FedPer whose head is the last linear layer."""

    title = "FedPer"
    summary = "a shared body, a head for every client"
    kind, year = "shared-body", 2019
    models_down = models_up = "body"
    models_kept = "1 - body"
    server_ops = "m * body"
    discloses, evaluated = "its trained body", "the shared body with its own head"

    head: str = "last"
    """Layers that stay with the client: last (the last linear layer), or names separated by commas."""

    def own(self, problem: Problem) -> tuple[str, ...]:
        """The head."""
        return problem.head_named(self.head)
