"""Child processes that end together with this process, even if it is killed."""

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from feddwa.flower import watchdog

Handler = signal.Handlers | Callable[[int, FrameType | None], Any]  # as signal.signal takes it


class Processes:
    """A set of processes with one environment, each with a log file in `logs` of a folder.

    Where this process is killed, a watchdog ends them and removes the folder.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.logs, self.mark = folder / "logs", secrets.token_hex(8)
        here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.environment = {**os.environ, **environment, "PATH": here, watchdog.VARIABLE: self.mark}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.logs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", "-S", watchdog.__file__, self.mark, str(folder)]
        self.watchdog = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def start(self, name: str, command: Sequence[str], folder: Path) -> int:
        """Start a process in `folder`, in its own process group, with the log `<name>.log`; returns its id.

        An earlier process of the same name is waited for.
        """
        if name in self.running:
            self.running[name].wait()
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        return self.running[name].pid

    def ended(self) -> list[str]:
        """Names of the processes that have ended."""
        return [name for name, process in self.running.items() if process.poll() is not None]

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the group of a process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, number)

    def stop(self) -> None:
        """End all processes and their descendants; signals that arrive meanwhile are ignored."""
        with handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
            self._stop()
            self.watchdog.communicate(watchdog.ENDED)

    def _stop(self) -> None:
        for name in self.running:
            self.signal(name, signal.SIGTERM)
        ends = time.monotonic() + watchdog.GRACE
        while time.monotonic() < ends and (self.descendants() or len(self.ended()) < len(self.running)):
            time.sleep(0.05)
        for name in self.running:
            self.signal(name, signal.SIGKILL)
            self.running[name].wait()
        watchdog.signal_marked(self.mark, signal.SIGKILL)

    def descendants(self) -> list[int]:
        """Ids of all processes that were started here, and by those."""
        return watchdog.marked(self.mark)


@contextlib.contextmanager
def handling(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle some signals in another way while the context is open; possible in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def free_port() -> int:
    """A port of the loopback device that is free at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    """Whether a process accepts connections on a port of the loopback device."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _end_with_parent() -> None:
    """In the child, before its program starts: ask Linux for a SIGTERM when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
