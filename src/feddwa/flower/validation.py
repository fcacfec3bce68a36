"""Validation of replies: every field of a message is validated against its bytes before the server uses it.

The server runs one client on blank samples, and the signature of its upload (parts, names, shapes, dtypes) is the one
that every client's upload must have. Then numbers must be finite. A reply with another signature is refused as a whole;
a client whose numbers are not finite is refused alone. Neither can change another client's model.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from feddwa.build import make_engine
from feddwa.data.dataset import Dataset
from feddwa.data.partition import Partition
from feddwa.data.task import Task
from feddwa.engine import Engine, Memory, Message, Model, Scores
from feddwa.engine.rows import take_parts, tensors
from feddwa.flower import codec, layout
from feddwa.flower.codec import Malformed
from feddwa.flower.samples import Samples
from feddwa.flower.settings import FlowerConfig
from feddwa.sides import ClientSide
from feddwa.updates import Signature, finite, mismatch, signature

SAMPLES = 5  # blank training samples: one may be held out for validation, and BatchNorm needs at least two of the rest


class Reply(NamedTuple):
    """A valid reply of one node; rows are in the order of the request."""

    before: Scores  # (k,) of the clients that were evaluated
    after: Scores  # (m,) of the clients that trained
    flops: Tensor  # (m,)
    upload: Message  # (m, ...)
    finite: Tensor  # (m,) bool: whether a client's upload is finite
    remembered: int  # round after which the node's memory was saved


@dataclass
class ShapeProbe:
    """One client with blank samples, run by the server to learn the network's tensors and the signature of uploads."""

    client_side: ClientSide
    dataset: Dataset  # the blank samples
    initial: Model  # the initial model
    buffers: Model  # its BatchNorm statistics
    signatures: dict[object, Signature] = field(default_factory=dict)  # shapes of download and memory -> upload's

    @classmethod
    def of(cls, config: FlowerConfig, samples: Samples) -> "ShapeProbe":
        """The probe of a run on such samples; labels are 0 to classes - 1."""
        x, y = samples.inputs.blank(SAMPLES + 1), layout.blank(samples.targets, SAMPLES + 1)
        rows = np.arange(SAMPLES + 1)
        dataset = Dataset(config.dataset, x, y, SAMPLES, samples.classes)
        # Held-out samples are no part of an upload, and five samples may be less than a batch.
        plain = replace(config, validation=0.0, early_stop=None, drop_last=False)
        engine: Engine = make_engine(plain, Task(dataset, Partition([rows[:-1]], [rows[-1:]])))
        side = ClientSide.of(config.make_algorithm(), engine, config.batchnorm, chunk=1)
        return cls(side, dataset, *engine.initial())

    def upload_signature(self, download: Message, memory: Memory, round: int) -> Signature:
        """Signature that every client's upload must have in this round.

        download, memory: (m, ...), of which the first row is used; which client that is makes no difference.
        """
        known = tuple((name, value.shape[1:]) for state in (download, memory) for name, value in tensors(state))
        if known not in self.signatures:
            first = torch.zeros(1, dtype=torch.int64)
            upload, _, _ = self.client_side.train(first, round, take_parts(download, first), take_parts(memory, first))
            self.signatures[known] = signature(upload)
        return self.signatures[known]


@dataclass(frozen=True)
class Expected:
    """What a reply is validated against."""

    signature: Signature  # of an upload
    device: torch.device  # to which uploads are copied
    scores: tuple[str, ...]  # names of the scores of a model


def validate_reply(content: RecordDict, expected: Expected, tested: int, trains: int, nonce: str) -> Reply:
    """Parse a reply for `tested` evaluated and `trains` trained clients; raises Malformed where a field is invalid.

    nonce: that of the message which it must answer; those of other nodes, rounds and runs have others.
    """
    expected_signature = expected.signature if trains else {}
    state = codec.settings(content, "state")
    if codec.setting(state, "nonce", str) != nonce:
        raise Malformed("state: a reply to another message, or one sent again")
    numbers = codec.settings(content, "scores")
    before, after = (
        Scores.of({name: codec.reals(numbers, f"{when}.{name}", count) for name in expected.scores})
        for when, count in (("before", tested), ("after", trains))
    )
    flops = codec.reals(numbers, "flops", trains)
    if not bool((flops.isfinite() & (flops >= 0)).all()):
        raise Malformed("scores: flops out of range")
    held_out = (scores.validation for scores in (before, after) if scores.validation is not None)
    for accuracy in (scores.accuracy for scores in (before, after, *held_out)):
        if not bool(((accuracy >= 0) & (accuracy <= 1) | accuracy.isnan()).all()):
            raise Malformed("scores: accuracy out of range")
    upload = codec.unpack("upload", content, trains, expected.device) if trains else {}
    wrong = mismatch(expected_signature, signature(upload))
    if wrong:
        raise Malformed(f"upload: {wrong}")
    ordered: dict[str, dict[str, Tensor]] = {}  # as in the signature: the sender's order must not change the result
    for key in expected_signature:
        part, _, name = key.partition("/")
        ordered.setdefault(part, {})[name] = upload[part][name]
    remembered = codec.setting(state, "remembered", int)
    return Reply(before, after, flops, ordered, finite(upload, trains), remembered)
