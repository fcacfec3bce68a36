"""LG-FedAvg: every client has a body of its own, the head is shared (Liang et al., 2020).

    client  (phi_i, h_i) <- E epochs of SGD from (phi_i, h), all parameters together
    server  h = sum_{k in S_t} (n_k / n) h_k

Crosses the network: the head h down and up, a small share of most networks. The body phi_i never leaves its client.
(phi_i, h) is evaluated: if many clients are absent, bodies meet a head that has moved on without them.

Where the paper, its code and others differ: the original starts LG from the result of hundreds of rounds of FedAvg;
ours and libraries' starts from the common initial model. The official network for CIFAR lists its layers so that the
convolutions are shared and the dense layers private, which is FedPer; one library shares the first layer in place of
the last. The official accuracy takes each client's best round on test data. Our average is weighted by size; the
original's clients count equally. Bodies drift apart from a common start, so expect results near Local. The BatchNorm
policy "mean" is refused, because it would average the statistics of different bodies; the other two policies send
nothing of a body.
"""

from dataclasses import dataclass

from feddwa.algorithms.base import Problem
from feddwa.algorithms.partial import PartlyShared


@dataclass(frozen=True)
class LGFedAvg(PartlyShared):
    """LG-FedAvg whose head is the last linear layer."""

    title = "LG-FedAvg"
    summary = "a body for every client, a shared head"
    kind, year = "shared-body", 2020
    models_down = models_up = "1 - body"
    models_kept = "body"
    server_ops = "m * (1 - body)"
    policies = ("local", "all-local")
    discloses, evaluated = "its trained head", "its own body with the shared head"

    head: str = "last"
    """Layers that are shared: last (the last linear layer), or names separated by commas."""

    def own(self, problem: Problem) -> tuple[str, ...]:
        """The body."""
        head = problem.head_named(self.head)
        return tuple(name for name in problem.initial if name not in head)
