"""Peak host and GPU memory of a process and its descendants, sampled while they run."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

EVERY = 0.5  # seconds


class Meter(threading.Thread):
    """Samples a process until stopped. Peaks in MiB; device: None without a GPU.

    host: the sum of the processes' proportional shares (PSS), so that pages in common count once. device: memory in use
    on the GPU beyond what was in use before.
    """

    def __init__(self, device: bool) -> None:
        super().__init__(daemon=True)
        self._smi = shutil.which("nvidia-smi") if device else None
        self._before = self._used()
        self._over = threading.Event()
        self.host, self.device = 0.0, None if self._smi is None else 0.0

    def watch(self, pid: int) -> None:
        self.pid = pid
        self.start()

    def run(self) -> None:
        while not self._over.wait(EVERY):
            self.host = max(self.host, sum(map(share_of, tree(self.pid))))
            if self.device is not None:
                self.device = max(self.device, self._used() - self._before)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _used(self) -> float:
        if self._smi is None:
            return 0.0
        query = [self._smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def tree(root: int) -> Iterator[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def share_of(pid: int) -> float:
    """MiB of a process: proportional set size, or resident size if the kernel lacks the former."""
    for name, word in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = Path("/proc", str(pid), name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(word):
                return int(line.split()[1]) / 1024
    return 0.0
