"""What is sent to the server: which of it is accepted, and what it began from.

Every update is checked before the server computes with it, so that a diverged or broken client cannot change another
client's model. Simulator and Flower use the same checks. A client whose update is refused keeps the state that it had
before the round.
"""

import functools
from collections.abc import Collection

import torch
from torch import Tensor

from feddwa.engine import Message, Stack
from feddwa.engine.fast.joint import jointly
from feddwa.engine.rows import tensors

Signature = dict[str, tuple[tuple[int, ...], torch.dtype]]  # "part/name" -> (shape without the client axis, dtype)

# Reasons why an update is not used; they stand in `missing` of metrics.jsonl.
ABSENT, OFFLINE, LATE, INVALID, DIVERGED = "dropout", "offline", "late", "invalid", "not finite"
LIMIT = 1e12  # larger values count as not finite: squared distances of such models overflow float32


def signature(message: Message) -> Signature:
    """Signature of one client's message; `message` is a stack of m of them, part -> name -> (m, *shape)."""
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in tensors(message)}


def mismatch(expected: Signature, found: Signature) -> str | None:
    """The first difference between two signatures, as a phrase for an error; None where they are equal."""
    if found is expected:
        return None
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return f"{wrong[0]!r} missing, unasked for, or of another shape or type"[:200] if wrong else None


def origin(part: str, rows: Stack, download: Message, differences: Collection[str]) -> Stack:
    """Where the values of a part of the uploads (m, *shape) began: those of the download, as far as it has them.

    They are in the part of the same name, else in "model", under the same name and in the same shape (the length of a
    tensor may have the name of that tensor). differences: parts that are no models but differences of some.
    """
    known = {} if part in differences else download.get(part, download.get("model", {}))
    return {name: known[name] for name, value in rows.items() if name in known and known[name].shape == value.shape}


def finite(message: Message, clients: int) -> Tensor:
    """(m,) bool, on the CPU: whether all floating-point values of a client's message are finite and within LIMIT.

    message: part -> name -> (m, *shape), m = `clients`. Each tensor is read once.
    """
    real = [value for _, value in tensors(message) if value.is_floating_point() and value.shape[1:].numel()]
    return _finite([value.reshape(clients, -1) for value in real]) if real else torch.ones(clients, dtype=torch.bool)


@jointly
def _finite(values: list[Tensor]) -> Tensor:
    """The same of tensors (..., m, d): (..., m)."""
    fine: dict[torch.device, Tensor] = {}  # one result per device, copied once: every copy waits for the device
    for value in values:
        largest = torch.linalg.vector_norm(value, torch.inf, dim=-1)  # (..., m), NaN if a value is NaN
        within = largest <= LIMIT
        fine[value.device] = within & fine[value.device] if value.device in fine else within
    return functools.reduce(torch.logical_and, [own.cpu() for own in fine.values()])
