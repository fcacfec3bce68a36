"""Messages between two real processes: what arrives is what was sent, and a rank that has ended is named."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from feddwa.checkpoint import leaves
from feddwa.ranks import Lost, Ranks

ROOT = Path(__file__).parents[1]
ECHO = """
import sys
from feddwa.ranks import Ranks
ranks = Ranks(2, 1, 2, 1, sys.argv[1])
while True:
    ranks.send(0, *ranks.receive(0))
"""


@contextlib.contextmanager
def rank_0(folder: Path, program: str = ECHO):
    """Rank 0 of two; rank 1 runs a program."""
    environment, store = {**os.environ, "PYTHONPATH": str(ROOT / "src")}, str(folder / "store")
    other = subprocess.Popen([sys.executable, "-c", program, store], env=environment, stderr=subprocess.DEVNULL)
    ranks = Ranks(2, 0, 2, 0, store, [other])
    try:
        yield ranks
    finally:
        ranks.close()
        other.kill()
        other.wait()


def test_what_arrives_is_what_was_sent(tmp_path):
    images = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    tree = {
        "model": {"weight": torch.randn(3, 4, dtype=torch.float64), "turned": torch.randn(4, 3).T, "images": images},
        "shared": {"rows": torch.arange(6.0).reshape(1, 6).expand(5, 6), "number": torch.tensor([7]).expand(3)},
        "kinds": {"half": torch.randn(3).bfloat16(), "flags": torch.tensor([True, False]), "one": torch.tensor(2.5)},
        "nothing": {"no rows": torch.zeros(0, 4), "no columns": torch.zeros(3, 0)},
        "a/b %": {},
    }
    with rank_0(tmp_path) as ranks:
        for facts in ({"round": 3, "clients": [1, 2]}, {"text": "größer\n"}):
            ranks.send(1, facts, tree)
            told, found = ranks.receive(1)
            assert told == facts
            for (name, value), (other, back) in zip(leaves(tree), leaves(found), strict=True):
                assert name == other
                assert torch.equal(value, back), name
                assert value.dtype == back.dtype
            assert found["a/b %"] == {}
            assert found["shared"]["rows"].stride(0) == 0  # one row was sent


def test_threads_are_divided_until_the_ranks_part(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with rank_0(tmp_path) as ranks:
            ranks.send(1, {}, {})
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "was ended by SIGSEGV"),
        (f"{ECHO.replace('while True:', 'for _ in range(1):')}\nraise SystemExit(4)", "ended with status 4"),
    ],
)
def test_a_rank_that_has_ended_is_named(tmp_path, program, how):
    def ask_twice(ranks: Ranks) -> None:
        for _ in range(2):
            ranks.send(1, {}, {})
            ranks.receive(1)

    with rank_0(tmp_path, program) as ranks, pytest.raises(Lost, match=f"^rank 1 of 2 {how}$"):
        ask_twice(ranks)
