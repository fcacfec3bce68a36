"""FedDWA+, our own: mix clients whose updates point the same way, by layer, at FedAvg's traffic and computation.

FedDWA weights clients by distances of models, which do not tell label skew from concept shift; FedDWA+ by the cosine
similarity of updates. Client i trains w_i to v_i by an epoch, one half of its data after the other. For every layer:

    d_i  = v_i - w_i                      update of the epoch
    c_ij = cos(d_i, d_j), j != i          unbiased by noise, because i and j have independent data
    c_ii = cos(a_i, b_i)                  a_i, b_i: updates by either half of i's data, independent for the same reason
    s_i  = max over j != i of max(c_ij, 0)                                                      weight of the round
    A_ij = sum_t s_i c_ij / sum_t s_i     over the rounds of both i and j; then A_ii <- 2 A_ii / (1 + A_ii)
    p_ij ~ max(A_ij, 0)^q                 A_ii at least max_j A_ij; entries j != i multiplied by N / m
    w_i  = sum_j p_ij v_j                 over the m participants and i                                      (Eq. 8)
    h_i  = 2 c_ii / (1 + c_ii) d_i        agreed update: the part of i's latest update that both halves share
    e_i  = running mean of w_i + h_i      over i's rounds, all layers together: the model that i uses

Absent clients are mixed too, with w_i in place of v_i. For class targets, i trains and uses its models with the log
prior l_i = log((n_ic + k / C) / (n_i + k)) added to the outputs, and sends them without. Crosses the network: w_i down,
v_i and a number per layer up, two model sizes. A client stores four models.

Why: to first order <d_i, d_j> is the decrease of i's loss by a step along j's update (the paper's Eq. 9 to 12).
- The halves alternate in coming first. a_i and b_i come from the latest round that began with that half, so both start
  from a mixed model. Within one epoch the second half has little left to learn and would seem to disagree.
- The t-th model has weight 1 / (1 + r (t - 1)) in the running mean: about the last share r of the rounds.
- l_i reduces the effect of label skew on updates. Mixing can then be wide even if few take part, hence N / m.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.cosine import agreed_update, best_partner, mean_similarity, scale_others, similarity_weights
from feddwa.algorithms.prior import add_prior, log_prior
from feddwa.engine import Cohort, Memory, Message, ServerState, Stack, Trainer
from feddwa.engine.rows import add_scaled, count, difference, only, put, repeat, take, zeros
from feddwa.engine.steps import SGDStep
from feddwa.errors import require
from feddwa.mixing import Granularity, cosines, inner_products, mix_groups, pairwise_cosines, parameter_groups
from feddwa.params import Tunable

HALVES = ("train", "second_half")  # splits, and the parts of memory with the latest update that began with each
UPDATES = (*HALVES, "agreed_update")


@dataclass(frozen=True)
class FedDWAPlus(Algorithm):
    """FedDWA+ with the values chosen by test accuracy on digits and CIFAR-10."""

    title = "FedDWA+"
    summary = "mixes clients whose updates point the same way, layer by layer"
    kind, year, halves, defence = "collaboration", 2026, True, "clip"
    models_down = models_up = passes = 1
    stackable = ("power", "average", "granularity", "prior", "freeze")
    numbers_up, server_ops, models_kept, numbers_kept = "layers", "m**2 + N**2", 4, "classes + 1"
    discloses, evaluated = "its trained model, a cosine per layer", "its mixture of models, with its class prior"

    power: Annotated[float, Tunable(0.5, 8.0, log=True)] = 2.0
    """q: how sharply cosine similarity turns into weight."""
    average: Annotated[float, Tunable(0.0, 0.5)] = 0.1
    """r: share of the rounds so far over which the model in use is a running mean; 0 = the last model."""
    granularity: Granularity = "layer"
    """Parameters that share one set of weights."""
    prior: Annotated[float, Tunable(10, 1000, log=True)] = 200.0
    """k: samples of balanced classes added to a client's own in l_i; large: l_i has no effect."""
    freeze: int = 0
    """Rounds after which A stays fixed, 0 = never; clients that have not met by then never weight each other."""

    def __post_init__(self) -> None:
        require(0 < self.power < math.inf, "--param power", self.power, "a finite number above 0")
        require(0 <= self.average <= 1, "--param average", self.average, "from 0 to 1")
        require(0 < self.prior < math.inf, "--param prior", self.prior, "a finite number above 0")
        require(self.freeze >= 0, "--param freeze", self.freeze, "0 (never) or a number of rounds")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """Server: w_i, and per group both sums of A (N, N). Client: mean e_i, a_i, b_i, h_i, rounds so far, l_i."""
        n, groups = problem.clients, parameter_groups(problem.initial, self.granularity)
        sums = {group: torch.zeros(n, n, dtype=torch.float64) for group in groups}
        statistics = {name: value for name, value in problem.buffers.items() if value.is_floating_point()}
        average, none = repeat({**problem.initial, **statistics}, n), repeat(zeros(problem.initial), n)
        rounds, prior = {"taken": torch.zeros(n, dtype=torch.float64)}, log_prior(problem, self.prior)
        memory = {"average": average, "rounds": rounds, "prior": prior, **dict.fromkeys(UPDATES, none)}
        return {"model": repeat(problem.initial, n), "cosine_sum": sums, "weight_sum": sums}, memory

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """The client's own personalised model w_i."""
        return {"model": take(server["model"], cohort.ids)}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """An epoch, half by half. Uploads v_i and c_ii of every group (m,)."""
        start, step, steps = add_prior(download["model"], memory), SGDStep(trainer.lr), trainer.half_steps
        before, (first, second) = memory, HALVES if trainer.round % 2 else HALVES[::-1]
        half, memory = trainer.train(step, {"model": start}, memory, split=first, local_steps=steps(0))
        local, memory = trainer.train(step, half, memory, split=second, local_steps=steps(1), continued=True)
        updates = {**{name: memory[name] for name in HALVES}, first: difference(half["model"], start)}
        groups = parameter_groups(start, self.granularity)
        cosine = {group: cosines(*(only(updates[name], own) for name in HALVES)) for group, own in groups.items()}
        updates["agreed_update"] = agreed_update(difference(local["model"], start), groups, cosine)
        memory = {**memory, **updates, "average": self._averaged({**before, **updates}, download["model"])}
        memory["rounds"] = {"taken": before["rounds"]["taken"] + 1}
        return {"model": add_prior(local["model"], memory, -1), "cosine": cosine}, memory

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """Update A from the cohort's cosines, then mix all N clients, absent ones with w_i in place of v_i."""
        ids, pairs, total = cohort.ids, (cohort.ids.unsqueeze(1), cohort.ids), count(server["model"])
        update = difference(upload["model"], take(server["model"], ids))
        latest = put(server["model"], ids, upload["model"])  # v_i, and w_i of absent clients
        cosine_sum, weight_sum = dict(server["cosine_sum"]), dict(server["weight_sum"])  # group -> (N, N)
        present = torch.eye(total, dtype=torch.bool, device=ids.device).index_fill(1, ids, True)  # (N, N)
        groups, shares = parameter_groups(latest, self.granularity), dict[str, Tensor]()  # shares: group -> P (N, N)
        for group, names in groups.items():
            if not 0 < self.freeze < cohort.round:
                own = only(update, names)
                cosine = pairwise_cosines(inner_products(own, own)).diagonal_scatter(upload["cosine"][group].double())
                weight = best_partner(cosine).unsqueeze(1)  # (m, 1): s_i
                cosine_sum[group] = cosine_sum[group].index_put(pairs, weight * cosine, accumulate=True)
                weight_sum[group] = weight_sum[group].index_put(pairs, weight.expand_as(cosine), accumulate=True)
            known = torch.where(present, mean_similarity(cosine_sum[group], weight_sum[group]), 0.0)
            shares[group] = scale_others(similarity_weights(known, self.power), total / len(ids))
        mixed, overall = mix_groups(shares, groups, latest)
        report = {"weights": overall[pairs], **{f"weights/{group}": each[pairs] for group, each in shares.items()}}
        return {"model": mixed, "cosine_sum": cosine_sum, "weight_sum": weight_sum}, report

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """e_i with the received model and l_i; BatchNorm statistics are also a running mean."""
        used = self._averaged(memory, download["model"])
        buffers = {name: used.get(name, value) for name, value in memory["buffers"].items()}
        return add_prior(only(used, download["model"]), memory), {**memory, "buffers": buffers}

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The local model v_i, with l_i."""
        return add_prior(upload["model"], memory)

    def _averaged(self, memory: Memory, model: Stack) -> Stack:
        """The running mean (m, *shape) including w_i + h_i and the current BatchNorm statistics."""
        past, share = memory["average"], 1 / (1 + self.average * memory["rounds"]["taken"])  # share: (m,)
        now = {**memory["buffers"], **{name: value + memory["agreed_update"][name] for name, value in model.items()}}
        return add_scaled(past, share, difference(only(now, past), past))
