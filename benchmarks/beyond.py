"""The experiments of docs/beyond.md: FedDWA+ beside other methods under label skew and concept shift.

python benchmarks/beyond.py --dataset cifar10 --time-limit 400    run what is missing, the most telling cells first
python benchmarks/beyond.py --dataset digits --seeds 10 11 12 13 14
python benchmarks/beyond.py --page                                write the tables of docs/beyond.md from what is there

A method is a name, with hyper-parameters behind it where they are not the defaults: "feddwa_plus power=2". Results are
the files that `feddwa reproduce` writes, too, in the same folder: a cell that is there is not run again.
"""

import argparse
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig
from feddwa.errors import InputError, unknown
from feddwa.paper.run import record_of, run_cell, task
from feddwa.paper.store import Store

SETTINGS = {  # by worth: where the paper's method loses, where it wins, where nothing may be lost
    "groups": "groups",
    "pathological": "pathological",
    "rotations": "rotations",
    "permutation": "label-permutation",
    "dirichlet": "dirichlet",
}
METHODS = ("feddwa_plus", "fedavg", "feddwa", "local")
SEEDS = (0, 1, 2)
FOLDER = Path("results")


def config_of(dataset: str, setting: str, method: str) -> RunConfig:
    """The run of a cell, seed apart."""
    if setting not in SETTINGS:
        raise unknown("--settings", setting, SETTINGS)
    name, *values = method.split()
    if name not in ALGORITHMS:
        raise unknown("--methods", name, ALGORITHMS)
    own = tuple(f"{name}.{value}" for value in values)
    return RunConfig(algorithm=name, dataset=dataset, partition=SETTINGS[setting], param=own).resolved()


def cells(datasets: list[str], settings: list[str], methods: list[str]) -> Iterator[RunConfig]:
    """Method by method: after each one there is a whole row of the table."""
    for dataset in datasets:
        for method in methods:
            for setting in settings:
                yield config_of(dataset, setting, method)


def run_missing(options: argparse.Namespace, store: Store) -> None:
    """Every cell that is not there, all its seeds as one stack; none is begun once time is up."""
    start = time.monotonic()
    for config in list(cells(options.dataset, options.settings, options.methods)):
        missing = store.missing(config, options.seeds)
        name = f"{config.dataset} {config.partition} {config.algorithm}"
        if not missing or (options.time_limit and time.monotonic() - start > options.time_limit):
            print(f"{name}: {'there' if not missing else 'no time left'}", flush=True)
            continue
        here = dataclasses.replace(config, data_dir=options.data_dir, device=options.device, dtype=options.dtype)
        for outcome in run_cell(here, missing, _task_of(here), _work_of(store, here)):
            store.save(config, record_of(here, outcome))
            print(f"{name}, seed {outcome.seed}: {outcome.lines[-1]['before']['all']:.2f}", flush=True)


def _task_of(config: RunConfig):  # type: ignore[no-untyped-def]
    return lambda seed: task(config, seed)


def _work_of(store: Store, config: RunConfig):  # type: ignore[no-untyped-def]
    return lambda seed: store.work(config, seed)


def main() -> None:
    """Options in, results out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=["digits"])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--results", type=Path, default=FOLDER)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--time-limit", type=float, default=None, help="begin no cell after so many seconds")
    options = parser.parse_args()
    try:
        run_missing(options, Store(options.results))
    except InputError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
