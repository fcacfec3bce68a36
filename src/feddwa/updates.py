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
OUTSIZED = "out of proportion"  # to the updates of the others
LIMIT = 1e12  # larger values count as not finite: squared distances of such models overflow float32
PROPORTION = 100.0  # times the median length of a cohort's updates; honest clients of small cohorts reach 14 times
STATISTICS = 1e3  # the same of other numbers, such as counts, which depend on how much data a client has


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


def outsized(upload: Message, download: Message, differences: Collection[str], clients: int) -> Tensor:
    """(m,) bool, on the CPU: whether a client's update is out of all proportion to those of the others.

    It is if a part of it is longer than PROPORTION times the median of the cohort (of two in the middle the shorter
    one) and longer than the model that the client received; numbers that are no update of a model, if they are longer
    than STATISTICS times the median plus 1. So values that are finite and huge change nobody's model while fewer than
    half of the cohort send them, and an update that is merely long stays.
    upload, download: (m, ...), finite, m = `clients`; differences: parts that are no models but differences of some.
    """
    found = torch.zeros(clients, dtype=torch.bool)
    if not clients:
        return found
    model = _lengths(download.get("model", {}), {})
    for part, rows in upload.items():
        began = origin(part, rows, download, differences)
        length = _lengths(rows, began)
        if len(length):
            is_update = bool(began) or part in differences
            limit = PROPORTION * length.median() if is_update else STATISTICS * (1 + length.median())
            found |= length > torch.maximum(model, limit)
    return found


def _lengths(rows: Stack, began: Stack) -> Tensor:
    """Euclidean length (m,) in float64 of what has been added to `began`, where a tensor has a beginning; 0 of none."""
    real = {name: value for name, value in rows.items() if value.is_floating_point()}
    added = [value - began[name] if name in began else value for name, value in real.items()]
    return _norms([value.reshape(len(value), -1) for value in added]) if added else torch.zeros(1, dtype=torch.float64)


@jointly
def _norms(values: list[Tensor]) -> Tensor:
    """The Euclidean norm of tensors (..., m, d) side by side: (..., m) in float64, on the CPU."""
    squares = [torch.linalg.vector_norm(value, dim=-1, dtype=torch.float64).square().cpu() for value in values]
    return torch.stack(squares).sum(0).sqrt()
