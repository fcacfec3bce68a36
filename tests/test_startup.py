"""What trains nothing does not wait for torch: help, version, lists, and errors in options."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import feddwa
from feddwa import cli

ROOT = Path(__file__).parents[1]
COMMANDS = runpy.run_path(str(ROOT / "benchmarks" / "startup.py"))["COMMANDS"]
MORE = (
    "",
    "list models mlp",
    "list partitions groups --json",
    "list datasets cifar10",
    "list algorithms magic",
    "run --batchnorm none",
    "run --participation 0.01",
    "run --config no.toml",
    "compare --model huge",
    "compare --dataset nowhere",
    "partition --partition fair",
    "partition --dataset nowhere",
    "doctor --dataset nowhere",
    "run --dataset=",
    "federate --algorithm magic",
    "federate --nodes many",
    "resume",
    "export",
    "export runs --format pickle",
    "predict runs",
    "adapt runs",
    "adapt runs --data x.csv --epochs 0",
    "figure pie runs",
    "new algorithm 2fast",
)
HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pyarrow", "rich", "flwr"}


@pytest.mark.parametrize("command", [*COMMANDS, *MORE, *(f"{name} --help" for name in cli.COMMANDS)])
def test_the_answer_does_not_wait_for_torch(command, tmp_path):
    surroundings = {**os.environ, "PYTHONPATH": str(Path(feddwa.__file__).parents[1])}
    process = [sys.executable, "-X", "importtime", "-m", "feddwa", *command.split()]
    done = subprocess.run(
        process, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=surroundings
    )
    lines = done.stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "feddwa.cli" in loaded
    assert not loaded & HEAVY
    said = [line for line in lines if not line.startswith("import time:")]
    assert (done.returncode, bool(done.stdout), len(said)) in ((0, True, 0), (2, False, 1))


@pytest.mark.parametrize("module", ["feddwa", "feddwa.config", "feddwa.plugins", "feddwa.params", "feddwa.built_in"])
def test_a_configuration_is_made_and_read_without_torch(module):
    code = f"import sys, {module}; from feddwa.config import RunConfig; RunConfig().checked(); print(*sys.modules)"
    surroundings = {**os.environ, "PYTHONPATH": str(Path(feddwa.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=surroundings)
    assert not set(done.stdout.split()) & HEAVY
