"""`--backend auto` on the command line: what cannot be a stack is trained one by one, and one line says so."""

import subprocess
import sys

import pytest

from feddwa.config import RunConfig
from feddwa.doctor import configuration

NETWORK = """
from torch import nn

class Branching(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(2 * x if x.sum() > 0 else x)
"""
FALLS_BACK = (
    "model: Branching branches on the value of a tensor, or reads it, so it cannot be mapped over clients; clients"
)


@pytest.fixture
def network(tmp_path):
    (tmp_path / "net.py").write_text(NETWORK)
    return f"{tmp_path / 'net.py'}:Branching"


@pytest.mark.slow
def test_a_run_prints_one_line_and_is_the_sequential_one(network, tmp_path):
    lines = []
    for backend in ("auto", "sequential"):
        out = tmp_path / backend
        options = f"--backend {backend} --model {network} --clients 4 --rounds 1 --quiet --out {out}".split()
        done = subprocess.run([sys.executable, "-m", "feddwa", "run", *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines.append(done.stderr.splitlines())
    assert [line[: len(FALLS_BACK) + 8] for line in lines[0]] == [f"feddwa: {FALLS_BACK}"]
    assert lines[1] == []
    assert (tmp_path / "auto/clients.jsonl").read_bytes() == (tmp_path / "sequential/clients.jsonl").read_bytes()


def test_the_doctor_tells_it_as_a_warning(network):
    found = list(configuration(RunConfig(backend="auto", model=network, clients=4, rounds=1)))
    assert any(each.text.startswith(FALLS_BACK) for each in found if each.level == "warning")
    assert not [each for each in found if each.level == "error"]
