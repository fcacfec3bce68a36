"""Choose where the rows of all clients are stored, by the free memory and disk: `--state auto`."""

import logging
import os
import shutil
import tempfile
from pathlib import Path

import torch

from feddwa.engine.memory import free_bytes
from feddwa.engine.places import MARKS
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.state import MEMORY, SERVER, Placement, row_bytes

log = logging.getLogger(__name__)

GIB = 1 << 30
COPIES = 2  # copies of the rows on the device: a round makes new ones
ON_DEVICE, ON_HOST = 0.25, 0.5  # shares of free memory that auto allows for rows; training needs the rest


def host_bytes() -> int:
    """Available bytes of host memory, including the system's caches."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return free_bytes(torch.device("cpu"))


def disk_bytes(folder: str | None) -> int:
    """Free bytes on the disk of a folder, which need not exist yet; None: of the temporary folder."""
    path = Path(folder or tempfile.gettempdir()).absolute()
    there = next(each for each in (path, *path.parents) if os.path.exists(each))
    return shutil.disk_usage(there).free


def place_rows(federation: Federation, state: str, folder: str | None) -> Federation:
    """A federation before its first round with the rows of all clients moved to their storage; folder: of the run."""
    sides, engine = {SERVER: federation.server, MEMORY: federation.memory}, federation.engine
    one = row_bytes(sides, federation.clients) * engine.lockstep
    needed, spare = one * federation.clients, one * MARKS * federation.cohort_size  # spare: of earlier rounds
    federation.place(Placement(choose_location(state, needed, engine.data.device, folder, needed + spare)))
    return federation


def choose_location(state: str, needed: int, device: torch.device, folder: str | None, on_disk: int) -> str:
    """ "device", "host" or "disk" for rows of `needed` bytes; raises InputError if a requested location is too small.

    state: as given; folder: of the files, None for temporary ones; on_disk: bytes of the files with rows.
    """
    memory = host_bytes() if device.type == "cpu" else free_bytes(device)
    rooms = {"device": memory / COPIES, "host": host_bytes(), "disk": disk_bytes(folder) * needed / max(1, on_disk)}
    if state != "auto":
        fitting = [each for each in rooms if each != state and needed <= rooms[each]]
        if needed > rooms[state]:
            advice = f"take --state {fitting[0]}" if fitting else "take fewer --clients or a smaller --model"
            raise InputError(f"--state {state}: {_told(needed, rooms[state])}; {advice}")
        return state
    shares = {"device": COPIES * ON_DEVICE, "host": ON_HOST, "disk": 1.0}
    for kind, share in shares.items():
        if needed <= share * rooms[kind]:
            if kind != "device":
                log.warning("--state auto: %s, because %s", kind, _told(needed, rooms["device"]))
            return kind
    raise InputError(f"--clients: {_told(needed, rooms['disk'])} on disk; take fewer, or a smaller --model")


def _told(needed: int, room: float) -> str:
    return f"all clients' models and memories take {needed / GIB:.2g} GiB, and there is room for {room / GIB:.2g} GiB"
