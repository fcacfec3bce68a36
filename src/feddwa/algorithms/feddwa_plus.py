"""FedDWA+: mix with those who agree about where to go next, layer by layer. FedDWA's idea, at FedAvg's cost.

FedDWA asks whose model is near. Near is ambiguous: under label skew the other groups are far and still worth listening
to, under concept shift they are as far and are not. FedDWA+ asks who is still moving the same way. Client i trains its
model w_i for an epoch, on one half of its data and then on the other, to the local model v_i:

    d_i  = v_i - w_i
    c_ij = cos(d_i, d_j)                  agreement with others: unbiased by noise, for their data are independent
    c_ii = cos(a_i, b_i)                  agreement with itself, for the same reason between its two halves
    s_i  = max over j != i of max(c_ij, 0)                                           what a round has to say to i
    A_ij = sum_t s_i c_ij / sum_t s_i     over the rounds in which i and j met; then A_ii <- 2 A_ii / (1 + A_ii)
    p_ij ~ max(A_ij, 0)^q                 with A_ii at least max over j of A_ij; N / m times for the m others present
    w_i  = sum_j p_ij v_j                 over who is present, and i itself                                  (Eq. 8)
    u_i  = 2 c_ii / (1 + c_ii) d_i        of i's latest round: what both halves of its data agree on
    e_i  = running mean of w_i + u_i      over i's rounds: the model that i uses

all but the mean for every layer by itself, and for absent clients too, with w_i in place of v_i. Where outputs stand
for classes, i trains and uses its models with l_i added to the outputs, and sends them without:

    l_i  = log of the class frequencies of i, as if it had k more samples, as many of every class

To first order <d_i, d_j> is what moving along j's update takes off the loss of i: the term of the paper's expansion
that speaks of loss and not of distance. How wide that mixes, and whether it widens or narrows over the rounds, differs
from task to task (docs/beyond.md has the in-group weight by round).

The halves take turns in coming first. a_i and b_i are the updates by either half in the latest round that began with
it, so both start from a model that has just been mixed. What the second half adds to the first in one epoch would not
do: it is little, or turns back, where the first has gone all the way. 2c / (1 + c) is what the agreement of halves says
of two whole epochs. A round counts as far as anybody agrees with i in it: where those who belong together have come to
rest, their updates cancel, and what is left to each is noise and its own way back, which would tell them to part. The
running mean is over about the last share r of the rounds: the t-th model counts 1 / (1 + r (t - 1)).

With l_i, how many samples a client has of which class is no longer a matter of the model, so that label skew is less
to disagree about. Mixing may then be as wide when few are present, who therefore count for those absent as well. What
is left of a client's own, and worth keeping, is u_i.

With `freeze` = T, A is that of round T in all later rounds. If everybody takes part, so is P. Of fewer participants P
is what the rule makes of the fixed A; two clients that have not met by round T weight each other with 0 for good.

Crosses the network: w_i down, v_i and a number per layer up, two model sizes. Training costs one epoch, no data are
held back, nothing looks ahead; a client remembers four models. Our own; not in the paper.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from feddwa.algorithms.base import Algorithm, Info, Problem
from feddwa.algorithms.vectors import add_scaled, difference, dots, inner_products, scale
from feddwa.engine.network import SGDStep
from feddwa.engine.rows import Cohort, Rows, State, count, put, repeat, take
from feddwa.engine.trainer import Trainer
from feddwa.errors import require
from feddwa.mixing import Granularity, agreement_weights, mix_groups, parameter_groups, part_of

HALVES = ("train", "validation")  # the splits, and what is remembered of each: the last update that began with it


@dataclass(frozen=True)
class FedDWAPlus(Algorithm):
    """FedDWA+ with the values that were chosen by test accuracy on digits and CIFAR-10."""

    title = "FedDWA+"
    summary = "mixes with those whose updates agree, layer by layer"
    traffic = "1 + 1"
    cost = "1"
    validation = 0.5  # the other half: trained on as well
    stackable = ("power", "average", "granularity", "prior", "freeze")

    power: float = 2.0  # q: how sharply agreement turns into weight
    average: float = 0.1  # share of the rounds so far over which the model in use is a running mean; 0 = the last one
    granularity: Granularity = "layer"  # parameters that get their weights together
    prior: float = 200.0  # k: samples of even classes beside its own in l_i; ever more of them: without l_i
    freeze: int = 0  # rounds after which A, and with it P of a given set of participants, stays fixed; 0 = never

    def __post_init__(self) -> None:
        require(0 < self.power < math.inf, "--param power", self.power, "a finite number above 0")
        require(0 <= self.average <= 1, "--param average", self.average, "from 0 to 1")
        require(0 < self.prior < math.inf, "--param prior", self.prior, "a finite number above 0")
        require(self.freeze >= 0, "--param freeze", self.freeze, "0 (never) or a number of rounds")

    def setup(self, problem: Problem) -> tuple[State, State]:
        """One personalised model per client, and nothing known about who agrees."""
        n, groups = problem.clients, parameter_groups(problem.initial, self.granularity)
        nothing = {group: torch.zeros(n, n, dtype=torch.float64) for group in groups}
        still = repeat({name: torch.zeros_like(value) for name, value in problem.initial.items()}, n)
        statistics = {name: value for name, value in problem.buffers.items() if value.is_floating_point()}
        average = repeat({**problem.initial, **statistics}, n)
        rounds = {"taken": torch.zeros(n, dtype=torch.float64)}
        own: State = {"average": average, "rounds": rounds, "prior": log_frequencies(problem, self.prior)}
        server = {"model": repeat(problem.initial, n), "agreement": nothing, "news": nothing}
        return server, {**own, **dict.fromkeys((*HALVES, "way on"), still)}

    def download(self, server: State, cohort: Cohort) -> State:
        """The client's own personalised model w_i."""
        return {"model": take(server["model"], cohort.ids)}

    def client(self, trainer: Trainer, download: State, memory: State) -> tuple[State, State]:
        """An epoch, half by half; how far the halves agree goes up with the local model."""
        start, step = with_prior(download["model"], memory), SGDStep(trainer.engine.settings.lr)
        before, (begins, ends) = memory, HALVES if trainer.round % 2 else HALVES[::-1]
        first, memory = trainer.train(step, {"model": start}, memory, split=begins)
        both, memory = trainer.train(step, first, memory, split=ends)
        halves = {**{half: memory[half] for half in HALVES}, begins: difference(first["model"], start)}
        groups = parameter_groups(start, self.granularity)
        coherence = {
            group: cosines(*(part_of(halves[half], names) for half in HALVES)) for group, names in groups.items()
        }
        way_on = agreed(difference(both["model"], start), groups, coherence)
        average = self._averaged({**before, "way on": way_on}, download["model"])
        rounds = {"taken": before["rounds"]["taken"] + 1}
        known = {**memory, **halves, "way on": way_on, "average": average, "rounds": rounds}
        return {"model": with_prior(both["model"], memory, -1), "coherence": coherence}, known

    def server(self, server: State, cohort: Cohort, upload: State) -> tuple[State, Info]:
        """Learn who agrees, then mix by it; who is absent follows those present whom it is known to agree with."""
        present, pairs = cohort.ids, (cohort.ids.unsqueeze(1), cohort.ids)
        update = difference(upload["model"], take(server["model"], present))
        latest = put(server["model"], present, upload["model"])  # v_i, and w_i of who is absent
        agreement, news = dict(server["agreement"]), dict(server["news"])  # sums over rounds: group -> (N, N)
        heard = torch.eye(count(latest), dtype=torch.bool, device=present.device).index_fill(1, present, True)
        groups = parameter_groups(latest, self.granularity)
        shares: dict[str, Tensor] = {}  # group -> (N, N)
        for group, names in groups.items():
            if not 0 < self.freeze < cohort.round:
                found = mutual_cosines(part_of(update, names)).diagonal_scatter(upload["coherence"][group].double())
                counts = best_partner(found).unsqueeze(1)  # (m, 1): s_i
                agreement[group] = agreement[group].index_put(pairs, agreement[group][pairs] + counts * found)
                news[group] = news[group].index_put(pairs, news[group][pairs] + counts)
            known = whole(mean(agreement[group], news[group]))
            weights = agreement_weights(torch.where(heard, known, 0.0), self.power)
            shares[group] = others_count(weights, count(latest) / len(present))
        mixed, overall = mix_groups(shares, groups, latest)
        report = {
            "weights": overall[pairs],
            **{f"weights/{group}": weights[pairs] for group, weights in shares.items()},
        }
        return {"model": mixed, "agreement": agreement, "news": news}, report

    def personal(self, trainer: Trainer, download: State, memory: State) -> tuple[Rows, State]:
        """The running mean e_i, with the model that has just arrived; its BatchNorm statistics are a mean as well."""
        used = self._averaged(memory, download["model"])
        buffers = {name: used.get(name, value) for name, value in memory["buffers"].items()}
        model = {name: used[name] for name in download["model"]}
        return with_prior(model, memory), {**memory, "buffers": buffers}

    def trained(self, upload: State, memory: State) -> Rows:
        """The local model v_i, with l_i."""
        return with_prior(upload["model"], memory)

    def _averaged(self, memory: State, model: Rows) -> Rows:
        """The mean with a model, the client's way on from it, and the statistics of now."""
        ahead = {name: value + memory["way on"][name] for name, value in model.items()}
        now, past = {**memory["buffers"], **ahead}, memory["average"]
        share = newest_share(self.average, memory["rounds"]["taken"])
        return add_scaled(past, share, {name: now[name] - value for name, value in past.items()})


def log_frequencies(problem: Problem, prior: float) -> Rows:
    """l_i (N, C) under the name of the head's bias, to which it is added; nothing where outputs are no classes."""
    bias = next((name for name in problem.head if name.endswith("bias")), None)
    if problem.label_counts is None or bias is None:
        return {}
    unseen = len(problem.initial[bias]) - problem.label_counts.shape[1]  # outputs for classes that nobody has
    if unseen < 0:
        return {}
    counts = F.pad(problem.label_counts.double(), (0, unseen))
    frequencies = (counts + prior / counts.shape[1]) / (counts.sum(1, keepdim=True) + prior)
    return {bias: frequencies.log().to(problem.initial[bias])}


def with_prior(model: Rows, memory: State, times: int = 1) -> Rows:
    """The model with l_i added so many times."""
    prior = memory["prior"]
    return {name: value + times * prior[name] if name in prior else value for name, value in model.items()}


def agreed(update: Rows, groups: Mapping[str, list[str]], coherence: Rows) -> Rows:
    """u_i: of every group of parameters as much as the halves agree about it."""
    parts = (scale(in_whole(coherence[group]), part_of(update, names)) for group, names in groups.items())
    kept = {name: value for part in parts for name, value in part.items()}
    return {name: kept[name] for name in update}


def others_count(weights: Tensor, times: float) -> Tensor:
    """P (N, N) in which others count so many times what they did."""
    counted = (times * weights).diagonal_scatter(weights.diagonal())
    return counted / counted.sum(1, keepdim=True)


def newest_share(recent: float, before: Tensor) -> Tensor:
    """What the newest value counts in a running mean over the last share `recent`, with so many values before it."""
    return 1 / (1 + recent * before)


def cosines(a: Rows, b: Rows) -> Tensor:
    """cos(a_i, b_i): (m,) float64; 0 where one of them is nothing."""
    lengths = (dots(a, a) * dots(b, b)).sqrt()
    return torch.where(lengths > 0, dots(a, b) / lengths, 0.0)


def mutual_cosines(update: Rows) -> Tensor:
    """cos(d_i, d_j): (m, m) float64; 0 where one of them is nothing."""
    products = inner_products(update, update)
    norms = products.diagonal().sqrt()
    lengths = norms.unsqueeze(1) * norms
    return torch.where(lengths > 0, products / lengths, 0.0)


def best_partner(agreement: Tensor) -> Tensor:
    """How far a client agrees with the other that it agrees with most: (m,) of (m, m); 0 where it does with none."""
    return agreement.diagonal_scatter(torch.zeros_like(agreement.diagonal())).amax(1)


def mean(total: Tensor, counts: Tensor) -> Tensor:
    """total / counts; 0 where nothing has been counted."""
    return torch.where(counts > 0, total / counts, 0.0)


def whole(agreement: Tensor) -> Tensor:
    """Agreement with the diagonal, known from halves, as two whole epochs would have it."""
    return agreement.diagonal_scatter(in_whole(agreement.diagonal()))


def in_whole(halves: Tensor) -> Tensor:
    """What the cosine c of halves says of two whole epochs: 2c / (1 + c), 0 where they disagree."""
    c = halves.clamp(min=0)
    return 2 * c / (1 + c)
