"""Memory: how many clients fit, and how to keep the CPU's pages from being fetched again and again."""

import ctypes
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from feddwa.engine import keys
from feddwa.engine.network import FunctionalClient, SGDStep
from feddwa.engine.rows import Row

if TYPE_CHECKING:
    from feddwa.engine.trainer import Engine

MODELS_PER_CLIENT = 6  # stacks that an algorithm may hold at once: download, work, local, guidance, upload, server


@functools.cache
def keep_freed_pages() -> None:
    """Ask glibc to serve large blocks from the heap and to keep them when freed; elsewhere do nothing.

    By default every large tensor is mapped, faulted in page by page and unmapped again at each step, which costs more
    than the arithmetic on it. (The package asks torch for huge pages, too, when it is imported: `feddwa/__init__.py`.)
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_mmap_max, m_trim_threshold = -4, -1
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


class _Allocations(TorchDispatchMode):
    """Adds up the bytes of every tensor that an operation returns: an upper bound of what a step holds at once."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.total += value.numel() * value.element_size()
        return result


def rows_that_fit(engine: "Engine", parameters: Row, buffers: Row) -> int:
    """How many clients can be trained at once in this federation's share of half of the memory that is free now."""
    step, index = SGDStep(engine.settings.lr), engine.data.splits["train"].index[0, :1]
    batch = engine.data.batch(index.expand(engine.settings.batch_size), engine.dtype)
    engine.module.train()
    with _Allocations() as allocations:
        step(FunctionalClient(engine.module, engine.loss, buffers, keys.key(0, "memory")), {"model": parameters}, batch)
    model = sum(value.numel() * value.element_size() for value in parameters.values())
    per_client = (allocations.total + MODELS_PER_CLIENT * model) * engine.lockstep
    return int(max(1, 0.5 * _free_bytes(engine.data.device) // per_client))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not a POSIX system
        return 4 << 30
