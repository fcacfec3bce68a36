"""What a person at a terminal sees: real processes in a real (pseudo-)terminal."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import feddwa

MAIN = "from feddwa.cli import main; raise SystemExit(main())"
SMALL = ("--clients", "6", "--param", "groups=2")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38)[;m]")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Terminal:
    """A process that believes in a terminal of 80 columns."""

    def __init__(self, *arguments, **environment):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        source = str(Path(feddwa.__file__).parents[1])  # PYTHONPATH may be relative, and we are elsewhere
        whole = {**kept, "PYTHONPATH": source, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **environment}
        command = [sys.executable, "-c", MAIN, *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=whole,
            # A shell's background job ignores Ctrl-C, and so would its children: a terminal's do not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.text = ""

    def read(self) -> str:
        """What came since."""
        try:
            piece = os.read(self.ours, 1 << 16).decode("utf-8", "replace")
        except OSError:  # the process has ended
            piece = ""
        self.text += piece
        return piece

    def until(self, words: str) -> None:
        end = time.monotonic() + 120
        while words not in self.text:
            assert self.read(), self.text[-500:]
            assert time.monotonic() < end

    def finish(self) -> int:
        while self.read():
            pass
        os.close(self.ours)
        return self.process.wait(60)


@pytest.mark.slow
def test_bars_and_colours():
    terminal = Terminal("compare", "--algorithms", "feddwa", "local", "--rounds", "4", *SMALL, "--out", "all")
    assert terminal.finish() == 0
    assert COLOUR.search(terminal.text)
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.text)
    assert re.search(r"✓ all +━+ 2/2 runs", plain)
    assert re.search(r"✓ feddwa +━+ 4/4 rounds", plain)
    assert max(map(len, plain.replace("\r", "\n").splitlines())) <= 80


@pytest.mark.slow
def test_no_colour_where_none_is_wanted():
    terminal = Terminal("run", "--rounds", "2", *SMALL, "--out", "run", NO_COLOR="1")
    assert terminal.finish() == 0
    assert "│ feddwa" in terminal.text
    assert not COLOUR.search(terminal.text)


@pytest.mark.slow
def test_quiet_prints_the_directory_alone():
    terminal = Terminal("run", "--quiet", "--rounds", "2", *SMALL, "--out", "run")
    assert terminal.finish() == 0
    assert terminal.text == "run\r\n"
    terminal = Terminal("compare", "--quiet", "--algorithms", "local", "--rounds", "1", *SMALL, "--out", "all")
    assert terminal.finish() == 0
    assert terminal.text == "all\r\n"
    assert Path("all/report.html").exists()


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_it_does():
    terminal = Terminal("run", "--rounds", "3000", *SMALL, "--out", "run")
    terminal.until("clients/s")  # some rounds are done
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish() == 130
    assert "feddwa: stopped; feddwa resume run continues it" in terminal.text
    assert "Traceback" not in terminal.text
    assert "\x1b[?25h" in terminal.text  # the cursor is back
    report = Terminal("report", "run")  # what there is can be looked at
    assert report.finish() == 0


LONG = {
    "run": ("--algorithm", "feddwa", "--rounds", "90000"),
    "compare": ("--algorithms", "feddwa", "local", "--rounds", "90000"),
    "tune": ("--algorithms", "feddwa", "local", "--rounds", "90000", "--jobs", "2", "--trials", "4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_ends_everything_at_once_in_one_line(name):
    """To all processes of the terminal, as its driver sends it."""
    source = str(Path(feddwa.__file__).parents[1])
    command = [sys.executable, "-c", MAIN, name, *LONG[name], *SMALL, "--out", "out"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        end = time.monotonic() + 200
        while not [*Path("out").rglob("metrics.jsonl"), *Path("out").rglob("trials.db")]:
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "feddwa: stopped; feddwa resume out continues it\n")
