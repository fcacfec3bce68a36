"""ClusterFL (CFL): split the federation where its members' updates disagree (Sattler, Müller and Samek, 2020).

Client i trains from its cluster's model w_c, giving the update D_i. The server, for every cluster c, over c in S_t:

    split if ||mean D_i|| < eps1  and  max ||D_i|| > eps2  and  |c| > 2  and  t > warmup:
        near a stationary point of the mean, yet members still pull apart
    into two by complete linkage on the cosines <D_i, D_j> / (|D_i| |D_j|): the largest cross similarity is least
    w_c = w_c + mean of D_i over the cluster's participants;   children inherit their parent's model

Crosses the network: w_c down, v_i up, two model sizes.

Where the paper, its code and others differ: the paper weighs by size and checks a bound on the norms before a split; we
follow its notebook, which does neither. The notebook, and a benchmark that copied it, number the members of children
within their parent, so that every split after the first moves the wrong clients; we use global ids. Neither describes
partial participation: our norms and means are those of the participants, a split assigns absent members by their last
update, and clients never seen join the larger child. The notebook's eps1 = 0.4, eps2 = 1.6 belong to its network and
rate; the paper's tuned values are unpublished. If no update is longer than eps2, nothing splits and ClusterFL is FedAvg
with equal weights. `feddwa compare` sets an eps2 that is not given to 0.8 of the largest norm in the first ten rounds
that allow splits, measured in a federation that never splits (`tolerance`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import torch

from feddwa.algorithms.base import Algorithm, Info, Numbers, Problem
from feddwa.algorithms.linkage import bipartition, split, update_norms
from feddwa.algorithms.newcomer import Newcomer, Others, best_cluster
from feddwa.engine import Cohort, Memory, Message, ServerState, Trainer
from feddwa.engine.rows import difference, put, repeat, take, zeros
from feddwa.errors import require
from feddwa.mixing import inner_products, mix, pairwise_cosines
from feddwa.params import Tunable

SHARE, LATE = 0.8, 10  # rule for eps2: this share of the largest norm in this number of rounds after the warm-up


@dataclass(frozen=True)
class ClusterFL(Algorithm):
    """Clustered federated learning with the notebook's tolerances."""

    title = "ClusterFL"
    summary = "clusters that split where updates disagree"
    kind, year, order = "collaboration", 2020, 9
    models_down = models_up = passes = 1
    server_ops = "m**2 + N * m"
    discloses, evaluated = "its trained model", "its cluster's model"

    eps1: Annotated[float, Tunable(0.01, 10, log=True)] = 0.4
    """Split only below this norm of the mean update; 0 = never."""
    eps2: Annotated[float, Tunable(0.01, 10, log=True)] = 1.6
    """Split only above this largest norm of an update."""
    warmup: int = 20
    """Rounds before the first split."""

    def __post_init__(self) -> None:
        require(0 <= self.eps1 < math.inf, "--param eps1", self.eps1, "a finite number, 0 or more")
        require(0 <= self.eps2 < math.inf, "--param eps2", self.eps2, "a finite number, 0 or more")
        require(self.warmup >= 0, "--param warmup", self.warmup, "0 or more")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """One cluster; a row of "model" is the model of the client's cluster."""
        n, model = problem.clients, problem.initial
        clusters = {"of": torch.zeros(n, dtype=torch.int64), "seen": torch.zeros(n, dtype=torch.bool)}
        return {"model": repeat(model, n), "update": repeat(zeros(model), n), "clusters": clusters}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The cluster's model."""
        return {"model": take(server["model"], cohort.ids)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs."""
        local, memory = trainer.sgd(download["model"], memory)
        return {"model": local}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Split clusters, then move each by the mean update of its participants."""
        fresh = difference(upload["model"], take(server["model"], cohort.ids))
        update = put(server["update"], cohort.ids, fresh)
        seen = server["clusters"]["seen"].index_fill(0, cohort.ids, True)
        of = old = server["clusters"]["of"]
        mean_norm, max_norm = update_norms(inner_products(fresh, fresh), old[cohort.ids])  # (m,) each
        splits = (mean_norm < self.eps1) & (max_norm > self.eps2) & (cohort.round > self.warmup)
        for cluster in old[cohort.ids][splits].unique().tolist():
            known = ((old == cluster) & seen).nonzero().flatten()  # global ids
            if len(known) > 2:
                mine = take(update, known)
                leaves = bipartition(pairwise_cosines(inner_products(mine, mine)))
                of = split(of, cluster, known[leaves], known[~leaves])
        together = (of.unsqueeze(1) == of[cohort.ids]).double()  # (N, m)
        step = mix(together / together.sum(1, keepdim=True).clamp(min=1), fresh)
        model = {name: value + step[name] for name, value in server["model"].items()}
        weights = together[cohort.ids] / together[cohort.ids].sum(1, keepdim=True)
        report = {"weights": weights, "clusters": of, "mean_norm": mean_norm, "max_norm": max_norm}
        count = torch.tensor(len(of.unique()))
        numbers = {"cluster_count": count, "norm_of_mean": mean_norm.min(), "largest_norm": max_norm.max()}
        return {"model": model, "update": update, "clusters": {"of": of, "seen": seen}}, report | numbers

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """The model of the cluster that fits the newcomer's training data best."""
        return best_cluster(trainer, others)

    def warnings(self, measured: Sequence[Numbers], rounds: int) -> Iterator[str]:
        """Whether the tolerances have prevented every split, or always will."""
        if not measured or any(each["cluster_count"] > 1 for each in measured):
            return
        late = measured[self.warmup :]
        longest = max(each["largest_norm"] for each in late or measured)
        shortest = min(each["norm_of_mean"] for each in late or measured)
        fedavg = "nothing splits and ClusterFL is FedAvg over equal sizes"
        if rounds <= self.warmup:
            yield f"warmup={self.warmup} and {rounds} rounds: {fedavg}; take more --rounds or a lower warmup"
        elif longest <= self.eps2 and not late:
            yield (
                f"no update was longer than {longest:.2g} in {len(measured)} rounds and eps2={self.eps2:g}: if that "
                f"stays so, {fedavg}; `feddwa compare --algorithms clusterfl` measures an eps2 that fits"
            )
        elif longest <= self.eps2:
            rule = tolerance([each["largest_norm"] for each in measured], self.warmup)
            fitting = "a value below it" if rule is None else f"{rule}, which our rule gives"
            yield f"no update was longer than {longest:.2g} and eps2={self.eps2:g}: {fedavg}; take as eps2 {fitting}"
        elif late and shortest >= self.eps1:
            told = f"the mean update was never shorter than {shortest:.2g} and eps1={self.eps1:g}: {fedavg}"
            yield f"{told}; take a larger eps1 if clients fall into groups"


def tolerance(largest: Sequence[float], warmup: int) -> float | None:
    """eps2 by our rule, to two digits. largest: the largest norm of an update in each round of a run without splits.

    None if the run ends before the ten rounds after the warm-up in which it is measured.
    """
    late = largest[warmup : warmup + LATE]
    if len(late) < LATE or not median(late) > 0:
        return None
    value = SHARE * median(late)
    return round(value, max(2, 1 - math.floor(math.log10(value))))
