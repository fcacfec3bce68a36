"""The number of clients that can be trained at once in the free memory."""

import os
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from feddwa.engine import keys
from feddwa.engine.engine import Engine
from feddwa.engine.network import FunctionalClient, Step
from feddwa.engine.numbers import template
from feddwa.engine.private import PrivateStep
from feddwa.engine.rows import row_of_parts, tensors
from feddwa.engine.steps import SGDStep, named
from feddwa.engine.types import Parts, StepState

MODELS_PER_CLIENT = 6  # stacks an algorithm may hold at once: download, work, local, guidance, upload, server


class _Allocations(TorchDispatchMode):
    """Sum the bytes of every tensor that an operation returns: an upper bound on the memory of a step."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.total += value.numel() * value.element_size()
        return result


def rows_that_fit(engine: Engine) -> int:
    """Number of clients that fit in this federation's and process's share of half of the free memory."""
    settings = engine.settings
    kind = settings.batch_size, template(settings.optimizer), settings.private is not None
    return engine.shared(0, ("rows that fit", *kind), lambda: _measured(engine))


def _measured(engine: Engine) -> int:
    """The same, from a step of one client."""
    settings, index, (parameters, buffers) = engine.settings, engine.data.splits["train"].index[0, :1], engine.initial()
    step: Step = SGDStep(settings.lr, optimizer=settings.optimizer)
    constants: StepState = {}
    if settings.private is not None:
        step = PrivateStep(step, settings.private.clip)
        first = torch.zeros(1, dtype=torch.int64)
        constants = row_of_parts(settings.private.constants(first, torch.ones(1), engine.data.device), 0)
    state = {"model": parameters, **named("model", settings.optimizer.init(parameters))}
    batch = engine.data.batch(index.expand(settings.batch_size), engine.dtype)
    engine.module.train()
    with _Allocations() as allocations:
        step(FunctionalClient(engine.module, engine.loss, buffers, keys.key(0, "memory")), state, batch, **constants)
    model, whole = (_size(parts) for parts in ({"model": parameters}, state))
    states = 2 * (whole - model)  # the optimiser's, before and after
    per_client = (allocations.total + MODELS_PER_CLIENT * model + states) * engine.lockstep
    device, ranks = engine.data.device, engine.ranks
    sharing = 1 if ranks is None else ranks.sharing(device)
    return int(max(1, 0.5 * free_bytes(device) // (per_client * sharing)))


def _size(parts: Parts) -> int:
    return sum(value.numel() * value.element_size() for _, value in tensors(parts))


def free_bytes(device: torch.device) -> int:
    """Free bytes of a device's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not a POSIX system
        return 4 << 30
