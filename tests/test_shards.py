"""Clients divided among ranks: the same trajectory as in one process, and what is said when a rank fails."""

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa.build import load_task, make_engine
from feddwa.checkpoint import leaves
from feddwa.cli import main
from feddwa.cli.workers import with_workers
from feddwa.errors import InputError
from feddwa.flower.processes import free_port
from feddwa.ranks import CURRENT
from feddwa.shards import placement
from feddwa.workers import federation_of
from tests.conftest import ANYWHERE
from tests.test_resume import Stop, stop_after, timeless

ROOT = Path(__file__).parents[1]
UNEVEN = {"partition": "dirichlet", "clients": 5, "batch_size": 50, "rounds": 3, "dtype": "float64", "device": "cpu"}
CONV = {**UNEVEN, "model": "tests.conftest:conv_net", "participation": 0.8}
PARAMS = {"clusterfl": ("eps1=9", "eps2=0.01", "warmup=1"), "fedfomo": ("models=2",)}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)  # the worker finds `tests` there


@pytest.fixture(scope="module")
def ranks():
    """Two ranks: this process and a worker, of which tests ask as they need."""
    with with_workers(2):
        found = CURRENT.get()
        token = CURRENT.set(None)
        yield found
        CURRENT.reset(token)


@contextlib.contextmanager
def divided(ranks):
    """Runs in the enclosed code have their clients divided."""
    token = CURRENT.set(ranks)
    try:
        yield
    finally:
        CURRENT.reset(token)


def rounds(options: dict, ranks=None):
    """The state of a federation after all rounds, what was recorded of each, and the models that come out."""
    config = feddwa.RunConfig(**options).resolved()
    task = load_task(config)
    engine = make_engine(config, task)
    with divided(ranks):
        federation = federation_of(config, task, engine)
    told = [federation.step() for _ in range(config.rounds)]
    models, buffers = federation.personal(federation.all_clients())
    return {"state": federation.state(), "models": {"models": models, "buffers": buffers}}, told


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left.double(), right.double(), rtol=1e-9, atol=1e-9, equal_nan=True)


def assert_same(options: dict, ranks) -> None:
    (one, alone), (two, shared) = rounds(options), rounds(options, ranks)
    for (name, value), (other, found) in itertools.zip_longest(leaves(one), leaves(two)):
        assert name == other
        assert value.dtype == found.dtype, name
        assert close(value, found), name
    for here, there in zip(alone, shared, strict=True):
        assert torch.equal(here.cohort.ids, there.cohort.ids)
        assert here.missing == there.missing
        assert torch.equal(here.costs.flops, there.costs.flops)
        assert (here.costs.bytes_up, here.costs.bytes_down) == (there.costs.bytes_up, there.costs.bytes_down)
        scores, others = ({**each.before.named(), **{f"after {n}": v for n, v in each.after.named().items()}}
                          for each in (here, there))  # fmt: skip
        assert scores.keys() == others.keys()
        assert all(close(scores[name], others[name]) for name in scores)
        assert here.info.keys() == there.info.keys()


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_two_ranks_do_what_one_process_does(ranks, algorithm):
    assert_same({**CONV, "algorithm": algorithm, "param": PARAMS.get(algorithm, ())}, ranks)


def test_of_a_method_with_batchnorm_of_its_own(ranks):
    assert_same({**CONV, "algorithm": "fedbn"}, ranks)


OPTIONS = {
    "one row for two ranks": {"clients": 2, "participation": 0.5},
    "blocks": {"chunk": 2},
    "the plain loop": {"backend": "sequential", "rounds": 2},
    "all that is scored": {"validation": 0.2, "eval": "central-mean", "metrics": ("macro-f1",)},
    "some are evaluated": {"eval_clients": 2, "eval_every": 2, "participation": 0.4},
    "updates that do not count": {"fault": "dropout=0.3,nan=0.3"},
    "hostile clients": {"attack": "backdoor=0.2,sign-flip=0.2", "param": ("backdoor.target=3",)},
    "an optimiser's state": {"optimizer": "adam", "optimizer_state": "keep", "local_steps": 3, "lr": 0.01},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OPTIONS)
def test_with_options(ranks, what):
    assert_same({**UNEVEN, "algorithm": "feddwa", **OPTIONS[what]}, ranks)


def test_each_row_goes_to_the_rank_that_has_least_to_do():
    steps = torch.tensor([2, 9, 2, 3, 4])
    assert [own.tolist() for own in placement(steps, 2)] == [[1, 2], [0, 3, 4]]
    assert [own.tolist() for own in placement(steps, 3)] == [[1], [2, 4], [0, 3]]
    assert [own.tolist() for own in placement(torch.tensor([5, 5]), 4)] == [[0], [1], [], []]
    rng = np.random.default_rng(0)
    for ranks in (2, 3, 7):
        steps = torch.from_numpy(rng.integers(0, 100, 40))
        found = placement(steps, ranks)
        assert sorted(torch.cat(found).tolist()) == list(range(40))
        loads = [int(steps[own].sum()) for own in found]
        assert max(loads) - min(loads) <= int(steps.max())


# Resuming with another number of ranks, and seeds.


def same(left: feddwa.Result, right: feddwa.Result) -> None:
    """Two runs agree in all that they have recorded, times aside, and in their models, rounding apart."""
    ours, theirs = {**left.models, **left.buffers}, {**right.models, **right.buffers}
    assert ours.keys() == theirs.keys()
    assert all(close(value, theirs[name]) for name, value in ours.items())
    lines, others = (timeless(f"{each.path}/metrics.jsonl") for each in (left, right))
    for line, other in zip(lines, others, strict=True):
        assert agree(line, other)
    for one, two in zip(left.weights, right.weights, strict=True):
        assert np.array_equal(one.cohort, two.cohort)
        assert np.allclose(one.matrix, two.matrix, atol=1e-6)
    names = [{path.name for path in Path(each.path).iterdir()} - {"weights.png"} for each in (left, right)]
    assert names[0] == names[1]


def agree(left, right) -> bool:
    """Whether two lines of metrics.jsonl say the same, rounding apart."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(agree(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(agree, left, right))
    return math.isclose(left, right, rel_tol=1e-9) if isinstance(left, float) else left == right


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(ranks, tmp_path, before, after):
    options = {**CONV, "algorithm": "fedphp", "holdout_clients": 0.2}
    whole = feddwa.run(out=str(tmp_path / "whole"), **options)
    with divided(ranks if before == 2 else None), pytest.raises(Stop):
        feddwa.run(out=str(tmp_path / "cut"), observe=stop_after(2), **options)
    with divided(ranks if after == 2 else None):
        same(feddwa.resume(tmp_path / "cut"), whole)


def test_seeds_run_one_after_another(ranks, tmp_path):
    options = {**UNEVEN, "algorithm": "fedavg", "seeds": [0, 1]}
    whole = feddwa.run(out=str(tmp_path / "alone"), **options)
    with divided(ranks):
        found = feddwa.run(out=str(tmp_path / "shared"), **options)
    for seed in (0, 1):
        assert found[seed].summary["accuracy"] == whole[seed].summary["accuracy"]
        assert found[seed].summary["ranks"] == 2
        assert "ranks" not in whole[seed].summary


# What goes wrong on a worker is said in one line.

BROKEN = """
import os
from dataclasses import dataclass
from feddwa.algorithms import FedAvg

@dataclass(frozen=True)
class Broken(FedAvg):
    def client(self, trainer, download, memory):
        if os.environ.get("PARENT") != str(os.getpid()) and trainer.round == 2:
            raise {error}
        return super().client(trainer, download, memory)
"""


@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        ("RuntimeError('out of luck')", "out of luck", RuntimeError),
        ("KeyError('momentum')", "KeyError: 'momentum'", RuntimeError),
    ],
)
def test_an_error_of_a_worker_names_rank_round_and_clients(ranks, tmp_path, monkeypatch, error, told, kind):
    path = tmp_path / f"broken_{len(told)}.py"
    path.write_text(BROKEN.format(error=error))
    monkeypatch.setenv("PARENT", str(os.getpid()))
    options = {**UNEVEN, "clients": 2, "algorithm": f"{path}:Broken"}
    with divided(ranks), pytest.raises(kind) as found:
        feddwa.run(out=str(tmp_path / "run"), **options)
    assert str(found.value) == f"rank 1: {told}; in algorithm Broken, round 2, client 1"


def test_a_worker_with_other_data_is_refused(ranks, tmp_path):
    path = tmp_path / "another.py"
    path.write_text(
        "import os\nimport numpy as np\nfrom feddwa.data.dataset import Dataset\n\n"
        "def data():\n    x = np.full((40, 4), os.getpid(), np.float32)\n"
        "    return Dataset('another', x, np.arange(40) % 2, 30, 2)\n"
    )
    options = {"dataset": f"{path}:data", "clients": 2, "rounds": 1, "device": "cpu", "out": False}
    with divided(ranks), pytest.raises(InputError, match=r"^rank 1: data: not as on rank 0; all machines need"):
        feddwa.run(**options)


@pytest.mark.parametrize("value", ["0", "-2", "two", "65"])
@pytest.mark.parametrize("command", [["run"], ["compare"], ["resume", "runs/x"]])
def test_numbers_of_workers_that_there_cannot_be(capsys, command, value):
    assert main([*command, f"--workers={value}"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"feddwa: --workers: got {int(value) if value != 'two' else repr(value)}, must be ")
    assert line.count("\n") == 1


def test_what_does_not_go_together(capsys, monkeypatch, tmp_path):
    (tmp_path / "tune.toml").write_text("")
    assert main(["resume", str(tmp_path), "--workers", "2"]) == 2
    assert capsys.readouterr().err.startswith("feddwa: --workers: does not divide a search; its methods are divided by")
    assert main(["tune", "--workers", "2"]) == 2
    assert capsys.readouterr().err.startswith("feddwa: --workers: unknown option")


# The commands, as they are given.

ROUNDS = 24
FEW = ["--clients", "5", "--batch-size", "40", "--device", "cpu", "--dtype", "float64"]
SMALL = [*FEW, "--rounds", str(ROUNDS)]
SAME = {"clients": 5, "rounds": ROUNDS, "batch_size": 40, "device": "cpu", "dtype": "float64"}


def python(*arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **streams)


def worker_of(process: subprocess.Popen) -> int:
    """The process of rank 1."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(process.pid) and b"feddwa.workers" in path.joinpath("cmdline").read_bytes():
                return int(path.name)
    raise AssertionError("there is no worker")


def until(condition, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("whom", "number", "status", "line"),
    [
        ("worker", signal.SIGKILL, 1, "failed: rank 1 of 2 was ended by SIGKILL; feddwa resume {out} continues it"),
        pytest.param("both", signal.SIGINT, 130, "stopped; feddwa resume {out} continues it", marks=pytest.mark.slow),
        pytest.param("rank 0", signal.SIGTERM, -signal.SIGTERM, "", marks=pytest.mark.slow),
        pytest.param("rank 0", signal.SIGKILL, -signal.SIGKILL, "", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost_and_nobody_is_left(tmp_path, whom, number, status, line):
    out = tmp_path / "run"
    process = python("-m", "feddwa", "run", *SMALL, "--workers", "2", "--out", str(out), "--quiet")
    until(lambda: len(list(out.glob("checkpoint/round-*"))) == 2)
    worker = worker_of(process)
    if whom == "both":
        os.killpg(process.pid, number)
    else:
        os.kill(worker if whom == "worker" else process.pid, number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert told == (f"feddwa: {line.format(out=out)}\n" if line else "")
    until(lambda: not alive(worker), 10)
    finished = feddwa.resume(out)
    assert len(finished.metrics) == ROUNDS + 1
    same(finished, feddwa.run(out=str(tmp_path / "whole"), **SAME))


@pytest.mark.slow
def test_three_ranks_and_seeds_of_a_comparison(tmp_path):
    words = ["compare", "--algorithms", "fedavg", "local", "--seeds", "0", "1", *FEW, "--rounds", "2", "--quiet"]
    process = python("-m", "feddwa", *words, "--workers", "3", "--out", str(tmp_path / "three"))
    assert process.communicate(timeout=120) == (f"{tmp_path / 'three'}\n", "")
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    for each in ("fedavg/seed-0", "fedavg/seed-1", "local/seed-0", "local/seed-1"):
        lines, others = (timeless(tmp_path / name / each / "metrics.jsonl") for name in ("three", "one"))
        assert agree(lines, others)
    assert "workers" not in (tmp_path / "three" / "compare.toml").read_text()


@pytest.mark.slow
def test_under_torchrun(tmp_path):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "feddwa")
    process = python(*launch, "run", *SMALL, "--out", str(tmp_path / "run"), "--quiet")
    shown, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert shown == f"{tmp_path / 'run'}\n"
    whole = feddwa.run(out=str(tmp_path / "whole"), **SAME)
    same(feddwa.resume(tmp_path / "run"), whole)
    for arguments, line in {
        ("run", "--workers", "2"): "--workers 2: torchrun has started 2 ranks already; leave it out",
        ("list", "models"): "list: its work is not divided among ranks; start it without torchrun",
    }.items():
        told = (failed := python(*launch, *arguments)).communicate(timeout=120)[1]
        assert failed.returncode == 1
        assert told.count(f"feddwa: {line}\n") == 1
    process = python(*launch, "run", "--help")
    assert "--workers N" in process.communicate(timeout=120)[0]
    assert process.returncode == 0


@pytest.mark.slow
def test_two_torchruns_as_on_two_machines(tmp_path):
    """The command of the second one names another directory, which stays untouched."""
    launch = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    launch += ["--master-port", str(free_port())]
    nodes = []
    for node in ("0", "1"):
        out = str(tmp_path / f"node-{node}")
        nodes.append(python(*launch, "--node-rank", node, "-m", "feddwa", "run", *SMALL, "--out", out))
    told = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert told[1][0] == ""
    assert not (tmp_path / "node-1").exists()
    same(feddwa.resume(tmp_path / "node-0"), feddwa.run(out=str(tmp_path / "whole"), **SAME))
