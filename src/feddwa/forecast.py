"""Forecast of a run's resources from its first rounds: device and host memory, disk, and seconds.

The first rounds are measured. Later needs are computed from shapes: rows that no round has changed yet, the copy for a
checkpoint, and the final models.
"""

import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from feddwa import checkpoint
from feddwa.config import RunConfig
from feddwa.engine.places import MARKS
from feddwa.federation import Federation
from feddwa.results.units import human_seconds
from feddwa.row_location import GIB, disk_bytes, host_bytes

LINE = 40  # bytes per client in the files of a round's scores


@dataclass(frozen=True)
class Forecast:
    """Peak bytes during the run, and seconds of all rounds."""

    device: int  # 0 on a CPU, where all memory is host memory
    host: int
    disk: int
    seconds: float

    def in_words(self) -> str:
        """One line for people."""
        memory = f"{_size(self.device)} on the device, " if self.device else ""
        time = human_seconds(self.seconds)
        return f"all rounds: {memory}{_size(self.host)} of host memory, {_size(self.disk)} of disk, {time}"

    def lacking(self, config: RunConfig, device: torch.device) -> Iterator[str]:
        """Insufficient resources, each with options that reduce the need."""
        if self.device and self.device > torch.cuda.get_device_properties(device).total_memory:
            yield f"device memory: {_size(self.device)}; take --state host, or a smaller --chunk"
        host, disk = host_bytes() + most_resident(), disk_bytes(config.out)
        if self.host > host:
            yield f"host memory: {_size(self.host)}, there are {_size(host)}; take --state disk, or a smaller --chunk"
        if self.disk > disk:
            less = "--checkpoint-every 0, --no-save-models"
            yield f"disk: {_size(self.disk)}, there are {_size(disk)}; take {less}, or another folder as --out"


def most_resident() -> int:
    """Peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forecast(config: RunConfig, federation: Federation, seconds: float) -> Forecast:
    """The resources of a whole run. federation: after some rounds; seconds: time of one round."""
    n, m, rounds = federation.clients, federation.cohort_size, config.rounds or 0
    device, where = federation.engine.data.device, federation.placement
    row = sum(store.width for store in where.stores.values())  # bytes per client in the stores
    tried, changed = (row * n * (1 - (1 - m / n) ** count) for count in (federation.round, rounds))
    checkpoints, models = bool(config.checkpoint_every), _model_bytes(federation)
    tree = checkpoint.size(federation.state()) * checkpoints
    copies = max(tree, 0 if where.stores else models * (1 + config.save_models))
    later = (changed - tried) * (where.kind == "host")
    kept = (changed + MARKS * row * m) * (checkpoints or where.kind == "disk") + checkpoint.KEPT * tree
    files = 2 * 4 * m * m * rounds + LINE * n * (1 + rounds // config.eval_every)
    gpu = device.type == "cuda"
    return Forecast(
        torch.cuda.max_memory_allocated(device) + (0 if where.stores else models) if gpu else 0,
        int(most_resident() + later + copies),
        int(kept + max(tree, models * config.save_models) + files),
        seconds * rounds,
    )


def _model_bytes(federation: Federation) -> int:
    """Bytes of the final models; a global model is counted once."""
    n = federation.clients
    parts = federation.personal(federation.all_clients().only(torch.arange(min(2, n))))
    stacks = (value for stack in parts for value in stack.values())
    return sum(value[0].numel() * value.element_size() * (n if value.stride(0) else 1) for value in stacks)


def _size(count: float) -> str:
    return f"{count / GIB:.2g} GiB"
