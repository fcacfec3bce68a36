"""Kills at any moment, a full disk, damaged files: clear words or the right continuation, never a wrong number.

Children are real processes and die by SIGKILL; the full disk is the kernel's own (/dev/full, and a small file system
where mounting one is allowed).
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from feddwa.results import runs
from tests.chaos import Zygote
from tests.conftest import ANYWHERE

pytestmark = pytest.mark.slow
KILLS = 50
OPTIONS = ("--clients", "12", "--rounds", "5", "--batch-size", "40", "--device", "cpu")
VARIANTS = [
    ("--algorithm", name, "--participation", share, *hit)
    for name, share, hit in zip(
        ANYWHERE,
        ["1", "0.5"] * 7,
        [(), (), ("--fault", "dropout=0.3,nan=0.2"), ("--attack", "min-max=0.2", "--defence", "clip")] * 4,
        strict=False,
    )
]


@pytest.fixture(scope="module")
def zygote():
    process = Zygote()
    yield process
    process.close()


@pytest.fixture(scope="module")
def references(zygote, tmp_path_factory):
    """Runs that nobody disturbs, made when they are asked for."""
    known: dict[tuple[str, ...], Path] = {}

    def reference(variant: tuple[str, ...]) -> Path:
        if variant not in known:
            folder = tmp_path_factory.mktemp("reference")
            assert begin(zygote, folder, variant) == 0, (folder / "log").read_text()
            known[variant] = folder
        return known[variant]

    return reference


def begin(zygote, folder: Path, variant, **job) -> int:
    command = ["run", *OPTIONS, *variant, "--out", str(folder / "run")]
    return zygote.run(**{"command": command, "log": str(folder / "log"), "models": str(folder / "models")} | job)


def resume(zygote, folder: Path, **job) -> int:
    command = ["resume", str(folder / "run")]
    return zygote.run(**{"command": command, "log": str(folder / "log"), "models": str(folder / "models")} | job)


def timeless(path: Path) -> list[dict]:
    return [{**json.loads(line), "seconds": None} for line in path.read_text().splitlines()]


def assert_same(folder: Path, reference: Path) -> None:
    for name in ("clients.jsonl", "weights.safetensors", "partition.json", "config.toml"):
        assert (folder / "run" / name).read_bytes() == (reference / "run" / name).read_bytes(), name
    assert timeless(folder / "run" / "metrics.jsonl") == timeless(reference / "run" / "metrics.jsonl")
    assert (folder / "models").read_bytes() == (reference / "models").read_bytes()
    summaries = [json.loads((each / "run" / "record.json").read_text())["summary"] for each in (folder, reference)]
    assert {**summaries[0], "seconds": 0} == {**summaries[1], "seconds": 0}
    left = {path.name for path in (folder / "run").iterdir()}
    assert left - {"weights.png"} == {path.name for path in (reference / "run").iterdir()} - {"weights.png"}


def attempt(zygote, folder: Path, variant, rng: random.Random) -> int:
    """One try to begin or to go on, killed at a random step of its writing or at a random time."""
    fresh = not (folder / "run" / "config.toml").exists()
    command = ["run", *OPTIONS, *variant, "--out", str(folder / "run")] if fresh else ["resume", str(folder / "run")]
    by_step = rng.random() < 0.7
    job = {"command": command, "log": str(folder / "log"), "models": str(folder / "models")}
    child = zygote.start(**job, kill=rng.randint(1, 120) if by_step else 0)
    if not by_step:
        time.sleep(rng.uniform(0.0, 0.8))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return zygote.wait()


@pytest.mark.timeout(240)
def test_fifty_kills(zygote, references, tmp_path, capsys):
    rng, kills, finished, where = random.Random(5), 0, 0, set()
    variants = iter(VARIANTS * 9)
    while kills < KILLS:
        variant, folder = next(variants), tmp_path / str(finished)
        folder.mkdir()
        status = None
        while status != 0:
            status = attempt(zygote, folder, variant, rng)
            assert status in (0, -signal.SIGKILL), (folder / "log").read_text()
            kills += status != 0
            if status != 0:
                found = sorted(path.name[:12] for path in (folder / "run").glob("checkpoint/round*"))
                where.add((len(found), (folder / "run/checkpoint/next.part").exists()))
        finished += 1
        if not (folder / "models").exists():  # killed when all was written: read back
            assert resume(zygote, folder) == 0
            assert runs.read_record(folder / "run") is not None
            continue
        assert_same(folder, references(variant))
    assert finished >= 5
    assert {number for number, _ in where} >= {0, 1, 2}  # before the first checkpoint, after it, and later
    assert True in {half for _, half in where}  # in the middle of one
    with capsys.disabled():
        print(f"\nchaos: {kills} kills, {finished} runs finished as if nothing had happened")


def interrupted(zygote, folder: Path, variant, steps: int = 70) -> None:
    assert begin(zygote, folder, variant, kill=steps) == -signal.SIGKILL
    assert len(list((folder / "run" / "checkpoint").glob("round-*"))) == 2


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(zygote, references, tmp_path, damage):
    interrupted(zygote, tmp_path, VARIANTS[-1])
    newest = max((tmp_path / "run" / "checkpoint").glob("round-*"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 3] ^= 4
    newest.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    assert resume(zygote, tmp_path) == 0
    log = (tmp_path / "log").read_text()
    assert f"feddwa: {newest}: damaged checkpoint, not used: its content is not what was written" in log
    assert_same(tmp_path, references(VARIANTS[-1]))


def test_without_any_whole_checkpoint_it_starts_over(zygote, references, tmp_path):
    interrupted(zygote, tmp_path, VARIANTS[0])
    for path in (tmp_path / "run" / "checkpoint").glob("round-*"):
        path.write_bytes(b"")
    assert resume(zygote, tmp_path) == 0
    assert (tmp_path / "log").read_text().count("damaged checkpoint") == 2
    assert_same(tmp_path, references(VARIANTS[0]))


def test_a_disk_that_fills(zygote, references, tmp_path):
    folder = tmp_path / "run" / "checkpoint"
    assert begin(zygote, tmp_path, VARIANTS[-1], plant=str(folder)) == 1
    log = (tmp_path / "log").read_text()
    assert "feddwa: failed: [Errno 28] No space left on device" in log
    assert f"feddwa resume {tmp_path / 'run'} continues it" in log
    assert "Traceback" not in log
    (folder / "next.part").unlink()  # room again
    assert resume(zygote, tmp_path) == 0
    assert_same(tmp_path, references(VARIANTS[-1]))


def test_a_small_file_system_that_fills(zygote, references, tmp_path):
    """The same with all files of the run on a disk that is too small for them."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        assert begin(zygote, disk, VARIANTS[-1], log=str(tmp_path / "log")) == 1
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        log = (tmp_path / "log").read_text()
        assert "No space left on device" in log
        assert "Traceback" not in log
        assert resume(zygote, disk, log=str(tmp_path / "log")) == 0
        assert_same(disk, references(VARIANTS[-1]))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_directory_that_cannot_be_written(zygote, tmp_path):
    interrupted(zygote, tmp_path, VARIANTS[-1])
    run = tmp_path / "run"
    names = [run, *run.rglob("*")]
    modes = {path: path.stat().st_mode for path in names}
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to(tmp_path.parents[2]):
            path.chmod(path.stat().st_mode | 0o055)
    for path in names:
        path.chmod(0o555 if path.is_dir() else 0o444)
    (tmp_path / "log").chmod(0o666)
    somebody = {"uid": 65534} if os.geteuid() == 0 else {}  # root may write anywhere
    try:
        before = {path: path.read_bytes() for path in names if path.is_file()}
        assert resume(zygote, tmp_path, **somebody) == 2
        assert f"feddwa: {run}: cannot go on there: Permission denied" in (tmp_path / "log").read_text()
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def test_ctrl_c_says_how_to_go_on(zygote, references, tmp_path):
    command = ["run", *OPTIONS, *VARIANTS[-1], "--out", str(tmp_path / "run")]
    child = zygote.start(command=command, log=str(tmp_path / "log"), models=str(tmp_path / "models"))
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGINT)
    status = zygote.wait()
    assert status in (130, 0)  # it may just have finished
    if status:
        assert f"feddwa: stopped; feddwa resume {tmp_path / 'run'} continues it" in (tmp_path / "log").read_text()
        assert resume(zygote, tmp_path) == 0
    assert_same(tmp_path, references(VARIANTS[-1]))


def test_a_comparison_goes_on_where_it_was(zygote, tmp_path):
    options = ("--clients", "6", "--rounds", "3", "--batch-size", "40", "--algorithms", "local", "feddwa", "fedavg")
    for name in ("whole", "cut"):
        job = {"command": ["compare", *options, "--out", str(tmp_path / name)], "log": str(tmp_path / "log")}
        status = zygote.run(**job, kill=100 if name == "cut" else 0)
        assert status == (-signal.SIGKILL if name == "cut" else 0), (tmp_path / "log").read_text()
    assert (tmp_path / "cut/local/record.json").exists()
    assert not (tmp_path / "cut/fedavg/record.json").exists()
    kept = (tmp_path / "cut/local/record.json").read_bytes()
    assert zygote.run(**job | {"command": ["compare", *options, "--out", str(tmp_path / "cut")]}) == 2
    assert f"`feddwa resume {tmp_path / 'cut'}` continues it" in (tmp_path / "log").read_text()
    assert zygote.run(**job | {"command": ["resume", str(tmp_path / "cut")]}) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "cut/local/record.json").read_bytes() == kept
    for algorithm in ("local", "feddwa", "fedavg"):
        for name in ("clients.jsonl", "weights.safetensors", "config.toml"):
            assert (tmp_path / "cut" / algorithm / name).read_bytes() == (
                tmp_path / "whole" / algorithm / name
            ).read_bytes()


def test_one_process_at_a_time(zygote, tmp_path):
    interrupted(zygote, tmp_path, VARIANTS[-1])
    from feddwa.results.runs import _lock

    with _lock(tmp_path / "run"):
        assert resume(zygote, tmp_path) == 2
    assert "another process is at work on this run" in (tmp_path / "log").read_text()
