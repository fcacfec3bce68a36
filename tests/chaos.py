"""A process that has everything loaded and forks a child for each job, so that a job costs no start-up; and its jobs.

`python -m tests.chaos` reads a job a line (JSON), answers with the child's number, then with how it ended. A child can
be told to kill itself at a certain step of its writing: that is patched in here, the package knows nothing of it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Zygote:
    """The parent of all children, seen from the tests."""

    def __init__(self) -> None:
        surroundings = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "error", "-m", "tests.chaos"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings, cwd=ROOT
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def start(self, **job: Any) -> int:
        """Begin a job; the number of its process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> int:
        """How the job ended: its exit status, negative for a signal."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def run(self, **job: Any) -> int:
        """Both."""
        self.start(**job)
        return self.wait()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.communicate(timeout=10)


def serve() -> None:
    """Fork a child for every line of input."""
    with tempfile.TemporaryDirectory() as folder:  # whatever a run loads is loaded now
        warm_up = ["run", "--clients", "4", "--rounds", "2", "--out", f"{folder}/run"]
        child_like = {"command": warm_up, "log": os.devnull, "models": f"{folder}/models"}
        out = os.dup(1), os.dup(2)
        assert work(**child_like) == 0
        os.dup2(out[0], 1)
        os.dup2(out[1], 2)
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                status = work(**json.loads(line))
            except SystemExit as leaving:
                status = int(leaving.code or 0)
            except BaseException:
                import traceback

                traceback.print_exc()
                status = 99
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def work(
    command: list[str], log: str, kill: int = 0, models: str | None = None, plant: str | None = None, uid: int = 0
) -> int:
    """Run a command; `kill` = at which step of its writing it dies, `models` = where to leave the final models."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if uid:
        os.setgid(uid)
        os.setuid(uid)
    if kill:
        die_at(kill)
    if plant:
        fill_disk_after(plant)
    from feddwa import cli, experiment

    save_models(experiment, models)
    return cli.main(command)


def die_at(step: int) -> None:
    """Count every step of writing in this process, and die in the middle of the given one: before, in or after it."""
    from feddwa import checkpoint
    from feddwa.results import runs

    count = 0

    def now() -> bool:
        nonlocal count
        count += 1
        return count == step

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*values: Any, **options: Any) -> Any:
            mine = now()
            if mine and step % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*values, **options)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted

    for name in ("replace", "fsync", "unlink", "mkdir"):
        setattr(os, name, around(getattr(os, name)))
    real_append, real_pieces = runs.RunDirectory._append, checkpoint._pieces

    def append(self: runs.RunDirectory, name: str, record: bytes) -> None:
        if now():  # half a line stands there
            real_append(self, name, record[: len(record) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        real_append(self, name, record)

    def pieces(*values: Any) -> Iterator[Any]:
        for piece in real_pieces(*values):
            if now():
                os.kill(os.getpid(), signal.SIGKILL)
            yield piece

    runs.RunDirectory._append = append  # type: ignore[method-assign]
    checkpoint._pieces = pieces


def fill_disk_after(folder: str) -> None:
    """From the third checkpoint on, what is written there goes to a device that is full."""
    from feddwa import checkpoint

    real, count = checkpoint._write, 0

    def write(*values: Any) -> Path:
        nonlocal count
        count += 1
        if count == 3:
            Path(folder, "next.part").symlink_to("/dev/full")
        return real(*values)

    checkpoint._write = write


def save_models(experiment: Any, path: str | None) -> None:
    """Leave the models of the run in a file, as they are when it ends, if one is named."""
    from safetensors.torch import save_file

    real = getattr(experiment._finish, "real", experiment._finish)

    def drive(*values: Any) -> Any:
        result = real(*values)
        if path is None:
            return result
        rows = {**result.models, **{f"buffers/{name}": value for name, value in result.buffers.items()}}
        save_file({name: value.contiguous().clone() for name, value in rows.items()}, path)
        return result

    drive.real = real  # type: ignore[attr-defined]
    experiment._finish = drive


if __name__ == "__main__":
    serve()
