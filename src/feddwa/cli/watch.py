"""`feddwa watch`: runs in a browser while they go."""

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from feddwa.errors import InputError, require
from feddwa.params import AtMost, Option

HOST = "127.0.0.1"  # this machine alone


@dataclass(frozen=True)
class WatchConfig:
    """The report of runs that are under way, in a browser of this machine, drawn anew as rounds end. Ctrl-C ends it."""

    runs: Annotated[tuple[str, ...], Option(metavar="RUN ...", positional=True)]
    """Run directories, or directories in which runs are or will be."""
    port: Annotated[int, AtMost(65535)] = 0
    """Port on 127.0.0.1; 0: one that is free."""


def watch_command(config: WatchConfig) -> int:
    """`feddwa watch`."""
    require(len(config.runs) > 0, "RUN", "none", "one directory or more")
    require(config.port >= 0, "--port", config.port, "a whole number from 0 to 65535")
    for run in config.runs:
        require(Path(run).is_dir(), "RUN", run, "a directory that is there")
    try:
        from feddwa.report.server import serving
    except ModuleNotFoundError as error:
        raise InputError(f"watch needs {error.name}: pip install 'feddwa[watch]'") from None
    token = secrets.token_urlsafe(24)
    with _listening(config.port) as listener:
        print(f"http://{HOST}:{listener.getsockname()[1]}/{token}/", flush=True)
        print("Open it in a browser of this machine; Ctrl-C ends it.", flush=True)
        serving(config.runs, token).run([listener])
    return 0


def _listening(port: int) -> socket.socket:
    """A socket on the port, bound before its address is printed."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise InputError(f"--port {port}: cannot be had: {error.strerror}; give another one, or 0") from None
