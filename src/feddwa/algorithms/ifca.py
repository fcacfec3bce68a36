"""IFCA: k models; each client trains the one that fits it best (Ghosh et al., NeurIPS 2020).

    client  j_i = argmin_j f_i(theta_j) over its training data;   v_i = SGD(theta_{j_i})
    server  theta_j = sum over participants that chose j of (n_i / n) v_i;   a model that nobody chose stays

Crosses the network: k models down, v_i and the number j_i up, 1 + k model sizes. Each client is evaluated with the
model that it would choose by its training data.

Where the paper, its code and others differ: the original weighs clients equally in two of three settings; we weigh by
samples, so that k = 1 is FedAvg bit for bit. Two of three official settings choose the evaluated model by its loss on
test data; we never use test data. The k models must differ: theta_1 is the run's initial model, the others permute the
entries of each of its parameters. For layers initialised with independent draws from one distribution this is a fresh
draw; constants such as BatchNorm's ones stay. It would ruin pretrained weights: fresh=head permutes the head alone, as
the official code starts each model with a fresh last layer. The official code redraws all initial models until every
model attracts enough clients. Ours does not: a model may attract no client and still costs its traffic. One library
starts all models equal, so that every client always takes the first. With BatchNorm, models are scored with the
client's own statistics, which favours the model it trained last. The policy "mean" is refused, because it would average
the statistics of different models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from feddwa.algorithms.base import Algorithm, Info, Numbers, Problem
from feddwa.algorithms.newcomer import Newcomer, Others, best_cluster
from feddwa.engine import Cohort, Memory, Message, Model, ServerState, Stack, Trainer, keys
from feddwa.engine.rows import put, repeat, row, take
from feddwa.errors import require
from feddwa.mixing import mix
from feddwa.params import Tunable


@dataclass(frozen=True)
class IFCA(Algorithm):
    """IFCA with the number of clusters of the paper's rotated digits."""

    title = "IFCA"
    summary = "k models; each client trains the one that fits it best"
    kind, year = "collaboration", 2020
    models_down, models_up, numbers_up = 4, 1, 1
    passes, forward_passes = 1, 4
    server_ops = "4 * m"
    policies = ("local", "all-local")
    discloses, evaluated = "its trained model, its cluster", "the cluster's model that fits it best"

    clusters: Annotated[int, Tunable(2, 8)] = 4
    """k: number of models; each costs traffic and a forward pass."""
    fresh: Literal["all", "head"] = "all"
    """The parameters in which the initial models differ; head suits pretrained weights."""

    def __post_init__(self) -> None:
        require(self.clusters >= 1, "--param clusters", self.clusters, "at least 1")

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """k different models."""
        names = problem.head_named("last") if self.fresh == "head" else tuple(problem.initial)
        starts = [permuted(problem, names, number) if number else problem.initial for number in range(self.clusters)]
        return {f"model-{number}": start for number, start in enumerate(starts)}, {}

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """All models, to every client."""
        return {part: repeat(model, len(cohort)) for part, model in server.items()}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs from the best model."""
        start, choice = self.choose(trainer, download, memory)
        local, memory = trainer.sgd(start, memory)
        return {"model": local, "choice": {"cluster": choice}}, memory

    def choose(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Tensor]:
        """The model (m, *shape) with the lowest training loss, and its number (m,); ties take the first."""
        losses = torch.stack([trainer.losses(model, memory, "train") for model in download.values()])  # (k, m)
        choice = losses.nan_to_num(torch.inf).argsort(dim=0, stable=True)[0]
        chosen, *others = download.values()
        for number, model in enumerate(others, 1):
            members = (choice == number).nonzero().flatten()
            chosen = put(chosen, members, take(model, members))
        return chosen, choice

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """The mean of every cluster by data size."""
        numbers = torch.arange(self.clusters).unsqueeze(1)
        members = (upload["choice"]["cluster"].cpu() == numbers).double()  # (k, m)
        shares = members * cohort.sizes
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        means, live = mix(shares, upload["model"]), members.any(1)
        new = {part: row(means, j) if live[j] else model for j, (part, model) in enumerate(server.items())}
        return new, {"weights": members.T @ shares, "cluster_count": live.sum()}

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """The model that fits the client's training data best."""
        return self.choose(trainer, download, memory)[0], memory

    def warnings(self, measured: Sequence[Numbers], rounds: int) -> Iterator[str]:
        """Whether all clients have chosen one model."""
        if self.clusters > 1 and measured and all(each["cluster_count"] == 1 for each in measured):
            yield f"all participants chose one of {self.clusters} models in every round: so far this is FedAvg"

    def newcomer(self, trainer: Trainer, others: Others, epochs: int) -> Newcomer:
        """The model that fits the newcomer's training data best."""
        return best_cluster(trainer, others)


def permuted(problem: Problem, names: Sequence[str], number: int) -> Model:
    """The initial model with the entries of the named parameters permuted, differently for every number."""
    fresh: dict[str, Tensor] = dict(problem.initial)
    for place, name in enumerate(names):
        value = fresh[name]
        key = keys.key(problem.seed, "ifca", number, place).reshape(1)
        order = keys.permutations(key, torch.tensor([value.numel()]))[0].to(value.device)
        fresh[name] = value.flatten()[order].reshape(value.shape)
    return Model(fresh)
