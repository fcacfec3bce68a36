"""Updates sent to the server: their validation and their starting points.

Every update is checked before the server uses it, so that a diverged or broken client cannot change another client's
model. Simulator and Flower share the checks. A client whose update is refused keeps its state from before the round.
"""

import functools
from collections.abc import Collection

import torch
from torch import Tensor

from feddwa.engine import Message, Stack
from feddwa.engine.fast.joint import jointly
from feddwa.engine.rows import tensors

Signature = dict[str, tuple[tuple[int, ...], torch.dtype]]  # "part/name" -> (shape without the client axis, dtype)

# Reasons why an update is not used; recorded in `missing` of metrics.jsonl.
ABSENT, OFFLINE, LATE, INVALID, DIVERGED = "dropout", "offline", "late", "invalid", "not finite"
OVERSIZED = "out of proportion"  # compared with the others' updates
LIMIT = 1e12  # larger values count as not finite: squared distances of such models overflow float32
PROPORTION = 100.0  # multiple of the cohort's median update norm; honest clients in small cohorts reach 14
STATISTICS = 1e3  # the same for other numbers, such as counts, which depend on data size


def signature(message: Message) -> Signature:
    """Signature of one client's message; `message` is a stack of m of them, part -> name -> (m, *shape)."""
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in tensors(message)}


def mismatch(expected: Signature, found: Signature) -> str | None:
    """The first difference between two signatures, as a phrase for an error; None if they are equal."""
    if found is expected:
        return None
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return f"{wrong[0]!r} missing, unasked for, or of another shape or type"[:200] if wrong else None


def origin(part: str, rows: Stack, download: Message, differences: Collection[str]) -> Stack:
    """The starting values of a part of the uploads (m, *shape): those of the download, if it has them.

    They are in the part of the same name, else in "model", under the same name and in the same shape (the length of a
    tensor may have the name of that tensor). differences: parts that are differences of models.
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


def oversized(upload: Message, download: Message, differences: Collection[str], clients: int) -> Tensor:
    """(m,) bool, on the CPU: whether a client's update is out of proportion to those of the others.

    It is if a part's norm exceeds both PROPORTION times the cohort's median (of two in the middle the smaller one) and
    the norm of the received model; for numbers that are not model updates, STATISTICS times the median plus 1. Finite
    but huge values therefore change no other model while fewer than half of the cohort send them, and merely long
    updates are accepted. upload, download: (m, ...), finite, m = `clients`; differences: parts that are differences of
    models.
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
    """Norm (m,) in float64 of the update from `began`; tensors without a starting value count as 0."""
    real = {name: value for name, value in rows.items() if value.is_floating_point()}
    added = [value - began[name] if name in began else value for name, value in real.items()]
    return _norms([value.reshape(len(value), -1) for value in added]) if added else torch.zeros(1, dtype=torch.float64)


@jointly
def _norms(values: list[Tensor]) -> Tensor:
    """The Euclidean norm over all tensors (..., m, d): (..., m) in float64, on the CPU."""
    squares = [torch.linalg.vector_norm(value, dim=-1, dtype=torch.float64).square().cpu() for value in values]
    return torch.stack(squares).sum(0).sqrt()
