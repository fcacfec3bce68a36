"""What the doctor says a run will take, beside what it takes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from feddwa.config import RunConfig
from feddwa.doctor import configuration
from feddwa.forecast import Forecast
from feddwa.row_location import GIB

ROOT = Path(__file__).parents[1]
WIDE = ["--clients", "60", "--model-arg", "hidden=8000", "--batch-size", "20", "--rounds", "5", "--lr", "0.01"]
PEAK = """
import json, resource, sys, threading
from pathlib import Path
from feddwa.cli import main

def size():
    total = 0
    for path in Path("out").rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            pass
    return total

def watch():
    while not over.wait(0.02):
        most.append(size())

over, most = threading.Event(), [0]
thread = threading.Thread(target=watch)
thread.start()
status = main(["run", *sys.argv[1:], "--quiet", "--out", "out"])
over.set()
thread.join()
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, max(*most, size()) / 2**30]))
sys.exit(status)
"""


def python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads peaks as Linux tells them")
@pytest.mark.parametrize(
    "words",
    [
        ["--state", "device"],
        ["--state", "host", "--participation", "0.1"],
        ["--state", "disk", "--participation", "0.1", "--algorithm", "ditto"],
        ["--state", "device", "--algorithm", "fedavg", "--no-save-models"],
    ],
)
def test_memory_and_disk_are_told_to_a_fifth(words, tmp_path):
    """Peaks of processes of their own. Rows of 60 clients take far more than what is there without any."""
    shown = " ".join(python(tmp_path, "-m", "feddwa", "doctor", *WIDE, *words).split())
    told = re.search(r"all rounds: ([\d.]+) GiB of host memory, ([\d.]+) GiB of disk", shown)
    assert told, shown
    host, disk = json.loads(python(tmp_path, "-c", PEAK, *WIDE, *words).splitlines()[-1])
    assert float(told[1]) == pytest.approx(host, rel=0.2, abs=0.25)  # so much the allocator may keep or give back
    assert float(told[2]) == pytest.approx(disk, rel=0.2, abs=0.01)


def test_what_is_lacking_is_named_with_what_takes_less():
    huge = Forecast(device=0, host=1 << 60, disk=1 << 60, seconds=1.0)
    memory, disk = huge.lacking(RunConfig(), torch.device("cpu"))
    assert memory.startswith(f"host memory: {(1 << 60) / GIB:.2g} GiB")
    assert "--state disk" in memory
    assert "--checkpoint-every 0, --no-save-models" in disk
    assert not list(Forecast(0, 1, 1, 1.0).lacking(RunConfig(), torch.device("cpu")))


def test_what_has_no_room_at_all_is_an_error_of_the_doctor(monkeypatch):
    monkeypatch.setattr("feddwa.row_location.host_bytes", lambda: 1)
    found = list(configuration(RunConfig(clients=4, rounds=2, state="host")))
    (error,) = (each.text for each in found if each.level == "error")
    assert error.startswith("--state host: ")
