"""Time and memory to load a folder of images, the first time and from the cache.

    python benchmarks/own_data.py                    100,000 colour JPEGs of 64x64 pixels
    python benchmarks/own_data.py --images 10000 --side 256 --resize 64

The folder is made in a temporary directory, as is the cache. Loading runs in a process of its own, whose peak resident
memory the system counts: pages of the memory-mapped cache file are part of it.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

CLIENTS, CLASSES, DIFFERENT = 20, 10, 1000


def make(folder: Path, images: int, side: int) -> None:
    """<client>/<class>/<number>.jpg, smooth random pictures that compress as photos do; some of them many times."""
    rng, encoded = np.random.default_rng(0), []
    for _ in range(min(images, DIFFERENT)):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((side, side), Image.Resampling.BILINEAR).save(buffer, "JPEG")
        encoded.append(buffer.getvalue())
    for client in range(CLIENTS):
        for name in range(CLASSES):
            (folder / f"client-{client:02}" / f"class-{name}").mkdir(parents=True)
    for i in range(images):
        path = folder / f"client-{i % CLIENTS:02}" / f"class-{i // CLIENTS % CLASSES}" / f"{i}.jpg"
        path.write_bytes(encoded[i % len(encoded)])


def load(folder: str, resize: str | None) -> None:
    """Load the folder, move it to the device as a run does, and print seconds and peak memory."""
    import torch

    from feddwa.data import partition, sources
    from feddwa.data.federated import to_device
    from feddwa.data.options import DataOptions

    before = _peak()
    start = time.perf_counter()
    dataset = sources.load(folder, None, DataOptions(resize=resize))
    loaded, at_load = time.perf_counter() - start, _peak()
    to_device(dataset, partition.make("natural", {}, dataset, dataset.owners, 0), torch.device("cpu"))
    figures = {"shape": dataset.x.shape, "seconds": loaded, "imports": before, "load": at_load, "device": _peak()}
    print(json.dumps(figures))


def _peak() -> float:
    """Peak resident memory of this process, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Make the folder, load it twice, each time in a new process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--resize")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.load, options.resize)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "photos")
        start = time.perf_counter()
        make(folder, options.images, options.side)
        print(f"{options.images:,} files of {options.side}x{options.side} made in {time.perf_counter() - start:.0f} s")
        command = [sys.executable, __file__, "--load", str(folder)]
        command += ["--resize", options.resize] if options.resize else []
        for what in ("decoded", "from the cache"):
            environment = {**os.environ, "FEDDWA_CACHE": str(Path(place, "cache"))}
            told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            found = json.loads(told)
            print(
                f"{what}: {found['seconds']:.1f} s for {found['shape']}; peak {found['load']:.2f} GiB, on the device "
                f"{found['device']:.2f} GiB ({found['imports']:.2f} GiB of it imports)"
            )


if __name__ == "__main__":
    main()
