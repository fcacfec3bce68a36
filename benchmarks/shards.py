"""Speed-up from dividing clients among processes of one machine: rounds of `feddwa run` by number of workers.

    python benchmarks/shards.py [--workers 1 2] [--model cifar-cnn] [--clients 20] [--samples 200] [--rounds 4]

All processes together use the threads that one alone does. Seconds of a round: of several turns, in which every number
of workers has its run, the median without first rounds. CPU time is what all rounds but the first cost, of rank 0 and
of the others together: it says how evenly work is divided, also where other programs keep the cores busy. Images are
random: cost does not depend on what is on them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from feddwa.data.dataset import Dataset

TEST = 5  # training samples for each test sample
SAMPLES = "SHARDS_SAMPLES"  # environment variable: training samples of all clients
TIMED = """
import json, sys
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from feddwa.cli import main
status = main(sys.argv[1:])
print(json.dumps([sum(getrusage(who)[:2]) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]))
sys.exit(status)
"""


def images() -> Dataset:
    """The data, generated in every process."""
    count = int(os.environ[SAMPLES])
    rng, test = np.random.default_rng(0), count // TEST
    x = rng.integers(0, 256, (count + test, 3, 32, 32)).astype(np.uint8)
    return Dataset("images", x, np.arange(count + test) % 10, count, 10)


def run(folder: str, options: list[str], workers: int, rounds: int) -> tuple[list[dict[str, float]], np.ndarray]:
    """Seconds of all rounds but the first, by phase; CPU seconds of rank 0 and of the others."""
    out = Path(folder, "run")
    words = ["run", "--dataset", f"{Path(__file__).resolve()}:images", "--partition", "iid", f"--workers={workers}"]
    words += [*options, f"--rounds={rounds}", "--no-save-models", "--checkpoint-every=0", "--quiet", f"--out={out}"]
    shown = subprocess.run([sys.executable, "-c", TIMED, *words], cwd=folder, check=True, stdout=subprocess.PIPE)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    cpu = np.array(json.loads(shown.stdout.splitlines()[-1]))
    return [line["seconds"] for line in lines[1:] if "participants" in line], cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--algorithm", default="feddwa")
    parser.add_argument("--model", default="cifar-cnn")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=2)
    given = parser.parse_args()
    options = [f"--{name}={getattr(given, name)}" for name in ("algorithm", "model", "device", "clients")]
    os.environ[SAMPLES] = str(given.clients * given.samples)
    found: dict[int, list[dict[str, float]]] = {workers: [] for workers in given.workers}
    cpu: dict[int, list[np.ndarray]] = {workers: [] for workers in given.workers}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.turns):
            for workers in given.workers:
                start = run(folder, options, workers, 1)[1]
                rounds, whole = run(folder, options, workers, given.rounds)
                found[workers] += rounds
                cpu[workers].append((whole - start) / (given.rounds - 1))
    seconds = {workers: median(sum(each.values()) for each in rounds) for workers, rounds in found.items()}
    for workers, rounds in found.items():
        phases = ", ".join(f"{name} {median(each[name] for each in rounds):.2f}" for name in rounds[0])
        ratio, (own, others) = seconds[given.workers[0]] / seconds[workers], np.median(cpu[workers], axis=0)
        print(f"{workers} workers: {seconds[workers]:6.2f} s a round ({phases}), {ratio:.2f}x; {len(rounds)} rounds")
        print(f"  CPU time of a round: {own:.2f} s of rank 0, {max(0.0, others):.2f} s of the others")


if __name__ == "__main__":
    main()
