"""FedCP: a gate divides every feature between a personal head and a generic one (Zhang et al., KDD 2023).

    z = phi_i(x) features;   c = v / ||v||, v the sum of the rows of W_i at the start of the round
    gate(u) = relu(LayerNorm(linear(u))), two numbers for each of F features;   (r, 1 - r) their Gumbel softmax
    outputs = W_i (r z) + b_i + W_g ((1 - r) z) + b_g      u = c z
    client  CE(outputs, y) + lambda MMD^2(z, phi(x));   moves phi_i, the gate and (W_i, b_i)
    server  phi, the gate and (W_g, b_g) = means by size of phi_k, the gates and ((W_k, b_k) + (W_g, b_g)) / 2

Crosses the network: the body phi, the gate (2 F^2 + 6 F numbers) and the generic head, down and up. The personal head
stays, but the server, which knows W_g, can infer it from that mean. Both current heads are evaluated, with c of the
personal one and r without noise.

Where the paper, its code and others differ: MMD^2 has the kernel sum of exp(-D / 2s) over s = 10, 15, 20 and 50. These
widths are absolute: the gradient vanishes for features much further apart than sqrt(50), and at phi_i = phi, so that
without dropout lambda has no effect on the first step of a round. The code also draws noise in evaluation. Its first v
is random, the same for all clients; ours is that of the initial head. It sends gate and generic head only to the
clients that have just trained; ours sends every client the current ones. lambda is 5 in the released command, 0 in the
code and 1 in a library. phi(x) is a pass in training mode whose BatchNorm statistics are dropped. Both heads start as
the initial one.
"""

import copy
import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from feddwa.algorithms.base import Problem
from feddwa.algorithms.mmd import squared_distances, squared_mmd
from feddwa.algorithms.partial import PartlyShared
from feddwa.data.federated import Batch
from feddwa.engine import Memory, Message, Model, ServerState, Stack, Trainer
from feddwa.engine.network import ADDED, Net, outputs_and_features, with_added
from feddwa.engine.numbers import Number, present, times
from feddwa.engine.rows import only
from feddwa.errors import require
from feddwa.params import Tunable

GENERIC, CONTEXT = f"{ADDED}.generic", f"{ADDED}.context"  # parts of the names of (W_g, b_g) and c
WIDTHS = [20.0, 30.0, 40.0, 100.0]  # of the kernel: 2 s


class Splitter(nn.Module):
    """The gate, the generic head and c; training leaves the latter two fixed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        width = linear.in_features
        self.context = nn.Parameter(context_of(linear.weight.detach()))
        self.generic = copy.deepcopy(linear)
        self.gate = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())

    def outputs(self, z: Tensor, linear: nn.Linear) -> Tensor:
        """Outputs of both heads: (B, F) -> (B, C)."""
        pairs = self.gate(z * self.context).unflatten(1, (2, -1))  # (B, 2, F)
        own, generic = (F.gumbel_softmax(pairs, dim=1) if self.training else pairs.softmax(1)).unbind(1)
        scores: Tensor = linear(own * z) + self.generic(generic * z)
        return scores


def context_of(weight: Tensor) -> Tensor:
    """c (..., F) from a head's weight (..., C, F)."""
    return F.normalize(weight.sum(-2), dim=-1)


@dataclass(frozen=True)
class Separated:
    """The task's loss plus the discrepancy between the features and those of the downloaded body phi."""

    lam: Number

    def __call__(self, net: Net, params: Model, batch: Batch, received: Model) -> Tensor:
        """CE + lambda MMD^2 on a batch."""
        outputs, z = outputs_and_features(net, params, batch.x)
        loss = net.loss_function(outputs, batch.y)
        if present(self.lam):
            known = outputs_and_features(net.aside(), Model({**params, **received}), batch.x)[1].detach()
            loss = loss + times(self.lam, squared_mmd(squared_distances(z, known), WIDTHS))
        return loss


@dataclass(frozen=True)
class FedCP(PartlyShared):
    """FedCP with the lambda of the released command."""

    title = "FedCP"
    summary = "a gate divides each sample's features between a personal and a generic head"
    kind, year = "shared-body", 2023
    models_down = models_up = "1 + added"
    added_numbers = "(2 * features + 6) * features"
    teacher_passes = 1
    other_ops = "samples * (3 * classes + 8 * features) * features"
    models_kept, numbers_kept = "1 - body", "features"
    server_ops = "m * (1 + added)"
    discloses, evaluated = "its trained model and gate", "the shared part plus its own head"

    lam: Annotated[float, Tunable(0.1, 10, log=True)] = 5.0
    """lambda: strength of the pull of features towards those of the downloaded body."""

    def __post_init__(self) -> None:
        require(0 <= self.lam < math.inf, "--param lam", self.lam, "a finite number, 0 or more")

    def network(self, module: nn.Module) -> nn.Module:
        """The network with gate and generic head."""
        return with_added(module, "fedcp", Splitter)

    def own(self, problem: Problem) -> tuple[str, ...]:
        """The personal head and its c."""
        problem.head_weight("fedcp")
        return *problem.head, *(name for name in problem.initial if name.endswith(CONTEXT))

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """The server has the shared part; each client has its head and c, in the run's precision."""
        server, memory = super().setup(problem)
        return server, {**memory, "own": with_context(memory["own"])}

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """E epochs of body, gate and personal head."""
        start = {**download["model"], **memory["own"]}
        fixed = {name: value for name, value in start.items() if GENERIC in name or name.endswith(CONTEXT)}
        moving = {name: value for name, value in start.items() if name not in fixed}
        received = {name: value for name, value in moving.items() if ADDED not in name and name not in memory["own"]}
        model, memory = trainer.sgd(moving, memory, objective=Separated(self.lam), fixed=fixed, received=received)
        halves = {n: (fixed[n] + model[n.replace(GENERIC, "linear")]) / 2 for n in fixed if GENERIC in n}
        own = with_context(only({**model, **fixed}, memory["own"]))
        return {"model": self.shared({**model, **halves}, memory)}, {**memory, "own": own}

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """The trained model, with the round's generic head recovered from the mean of both heads."""
        sent, own = upload["model"], memory["own"]
        generic = {n: 2 * sent[n] - own[n.replace(GENERIC, "linear")] for n in sent if GENERIC in n}
        return {**sent, **own, **generic}


def with_context(own: Stack) -> Stack:
    """A personal head with c computed from its current weight."""
    found = {n: context_of(own[n.replace(CONTEXT, "linear.weight")]) for n in own if n.endswith(CONTEXT)}
    return {**own, **found}
