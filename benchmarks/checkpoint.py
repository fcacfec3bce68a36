"""What checkpoints cost: a round of FedDWA with the CIFAR network and 20 clients, and writing all of its state.

    python benchmarks/checkpoint.py [--samples 200] [--rounds 3]

The run waits for the copy (and for the write before, if that is not done); hashing, writing and syncing happen beside
the next round. 200 samples a client are a twelfth of CIFAR-10's, so that real rounds are longer and the share smaller.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from feddwa import checkpoint, models
from feddwa.algorithms import FedDWA
from feddwa.data.federated import federate
from feddwa.data.task import from_arrays
from feddwa.engine import Engine, Settings
from feddwa.federation import Federation

CLIENTS = 20


def federation(samples: int) -> Federation:
    rng = np.random.default_rng(0)

    def some(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (count, 3, 32, 32)).astype(np.uint8), np.arange(count) % 10

    task = from_arrays([(*some(samples), *some(max(1, samples // 5))) for _ in range(CLIENTS)])
    data = federate(task.dataset, task.partition, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    module = models.make("cifar-cnn", (3, 32, 32), 10)
    return Federation(FedDWA(), Engine(module, data, Settings(1, 20, 0.01), 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    run, times = federation(arguments.samples), []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        writer = checkpoint.Writer(folder)
        for number in range(arguments.rounds):
            start = time.perf_counter()
            run.step()
            trained = time.perf_counter()
            writer.save(run.round, run.state(), {})
            waited = time.perf_counter()
            writer.wait()
            times.append((trained - start, waited - trained, time.perf_counter() - waited))
            print(f"round {number + 1}: {times[-1][0]:.2f} s, copy {times[-1][1]:.3f} s, write {times[-1][2]:.3f} s")
        size = max(path.stat().st_size for path in Path(folder).iterdir())
        writer.close()
    round_, copy, write = (median(column) for column in zip(*times, strict=True))
    print(f"a checkpoint has {size / 2**20:.0f} MiB; the round waits {copy / round_:.2%} of its time for the copy")
    print(f"and would wait {(copy + write) / round_:.2%} if nothing happened in the background")


if __name__ == "__main__":
    main()
