"""Ends the processes of a federation and removes its folder once the process that began it is gone, even by SIGKILL.

    python -I -S watchdog.py MARK FOLDER < pipe

A program of its own, and without other modules: it must be there at once and outlive its parent. It waits for the end
of the pipe, of which only its parent holds the other side.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

VARIABLE = "FEDDWA_TRY"  # environment variable whose value, the mark, all processes of a federation have
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
ENDED = b"ended"  # what a parent writes that has stopped everything itself


def marked(mark: str) -> list[int]:
    """Ids of all processes with this mark.

    It is needed because Flower detaches some processes from their group. Without /proc none is found; such processes
    end by themselves when they notice that their parent is gone.
    """
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def signal_marked(mark: str, number: signal.Signals) -> None:
    """Send a signal to all processes with this mark."""
    for process in marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def main(mark: str, folder: str) -> None:
    """Wait for the parent's end, then clear up behind it, unless it has done so."""
    if sys.stdin.buffer.read() == ENDED:
        return
    signal_marked(mark, signal.SIGTERM)
    ends = time.monotonic() + GRACE
    while marked(mark):
        if time.monotonic() > ends:
            signal_marked(mark, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
