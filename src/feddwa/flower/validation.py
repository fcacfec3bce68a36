"""What an honest reply looks like, and what becomes of any other.

The server plays one client on blank samples: the upload of that is the form that every client's upload must have, part
by part, name by name, shape and type. Then numbers must be finite. A reply that is wrong in form is dropped whole, a
client whose numbers are not finite is dropped alone, so that nothing of either reaches another client.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from feddwa.batchnorm import BatchNormPolicy
from feddwa.build import make_engine
from feddwa.data.dataset import Dataset
from feddwa.data.partition import Partition
from feddwa.data.task import Task
from feddwa.engine import Engine, Row, Scores, State
from feddwa.engine.network import head_parameters
from feddwa.engine.rows import take_state, tensors
from feddwa.flower import codec
from feddwa.flower.codec import Malformed
from feddwa.flower.settings import FlowerConfig
from feddwa.sides import ClientSide
from feddwa.updates import Signature, finite, mismatch, signature

SAMPLES = 5  # blank ones to train with: enough to hold one out and to have more than one left, which BatchNorm wants


class Reply(NamedTuple):
    """What a node said, with rows in the order in which they were asked for."""

    before: Scores  # (k,) of all clients tested
    after: Scores  # (m,) of those that trained
    flops: Tensor  # (m,)
    upload: State  # (m, ...)
    finite: Tensor  # (m,) whether all numbers of a client's upload are
    remembered: int


@dataclass
class ShapeProbe:
    """A client with blank samples, by which the server knows the network and the form of uploads."""

    client_side: ClientSide
    initial: Row
    buffers: Row
    head: tuple[str, ...]
    signatures: dict[object, Signature] = field(default_factory=dict)

    @classmethod
    def of(cls, config: FlowerConfig, shape: tuple[int, ...], classes: int) -> "ShapeProbe":
        """The network of a configuration for samples of a shape, and one client."""
        x, y = np.zeros((SAMPLES + 1, *shape), dtype=np.float32), np.zeros(SAMPLES + 1, dtype=np.int64)
        rows = np.arange(SAMPLES + 1)
        task = Task(Dataset(config.dataset, x, y, SAMPLES, classes), Partition([rows[:-1]], [rows[-1:]]))
        engine: Engine = make_engine(config, task)
        algorithm = config.make_algorithm()
        client_side = ClientSide(
            algorithm, BatchNormPolicy.of(config.batchnorm, engine.module, algorithm.updates), engine, 1
        )
        return cls(client_side, *engine.initial(), head_parameters(engine.module))

    def upload_signature(self, download: State, memory: State, round: int) -> Signature:
        """The form of a client's upload; `download` and `memory` are those of any one client."""
        known = tuple((name, value.shape[1:]) for state in (download, memory) for name, value in tensors(state))
        if known not in self.signatures:
            first = torch.zeros(1, dtype=torch.int64)
            upload, _, _ = self.client_side.train(first, round, take_state(download, first), take_state(memory, first))
            self.signatures[known] = signature(upload)
        return self.signatures[known]


@dataclass(frozen=True)
class Expected:
    """What replies are held against."""

    signature: Signature
    limit: float  # bytes
    device: torch.device


def validate_reply(content: RecordDict, expected: Expected, tested: int, trains: int) -> Reply:
    """A node's reply, or Malformed."""
    expected_signature = expected.signature if trains else {}
    if codec.size(content) > expected.limit:
        raise Malformed(f"{codec.size(content):,} bytes, the limit is {expected.limit:,.0f}")
    numbers = {name: codec.to_tensor(array) for name, array in codec.arrays(content, "scores").items()}
    before = Scores(_score(numbers, "before.accuracy", tested), _score(numbers, "before.loss", tested))
    after = Scores(_score(numbers, "after.accuracy", trains), _score(numbers, "after.loss", trains))
    flops = _score(numbers, "flops", trains)
    if not bool((flops.isfinite() & (flops >= 0)).all()):
        raise Malformed("scores: flops out of range")
    for accuracy in (before.accuracy, after.accuracy):
        if not bool(((accuracy >= 0) & (accuracy <= 1) | accuracy.isnan()).all()):
            raise Malformed("scores: accuracy out of range")
    upload = codec.unpack("upload", content, trains, expected.device) if trains else {}
    wrong = mismatch(expected_signature, signature(upload))
    if wrong:
        raise Malformed(f"upload: {wrong}")
    ordered: State = {
        part: {name: upload[part][name] for name in names} for part, names in _parts(expected_signature).items()
    }
    remembered = codec.setting(codec.settings(content, "state"), "remembered", int)
    return Reply(before, after, flops, ordered, finite(upload, trains), remembered)


def _parts(expected: Signature) -> dict[str, list[str]]:
    """The names of every part, in order: that of the sender does not count."""
    parts: dict[str, list[str]] = {}
    for key in expected:
        part, _, name = key.partition("/")
        parts.setdefault(part, []).append(name)
    return parts


def _score(numbers: dict[str, Tensor], name: str, clients: int) -> Tensor:
    value = numbers.get(name, torch.zeros(0, dtype=torch.float64))
    if value.shape != (clients,) or value.dtype != torch.float64:
        raise Malformed(f"scores: no {name} of {clients} clients")
    return value
