"""FedDWA+: mix with those who agree about where to go next, layer by layer. FedDWA's idea, at FedAvg's cost.

FedDWA asks whose model is near. Near is ambiguous: under label skew the other groups are far and still worth listening
to, under concept shift they are as far and are not. FedDWA+ asks who is still moving the same way. Client i trains its
model w_i on one half of its data, then on the other, which gives the updates a_i and b_i and the local model v_i:

    d_i  = a_i + b_i = v_i - w_i
    c_ij = <d_i, d_j> / (|d_i| |d_j|)        agreement with others: unbiased by noise, for their data are independent
    c_ii = 4 <a_i, b_i> / |d_i|^2            agreement with itself, for the same reason between its two halves
    A    = running mean of c over rounds     with memory rho, pair by pair
    p_ij ~ max(A_ij, 0)^q                    normalised, with A_ii at least max over j of A_ij
    w_i  = sum_j p_ij v_j                                                                                    (Eq. 8)

each for every layer by itself. To first order <d_i, d_j> is what moving along j's update takes off i's loss: the term
of the paper's expansion that speaks of loss and not of distance. Where one model can serve everybody, the pull apart
fades as it does, agreement becomes even, and mixing wide; where it cannot, the pull stays, and mixing narrow. Nothing
locks in: agreement is about updates, so models that have grown apart may still find together.

Crosses the network: w_i down, v_i and a number per layer up, two model sizes. Training costs one epoch, no data are
held back, nothing looks ahead. Our own; not in the paper.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.vectors import difference, dots, inner_products
from feddwa.engine.network import SGDStep
from feddwa.engine.rows import Cohort, Rows, State, put, repeat, take
from feddwa.engine.trainer import Trainer
from feddwa.errors import require
from feddwa.mixing import Granularity, agreement_weights, mix_groups, parameter_groups, part_of


@dataclass(frozen=True)
class FedDWAPlus(Algorithm):
    """FedDWA+ with the values that were chosen on digits."""

    title = "FedDWA+"
    summary = "mixes with those whose updates agree, layer by layer"
    traffic = "1 + 1"
    cost = "1"
    validation = 0.5  # the second half: trained on as well, after the first

    power: float = 3.0  # q: how sharply agreement turns into weight
    memory: float = 0.9  # rho: what a round keeps of the agreement known before
    granularity: Granularity = "layer"  # parameters that get their weights together

    def __post_init__(self) -> None:
        require(0 < self.power < math.inf, "--param power", self.power, "a finite number above 0")
        require(0 <= self.memory < 1, "--param memory", self.memory, "at least 0 and below 1")

    def setup(self, problem: Problem) -> tuple[State, State]:
        """One personalised model per client, and nothing known about who agrees."""
        n, groups = problem.clients, parameter_groups(problem.initial, self.granularity)
        nothing = {group: torch.zeros(n, n, dtype=torch.float64) for group in groups}
        return {"model": repeat(problem.initial, n), "agreement": nothing, "evidence": nothing}, {}

    def download(self, server: State, cohort: Cohort) -> State:
        """The client's own personalised model w_i."""
        return {"model": take(server["model"], cohort.ids)}

    def client(self, trainer: Trainer, download: State, memory: State) -> tuple[State, State]:
        """An epoch, half by half; how far the halves agree goes up with the local model."""
        start, step = download["model"], SGDStep(trainer.engine.settings.lr)
        first, memory = trainer.train(step, {"model": start}, memory)
        both, memory = trainer.train(step, first, memory, split="validation")
        local = both["model"]
        a, b = difference(first["model"], start), difference(local, first["model"])
        groups = parameter_groups(start, self.granularity)
        coherence = {group: self_agreement(part_of(a, names), part_of(b, names)) for group, names in groups.items()}
        return {"model": local, "coherence": coherence}, memory

    def server(self, server: State, cohort: Cohort, upload: State) -> tuple[State, Info]:
        """Learn who agrees, then mix by it; who is absent keeps its row and its record."""
        local = upload["model"]
        update = difference(local, take(server["model"], cohort.ids))
        agreement, evidence = dict(server["agreement"]), dict(server["evidence"])
        groups = parameter_groups(local, self.granularity)
        shares: dict[str, Tensor] = {}  # group -> (m, m)
        for group, names in groups.items():
            known = cosines(part_of(update, names), upload["coherence"][group])
            agreement[group] = self._learn(agreement[group], cohort, known)
            evidence[group] = self._learn(evidence[group], cohort, torch.ones_like(known))
            pairs = cohort.ids.unsqueeze(1), cohort.ids
            shares[group] = agreement_weights(agreement[group][pairs] / evidence[group][pairs], self.power)
        mixed, overall = mix_groups(shares, groups, local)
        report = {"weights": overall, **{f"weights/{group}": weights for group, weights in shares.items()}}
        model = put(server["model"], cohort.ids, mixed)
        return {"model": model, "agreement": agreement, "evidence": evidence}, report

    def _learn(self, record: Tensor, cohort: Cohort, value: Tensor) -> Tensor:
        """The record (N, N) of a running sum, with this round's pairs (m, m) moved on."""
        rows, columns = cohort.ids.unsqueeze(1), cohort.ids
        moved = self.memory * record[rows, columns] + (1 - self.memory) * value
        return record.index_put((rows, columns), moved)


def self_agreement(a: Rows, b: Rows) -> Tensor:
    """4 <a_i, b_i> / |a_i + b_i|^2: (m,) float64, at most 1; 0 where nothing moves."""
    product = dots(a, b)
    length = dots(a, a) + 2 * product + dots(b, b)
    return torch.where(length > 0, 4 * product / length, 0.0)


def cosines(update: Rows, coherence: Tensor) -> Tensor:
    """c (m, m): the cosines between updates, on the diagonal the agreement of a client's halves."""
    products = inner_products(update, update)
    norms = products.diagonal().sqrt()
    scale = norms.unsqueeze(1) * norms
    found = torch.where(scale > 0, products / scale, 0.0)
    return found.diagonal_scatter(coherence.to(found))
