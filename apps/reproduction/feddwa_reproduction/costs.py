"""What the methods cost, counted on a small federation with the paper's networks: no data are needed, only shapes."""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddwa import models
from feddwa.algorithms import ALGORITHMS
from feddwa.data.catalogue import DATASETS
from feddwa.data.dataset import Dataset
from feddwa.data.federated import FederatedData, federate
from feddwa.data.partition import Partition
from feddwa.engine import Engine, Model, Parts, Settings, keys
from feddwa.engine.engine import Schedule
from feddwa.engine.network import FunctionalClient, Step
from feddwa.engine.rows import row_of_parts
from feddwa.federation import Federation
from feddwa.ledger import Costs
from feddwa.mixing import inverse_weights
from feddwa.sides import network_of

PAPER_CLIENTS, PAPER_SAMPLES = 20, 2_500  # CIFAR-10 among 20 clients
SAMPLES = 5  # of a client here: costs are proportional to it
NEIGHBOURS = 6  # as few clients as let FedFomo fetch five models


@dataclass(frozen=True)
class Traffic:
    """Bytes per participating client and round."""

    model: int  # one copy of the trainable parameters
    down: int
    up: int

    @property
    def models(self) -> float:
        """Up and down, in model sizes."""
        return (self.down + self.up) / self.model

    @property
    def mib(self) -> float:
        """Up and down, in MiB."""
        return (self.down + self.up) / 2**20


@dataclass(frozen=True)
class Work:
    """FLOPs of a round."""

    passes: float  # forward passes over a client's training data
    paper: float  # the paper's convention: their multiply-adds, over all clients, without backward passes
    client: float  # FLOPs of one client's local training, forward and backward, two per multiply-add
    server: float  # the paper's convention, again: multiply-adds of the server's step


@functools.cache
def communication(dataset: str, method: str) -> Traffic:
    """What crosses in the second round, when every method has something to say, counted from the messages."""
    clients = (
        PAPER_CLIENTS if isinstance(ALGORITHMS[method].models_down, str) else NEIGHBOURS
    )  # elsewhere their number is no matter
    engine = _engine(MessageEngine, dataset, method, clients, samples=2)
    size = sum(value.numel() * value.element_size() for value in engine.module.parameters())
    costs = _second_round(method, engine)
    return Traffic(size, costs.bytes_down, costs.bytes_up)


@functools.cache
def flops(dataset: str, method: str) -> Work:
    """What a round computes, counted by the ledger: once in images that pass through the network, once in FLOPs."""
    counted, real = (_engine(kind, dataset, method, NEIGHBOURS, SAMPLES) for kind in (ImageEngine, IdleEngine))
    passes = float(_second_round(method, counted).flops.mean()) / SAMPLES
    client = float(_second_round(method, real).flops.mean()) * PAPER_SAMPLES / SAMPLES
    one_pass = real.forward_flops(*real.initial()) / 2 * PAPER_CLIENTS * PAPER_SAMPLES
    everybody = _engine(MessageEngine, dataset, method, PAPER_CLIENTS, samples=2)
    return Work(passes, passes * one_pass, client, _second_round(method, everybody).server_flops / 2)


class IdleEngine(Engine):
    """An engine that only counts: models move a little, so that no two are the same, and nothing is trained."""

    def advance(self, work: Parts, constants: Parts, schedule: Schedule) -> Parts:
        """See Engine."""
        moved = 1e-3 * torch.arange(1, schedule.rows + 1)
        return {
            part: rows if part == "buffers" else {name: _shifted(value, moved) for name, value in rows.items()}
            for part, rows in work.items()
        }


def _shifted(value: Tensor, moved: Tensor) -> Tensor:
    return value + moved.to(value.dtype).reshape(-1, *[1] * (value.ndim - 1))


class MessageEngine(IdleEngine):
    """One for whom work is nothing, so that messages alone are counted."""

    def step_flops(self, step: Step, state: Parts, constants: Parts, samples: int) -> int:
        """None."""
        return 0

    def forward_flops(self, model: Model, buffers: Model) -> int:
        """None."""
        return 0


class ImageEngine(IdleEngine):
    """An engine whose unit of work is an image on its way forward, so that the ledger counts those."""

    def step_flops(self, step: Step, state: Parts, constants: Parts, samples: int) -> int:
        """Images that pass through the network in one client's step."""
        seen: list[int] = []
        batch = self.data.batch(self.data.splits["train"].index[0, :1].expand(samples), self.dtype)
        parts = row_of_parts(state, 0)
        client = FunctionalClient(self.module.train(), self.loss, parts.pop("buffers"), keys.key(0, "flops"))
        hook = self.module.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
        step(client, parts, batch, **row_of_parts(constants, 0))
        hook.remove()
        return sum(seen)

    def forward_flops(self, model: Model, buffers: Model) -> int:
        """One."""
        return 1


def _second_round(method: str, engine: Engine) -> Costs:
    federation = Federation(ALGORITHMS[method](), engine, chunk=engine.data.clients)  # there is room for so few
    federation.step()
    return federation.step().costs


def _engine(kind: type[Engine], dataset: str, method: str, clients: int, samples: int) -> Engine:
    info = DATASETS[dataset]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = models.make(info.defaults.model, info.shape, info.classes)
    module = network_of(ALGORITHMS[method](), module, seed=0)
    data = _blank_data(info.shape, info.classes, clients, samples)
    data = ALGORITHMS[method].split(data, np.random.default_rng(0))
    return kind(module, data, Settings())


def _blank_data(shape: tuple[int, ...], classes: int, clients: int, samples: int) -> FederatedData:
    """Grey noise: costs do not depend on what is in the pictures."""
    rng, rows = np.random.default_rng(0), clients * (samples + 1)
    images = rng.integers(0, 256, (rows, *shape), dtype=np.uint8)
    owned = np.arange(rows).reshape(clients, samples + 1)
    division = Partition(list(owned[:, :-1]), list(owned[:, -1:]))
    dataset = Dataset("blank", images, np.arange(rows) % classes, rows - clients, classes)
    return federate(dataset, division, torch.device("cpu"))


@dataclass(frozen=True)
class Toy:
    """W_i of the paper's toy example, and what minimises p' W p over the simplex."""

    matrix: np.ndarray  # (n, n)
    candidates: list[tuple[np.ndarray, float]]  # weights p and their value p' W p
    simplified: np.ndarray  # the one minimiser of sum_j p_j^2 W_jj

    @property
    def value(self) -> float:
        """p' W p of the simplified weights."""
        return float(self.simplified @ self.matrix @ self.simplified)


def toy(entries: tuple[float, ...] = (0.0, 0.0, 1.0)) -> Toy:
    """diag(0, 0, 1): every p that leaves out the third client attains 0; FedDWA's rule names one of them."""
    matrix = np.diag(entries)
    free = [np.array(p) for p in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.5, 0.5, 0.0), (0.2, 0.8, 0.0), (0.0, 0.0, 1.0))]
    rule = inverse_weights(torch.tensor([entries], dtype=torch.float64), len(entries))[0].numpy()
    return Toy(matrix, [(p, float(p @ matrix @ p)) for p in free], rule)
