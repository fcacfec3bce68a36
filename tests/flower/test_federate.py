"""`feddwa federate` as a process: killed, it leaves nothing behind that works or that is secret, and can be resumed."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feddwa import run
from tests.flower.test_parity import lines_of, same_lines

OPTIONS = {"algorithm": "fedrod", "clients": 4, "rounds": 3}


@contextlib.contextmanager
def federate(folder):
    """The command in a process of its own, with its temporary files in `folder`/tmp; killed at the context's end."""
    (folder / "tmp").mkdir(exist_ok=True)
    given = [text for name, value in OPTIONS.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "feddwa", "federate", *given, "--nodes", "2", "--out", str(folder / "run")]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


def descendants(folder):
    """All processes of this machine whose environment names `folder`/tmp: those of the federation inherit TMPDIR."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder / "tmp").encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended since, or is another user's
            continue
    return found


def until(happened, seconds=300.0):
    ends = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_a_federation_that_is_killed_leaves_nothing_running_and_no_secrets(tmp_path):
    lines = tmp_path / "run" / "metrics.jsonl"
    with federate(tmp_path):
        until(lambda: lines.exists() and lines.read_text().count("\n") >= 1 and (tmp_path / "run/keys").exists())
        secrets = [path for path in (tmp_path / "tmp").rglob("*") if path.suffix in (".key", ".secret")]
        assert {path.name for path in secrets} == {"server.key", "node-0.key", "node-1.key", "executor.secret"}
        assert not any(path.stat().st_mode & 0o077 for path in secrets)
        assert len(descendants(tmp_path)) >= 7  # watchdog, SuperLink, its executor, ServerApp, nodes, executor
    until(lambda: not descendants(tmp_path), seconds=100)  # it was ended by SIGKILL
    assert not list((tmp_path / "tmp").glob("feddwa-*"))
    kept = [path for path in tmp_path.rglob("*") if path.suffix in (".key", ".secret")]
    assert sorted(kept) == [tmp_path / "run/keys" / f"node-{number}.key" for number in (0, 1)]  # of the clients' rows
    with federate(tmp_path) as resumed:
        assert resumed.wait(timeout=500) == 0
    until(lambda: not descendants(tmp_path), seconds=100)
    same_lines(lines_of(tmp_path / "run"), run(**OPTIONS, out=False).metrics)
    assert not list((tmp_path / "tmp").glob("feddwa-*"))
    assert not (tmp_path / "run/keys").exists()
