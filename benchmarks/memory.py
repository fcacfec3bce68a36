"""The cost of thousands of clients: device memory, host memory, disk and seconds, a JSON line per case.

    python benchmarks/memory.py [cpu | gpu | CASE ...] [--state auto] [--limit 1500] [--out FILE.jsonl]

Every case is a `feddwa run` in a process of its own that is ended after `--limit` seconds. Seconds are means over all
rounds but the first; "train" is local training alone. Device memory is the most that torch had allocated, host memory
the most that was resident, disk the most that the run directory had.

Images are made here, with so many samples for each client that nobody goes without: those of "digits" from the 1,797
that there are, each moved by up to a pixel and made noisy; those of "cifar" at random. Memory and time do not depend on
what is on them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from feddwa.data.dataset import Dataset

CLIENTS, TRAIN, TEST = "MEMORY_CLIENTS", 20, 5  # environment variable; samples of a client
EVAL_EVERY = 5  # all clients' models are tested so often: it takes longer than training a twentieth of them
GIB = 1 << 30
TIMED = """
import json, resource, sys
from feddwa.cli import main
status = main(sys.argv[1:])
import torch
device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, device]))
sys.exit(status)
"""


@dataclass(frozen=True)
class Case:
    """One run."""

    algorithm: str
    data: str  # a function of this file
    model: str
    clients: int
    participation: float
    rounds: int
    state: str = "auto"


CASES = {
    "cpu-feddwa-10000": Case("feddwa", "digits", "digits-cnn", 10_000, 0.05, 20),
    "cpu-fedavg-10000": Case("fedavg", "digits", "digits-cnn", 10_000, 0.05, 20),
    "gpu-feddwa-500-alone": Case("feddwa", "cifar", "cifar-cnn", 500, 1.0, 6, "device"),
    "gpu-feddwa-10000": Case("feddwa", "cifar", "cifar-cnn", 10_000, 0.05, 6, "host"),
    "gpu-feddwa-10000-disk": Case("feddwa", "cifar", "cifar-cnn", 10_000, 0.05, 6, "disk"),
    "gpu-feddwa-3000-all": Case("feddwa", "cifar", "cifar-cnn", 3_000, 1.0, 3, "host"),
    "gpu-fedavg-10000": Case("fedavg", "cifar", "cifar-cnn", 10_000, 0.05, 6),
}


def digits() -> Dataset:
    """Images like the digits' for all clients."""
    from sklearn.datasets import load_digits

    known, rng, (train, test) = load_digits(), np.random.default_rng(0), _counts()
    which = rng.integers(0, len(known.target), train + test)
    moved = [np.roll(known.images, move, (1, 2)) for move in ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))]
    x = np.stack(moved).astype(np.float32)[rng.integers(0, len(moved), len(which)), which] / 16
    x += rng.normal(0, 0.1, x.shape).astype(np.float32)
    return Dataset("digits-like", x[:, None], known.target[which], train, 10)


def cifar() -> Dataset:
    """Random images of CIFAR's shape for all clients."""
    rng, (train, test) = np.random.default_rng(0), _counts()
    x = rng.integers(0, 256, (train + test, 3, 32, 32), dtype=np.uint8)
    return Dataset("images", x, np.arange(train + test) % 10, train, 10)


def _counts() -> tuple[int, int]:
    clients = int(os.environ[CLIENTS])
    return clients * TRAIN, clients * TEST


def measured(name: str, case: Case, state: str | None, limit: float) -> dict[str, object]:
    """The figures of one case."""
    state = state or case.state
    words = ["run", "--algorithm", case.algorithm, "--partition", "iid", "--model", case.model, "--state", state]
    words += [f"--clients={case.clients}", f"--participation={case.participation}", f"--rounds={case.rounds}"]
    words += ["--batch-size=10", f"--eval-every={EVAL_EVERY}", "--no-save-models", "--quiet"]
    words += ["--checkpoint-every=0"] if name.startswith("gpu") else []
    dataset = f"{Path(__file__).resolve()}:{case.data}"
    facts: dict[str, object] = {"case": name, "command": " ".join(["feddwa", *words])}
    with tempfile.TemporaryDirectory(dir=os.environ.get("MEMORY_FOLDER")) as folder:
        out, most, start = Path(folder, "run"), [0], time.perf_counter()
        command = [sys.executable, "-c", TIMED, *words, "--dataset", dataset, f"--out={out}"]
        environment = {**os.environ, CLIENTS: str(case.clients)}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        watching = threading.Thread(target=_watch, args=(process, out, most))
        watching.start()
        try:
            shown, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            shown, _ = process.communicate()
            facts["ended after"] = limit
        watching.join()
        facts["exit"] = process.returncode
        facts["seconds"] = round(time.perf_counter() - start, 1)
        if process.returncode == 0:
            host, device = json.loads(shown.splitlines()[-1])
            facts |= {"host GiB": round(host / GIB, 2), "device GiB": device and round(device / GIB, 2)}
        facts["disk GiB"] = round(most[0] / GIB, 2)
        return facts | _rounds(out / "metrics.jsonl", int(case.participation * case.clients + 1e-9))


def _rounds(path: Path, cohort: int) -> dict[str, object]:
    """Seconds of the finished rounds."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rounds = [line for line in lines if "participants" in line]
    facts: dict[str, object] = {"rounds": len(rounds)}
    if len(rounds) > 1:
        seconds = [line["seconds"] for line in rounds[1:]]
        facts["seconds a round"] = round(mean(sum(each.values()) for each in seconds), 2)
        facts |= {name: round(mean(each[name] for each in seconds), 2) for name in seconds[0]}
        facts["ms a trained client"] = round(1000 * mean(each["train"] for each in seconds) / cohort, 2)
    return facts


def _watch(process: "subprocess.Popen[str]", folder: Path, most: list[int]) -> None:
    """Record the peak size of a folder in bytes while a process runs."""
    while process.poll() is None:
        total = 0
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except OSError:  # it has just been removed
                continue
        most[0] = max(most[0], total)
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["cpu"], help=f"cpu, gpu or of {', '.join(CASES)}")
    parser.add_argument("--state")
    parser.add_argument("--limit", type=float, default=1500.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    chosen = [name for name in CASES if any(name == each or name.startswith(f"{each}-") for each in given.cases)]
    if not chosen:
        parser.error(f"no such case; there are {', '.join(CASES)}")
    for name in chosen:
        line = json.dumps(measured(name, CASES[name], given.state, given.limit))
        print(line, flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
