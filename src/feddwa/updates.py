"""What the server takes from a client: an update of the right form whose numbers are numbers. Anything else is refused.

A diverged or broken client must not touch anybody else's model. So every update is looked at before the server computes
with it, in the simulator as in a real federation; a client that is refused stands where it stood before the round.
"""

import torch
from torch import Tensor

from feddwa.engine.rows import State, tensors

Signature = dict[str, tuple[tuple[int, ...], torch.dtype]]  # "part/name" -> shape without the client axis, type

# Reasons why an update does not count.
ABSENT, LATE, INVALID, DIVERGED = "dropout", "late", "invalid", "not finite"
LIMIT = 1e12  # beyond this a number is as good as infinite: squared distances of such models overflow float32


def signature(message: State) -> Signature:
    """The form of each client's message in a stack of them."""
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in tensors(message)}


def mismatch(expected: Signature, found: Signature) -> str | None:
    """What is wrong with a message of another form, None where it is the same."""
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return f"{wrong[0]!r} missing, unasked for, or of another shape or type"[:200] if wrong else None


def finite(message: State, clients: int) -> Tensor:
    """(m,) bool, on the CPU: whose numbers are all finite. One pass over every tensor."""
    fine: dict[torch.device, Tensor] = {}  # a device is asked once, at the end: each question waits for its answer
    for _, value in tensors(message):
        if value.is_floating_point() and value[0].numel():
            largest = torch.linalg.vector_norm(value.reshape(clients, -1), torch.inf, dim=1)  # (m,), NaN where one is
            fine[value.device] = (largest <= LIMIT) & fine.get(value.device, True)
    everywhere = torch.ones(clients, dtype=torch.bool)
    for own in fine.values():
        everywhere &= own.cpu()
    return everywhere
