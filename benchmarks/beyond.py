"""The experiments of docs/beyond.md: FedDWA+ beside other methods under label skew and concept shift.

python benchmarks/beyond.py --dataset cifar10 --time-limit 400    run what is missing, the most telling cells first
python benchmarks/beyond.py --dataset digits --seeds 40 41 42 43 44
python benchmarks/beyond.py --ablations weights federation        what the parts contribute
python benchmarks/beyond.py --tolerances                          measure those of ClusterFL
python benchmarks/beyond.py --page                                write the tables and the figure of docs/beyond.md

A method is a name, with hyper-parameters or other options behind it where they are not the defaults: "feddwa_plus
power=1.0", "fedrod clients=100". Results are the files that `feddwa reproduce` writes, too, in the same folder: a cell
that is there is not run again.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

from beyond_cells import METHODS, cells, config_of, settings_of
from beyond_page import PAGE, write_page

from feddwa.errors import InputError
from feddwa.paper.calibrate import column_norms
from feddwa.paper.cells import Cell, Schedule, run_cells
from feddwa.paper.store import Store

SEEDS = (0, 1, 2)
FOLDER = Path("results")


def print_tolerances(options: argparse.Namespace) -> None:
    """What the rule of the reproduction gives for ClusterFL."""
    for dataset in options.dataset:
        for setting in options.settings or settings_of(dataset):
            config = dataclasses.replace(config_of(dataset, setting, "clusterfl"), **_here(options))
            print(f"{dataset} {setting}: eps2={column_norms(config).eps2}", flush=True)


def _here(options: argparse.Namespace) -> dict[str, Any]:
    return {"data_dir": options.data_dir, "device": options.device, "dtype": options.dtype}


def run_missing(options: argparse.Namespace, store: Store) -> None:
    """Every cell that is not there, all its seeds as one stack; none is begun once time is up."""
    deadline = time.time() + options.time_limit if options.time_limit else None
    wanted = [
        Cell(
            f"{config.dataset} {config.partition} {config.clients} {config.algorithm}",
            config,
            len(options.seeds),
            missing,
        )
        for config in cells(options)
        if (missing := store.missing(config, options.seeds))
    ]
    progress = run_cells(
        wanted, Schedule(store.folder, _here(options), options.jobs, deadline), lambda line: print(line, flush=True)
    )
    print(f"made {progress.made}, left {progress.left}, failed {len(progress.failed)}")


def main() -> None:
    """Options in, results out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=["digits"])
    parser.add_argument("--settings", nargs="+", default=[], help="default: all that the data suffice for")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--ablations", nargs="+", default=[], help="instead of --dataset and --methods: these tables")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--results", type=Path, default=FOLDER)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--jobs", type=int, default=1, help="cells at work at once")
    parser.add_argument("--time-limit", type=float, default=None, help="begin no cell after so many seconds")
    parser.add_argument("--tolerances", action="store_true", help="measure eps2 of ClusterFL, run nothing else")
    parser.add_argument("--page", action="store_true", help="write tables and figure of docs/beyond.md, run nothing")
    options = parser.parse_args()
    store = Store(options.results)
    try:
        if options.page:
            write_page(store, PAGE)
        elif options.tolerances:
            print_tolerances(options)
        else:
            run_missing(options, store)
    except InputError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
