"""Benchmarks of other libraries side by side with ours on this machine: rounds, steps, memory, accuracy.

    python benchmarks/field.py pfllib --pfllib DIR --rounds 5                # PFLlib's quick start, on Fashion-MNIST
    python benchmarks/field.py pfl-cifar10 --pfl DIR --site SITE --rounds 60 # pfl-research's CIFAR-10 benchmark
    python benchmarks/field.py blazefl --blazefl DIR --site SITE             # BlazeFL's, on CIFAR-10
    python benchmarks/field.py pfllib --flower --site SITE --parallel 1 4    # any task but BlazeFL's in Flower
    python benchmarks/field.py pfl-cifar10 --rounds 1500                     # ours alone, in full
    python benchmarks/field.py pfllib pfl-cifar10 --quick                    # random images: does everything work?
    python benchmarks/field.py --table field.jsonl                           # the results as a Markdown table

Every library runs in a process of its own, one after another, with the same threads and device, in float32
(--tensor-cores: TensorFloat-32). The samples and their division are ours, written in each library's form
(peers/forms.py), so that both sides have the same samples in the same clients; the number of steps is counted on both
sides and must be that of the task. A peer's code is run as it is, from copies named on the command line, with a clock
put around its rounds (peers/run_*.py). Time of a round: from the sampling of clients to the server's new state,
without evaluation, median from the third round on. FEDDWA_DATA names the folder with the datasets.

What a machine without network needs, made on one with it; `gpu/` then travels beside the repository (15 MiB):

    copy() { git clone -q "https://github.com/$2" "/tmp/$1" && mkdir -p "gpu/$1" &&
      git -C "/tmp/$1" archive HEAD "$3" | tar x -C "gpu/$1" && git -C "/tmp/$1" rev-parse HEAD > "gpu/$1/commit.txt"; }
    copy pfllib TsingZ0/PFLlib system; copy pfl apple/pfl-research benchmarks
    copy blazefl blazefl/blazefl examples/quickstart-fedavg
    pip download --no-deps --ignore-requires-python --dest gpu/wheels pfl==0.6.0 blazefl==2.0.3
    for wheel in gpu/wheels/*.whl; do python -m zipfile -e $wheel gpu/site; done      # all together 5 MiB

First journey, with the four files of Fashion-MNIST (30 MiB) in gpu/data/fashion_mnist; then with half of the Parquet
files of CIFAR-10 (100 MiB), which are copied to a place that stays; then with the other half:

    export FEDDWA_DATA=gpu/data PYTHONPATH=src
    python benchmarks/field.py pfllib --pfllib gpu/pfllib --rounds 5                              # about 2 minutes
    python benchmarks/field.py pfl-cifar10 --pfl gpu/pfl --site gpu/site --rounds 60              # about 1 minute
    python benchmarks/field.py pfl-cifar10                                # ours in full, 1,500 rounds: about 1 minute
    python benchmarks/field.py blazefl --blazefl gpu/blazefl --site gpu/site --rounds 3 --parallel 1 8    # 4 minutes

The minutes are estimates for an H200, none of them measured; --limit ends what takes longer. Flower's simulation needs
compiled packages for that machine's Python (`pip download --only-binary=:all: --python-version 3.12 'flwr[simulation]'`
without torch, numpy and uv: 105 MiB, of which Ray is 74 MiB, to be cut by `split -b 40m`).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers import clock, forms, recipes, record
from peers.meter import Meter

HERE = Path(__file__).resolve().parent
FIRST = 2  # rounds at the start that do not count
FOLDERS = {"pfllib": "system", "pfl": "benchmarks", "blazefl": "examples/quickstart-fedavg"}  # in each one's copy
PARALLEL = ("blazefl", "flower")  # can train clients at once, in processes of their own


def main() -> None:
    options = parse()
    if options.table:
        lines = [line for path in options.table for line in path.read_text(encoding="utf-8").splitlines()]
        print(record.table([json.loads(line) for line in lines]))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what runs ends with the benchmark
    cases = []
    for name in options.tasks:
        for job, write in jobs(name, options):
            cases.append(run(job, write))
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(cases[-1]) + "\n")
            print(f"{name:<12} {record.label(cases[-1]):<20} {cases[-1]['seconds']:>9.4f} s a round", flush=True)
    print(record.table(cases))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(recipes.RECIPES)}")
    for name in FOLDERS:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help="run it, from this copy of its repository")
        parser.add_argument(f"--{name}-python", default=sys.executable, metavar="PYTHON", help="of its environment")
    parser.add_argument("--flower", action="store_true", help="run it, from the environment's packages")
    parser.add_argument(
        "--site",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="folders with packages of peers",
    )
    parser.add_argument("--rounds", type=int, help="[the recipe's]")
    parser.add_argument("--clients", type=int, help="fewer of them, to try [the recipe's]")
    parser.add_argument("--share", default="1", help="share of the samples, to try [1]")
    parser.add_argument("--quick", action="store_true", help="1,200 random images, three rounds")
    parser.add_argument(
        "--parallel", type=int, nargs="+", default=[1], help="processes of BlazeFL and Flower, each tried"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of a library, all its processes together")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if shutil.which("nvidia-smi") else "cpu")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a library may take [600]")
    parser.add_argument("--tensor-cores", action="store_true", help="products in TensorFloat-32 on both sides")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("field.jsonl"), help="a line of JSON for every case is added")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print these results, run nothing")
    options = parser.parse_args()
    for name in options.tasks:
        if name not in recipes.RECIPES:
            parser.error(f"no task {name}; valid: {', '.join(recipes.RECIPES)}")
    for name, inside in FOLDERS.items():
        folder = getattr(options, name)
        if folder and not (folder / inside).is_dir():
            parser.error(f"--{name} {folder}: has no folder {inside}")
    if options.rounds is not None and options.rounds <= FIRST:
        parser.error(f"--rounds {options.rounds}: the first {FIRST} do not count; take at least {FIRST + 1}")
    if not (options.tasks or options.table):
        parser.error(f"name a task: {', '.join(recipes.RECIPES)}")
    if options.quick:
        options.share, options.rounds = recipes.MADE, options.rounds or FIRST + 1
    return options


@dataclass(frozen=True)
class Job:
    """One library on one task."""

    library: str
    parallel: int  # processes that train at once
    options: argparse.Namespace
    facts: dict[str, Any]  # of the task, as its runner reads them
    steps: float  # of a round, all clients together
    samples: float

    @property
    def commit(self) -> str | None:
        """The commit of the peer's copy, from its file commit.txt."""
        if self.library not in FOLDERS:
            return None
        file: Path = getattr(self.options, self.library) / "commit.txt"
        return file.read_text(encoding="utf-8").strip() if file.is_file() else None

    def command(self, folder: Path) -> list[str]:
        """The command that starts its runner."""
        words = [getattr(self.options, f"{self.library}_python", sys.executable)]
        words += [str(HERE / "peers" / f"run_{self.library}.py"), str(folder)]
        if self.library in FOLDERS:
            words.append(str(getattr(self.options, self.library).resolve() / FOLDERS[self.library]))
        return [*words, str(self.parallel)] if self.library in PARALLEL else words

    def environment(self) -> dict[str, str]:
        """The environment of its process: packages, threads, precision, and the samples of `recipes.samples`."""
        options, paths = self.options, [*(str(path.resolve()) for path in self.options.site), str(HERE.parent / "src")]
        own = {
            "OMP_NUM_THREADS": str(max(1, options.threads // self.parallel)),
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NVIDIA_TF32_OVERRIDE": "1" if options.tensor_cores else "0",
            recipes.CHOSEN: f"{self.facts['name']} {options.share}",
            clock.START: str(time.time()),
        }
        return {**os.environ, **own, **({"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {})}


def jobs(name: str, options: argparse.Namespace) -> Iterator[tuple[Job, Callable[[Path], None]]]:
    """A task for us and for every given peer, each with the function that writes its data."""
    recipe = recipes.RECIPES[name].sized(options.share, options.clients)
    rounds = options.rounds or recipe.rounds
    task = recipes.load(name, options.share, recipe.config(rounds, options.device, options.tensor_cores, options.seed))
    steps, samples = recipes.work(recipe, task)
    facts = {
        "name": name,
        "share": options.share,
        "rounds": rounds,
        "eval_every": recipe.eval_every or rounds,
        "clients": recipe.clients,
        "per_round": recipe.per_round,
        "each": task.dataset.train_count // recipe.clients,
        "epochs": 1,
        "server_lr": 1.0,
        "drop_last": False,
        "device": options.device,
        "tensor_cores": options.tensor_cores,
        "seed": options.seed,
        "shape": recipe.shape,
        "mean": task.dataset.mean,
        "std": task.dataset.std,
        **recipe.options,
    }
    for library in ("ours", *(peer for peer in recipe.peers if getattr(options, peer))):
        for parallel in options.parallel if library in PARALLEL else [1]:
            yield Job(library, parallel, options, facts, steps, samples), partial(forms.WRITERS[library], task)


def run(job: Job, write: Callable[[Path], None]) -> dict[str, Any]:
    """The recorded result."""
    with tempfile.TemporaryDirectory(prefix="field-") as name:
        folder, meter = Path(name), Meter(job.options.device == "cuda")
        write(folder)
        forms.write_facts(folder, job.facts)
        start = time.time()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                job.command(folder), stdout=log, stderr=log, env=job.environment(), cwd=folder, start_new_session=True
            )
            meter.watch(process.pid)
            try:
                status = process.wait(job.options.limit)
            except subprocess.TimeoutExpired:
                status = f"none in {job.options.limit} s"
            finally:  # whatever it has started ends with it
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        total = time.time() - start
        meter.stop()
        result = folder / clock.RESULT
        if status or not result.is_file():
            log = (folder / "log").read_text()
            sys.exit(f"{job.library} on {job.facts['name']} ended with status {status}:\n{log[-4000:]}")
        measured = json.loads(result.read_text())
    check_steps(job, measured["steps"])
    measured |= {"total": total, "host_mib": meter.host, "device_mib": meter.device}
    return facts_of(job) | record.figures(measured, job.steps, job.samples, FIRST)


def check_steps(job: Job, counted: Sequence[float]) -> None:
    """Stop unless a library made the task's rounds with the right number of steps."""
    rounds = job.facts["rounds"]
    if len(counted) != rounds or any(abs(each - job.steps) > 1e-6 * job.steps for each in counted):
        sys.exit(f"{job.library} on {job.facts['name']}: {counted} steps, not {rounds} rounds of {job.steps:g}")


def facts_of(job: Job) -> dict[str, Any]:
    """The task, library, hardware and versions."""
    options = job.options
    return {
        "task": job.facts["name"],
        "library": job.library,
        "parallel": job.parallel,
        "share": options.share,
        **{key: job.facts[key] for key in ("rounds", "clients", "per_round", "drop_last")},
        "dtype": "tf32" if options.tensor_cores else "float32",
        "device": options.device,
        "threads": options.threads,
        "hardware": record.hardware(options.device),
        "command": record.command(sys.argv[1:]),
        "commit": job.commit,
    }


if __name__ == "__main__":
    main()
