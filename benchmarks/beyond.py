"""The experiments of docs/beyond.md: FedDWA+ beside other methods under label skew and concept shift.

python benchmarks/beyond.py --dataset cifar10 --time-limit 400    run what is missing, the most telling cells first
python benchmarks/beyond.py --dataset digits --seeds 40 41 42 43 44
python benchmarks/beyond.py --ablations weights federation        what the parts are worth
python benchmarks/beyond.py --tolerances                          measure those of ClusterFL
python benchmarks/beyond.py --page                                write the tables of docs/beyond.md from what is there

A method is a name, with hyper-parameters or other options behind it where they are not the defaults: "feddwa_plus
power=1.0", "fedrod clients=100". Results are the files that `feddwa reproduce` writes, too, in the same folder: a cell
that is there is not run again.
"""

import argparse
import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig
from feddwa.errors import InputError, unknown
from feddwa.paper.calibrate import column_norms
from feddwa.paper.cells import Cell, Schedule, run_cells
from feddwa.paper.specs import tuned
from feddwa.paper.store import Record, Store

SETTINGS: dict[str, dict[str, Any]] = {  # by worth: where the paper's method loses, where it wins, where none may lose
    "groups": {"partition": "groups"},
    "pathological": {"partition": "pathological"},
    "rotations": {"partition": "rotations"},
    "permutation": {"partition": "label-permutation"},
    "dirichlet": {"partition": "dirichlet"},
    "practical2": {  # as Table 2 has it, in the same files
        "partition": "dirichlet", "param": ("dirichlet.alpha=0.07",), "clients": 100, "participation": 0.2
    },
}  # fmt: skip
SMALL = ("digits",)  # data that are too few for a hundred clients
METHODS = ("feddwa_plus", *(name for name in ALGORITHMS if name != "feddwa_plus"))
EPS2 = {  # of ClusterFL, as --tolerances prints them, where the paper's tables have no such column
    "digits": {"practical1": 0.6, "pathological": 0.67, "rotations": 0.49, "permutation": 0.53, "dirichlet": 0.68},
    "cifar10": {"rotations": 0.78, "permutation": 0.89, "dirichlet": 0.82},
}
TUNED = {
    **tuned(),
    **{
        f"{dataset}/{setting}": {"clusterfl": [f"eps2={eps2}"]}
        for dataset, own in EPS2.items()
        for setting, eps2 in own.items()
    },
}
OPTIONS: Mapping[str, Callable[[str], Any]] = {  # of a run
    "clients": int, "participation": float, "batchnorm": str, "rounds": int
}  # fmt: skip
LEADING = ("feddwa_plus", "feddwa", "fedavg_ft", "fedrod")  # one of them is first in every setting of CIFAR-10


@dataclass(frozen=True)
class Ablation:
    """What parts or circumstances are worth: the same settings for every row."""

    dataset: str
    settings: tuple[str, ...]
    rows: Mapping[str, str]  # label -> method


ABLATIONS = {
    "digits": Ablation(
        "digits", ("groups", "pathological", "rotations", "permutation", "dirichlet"), {
            "FedDWA, as published (K = 5)": "feddwa",
            "the same from sketches of 256 numbers": "feddwa sketch=256",
            "FedDWA, two guidance epochs (K = 5)": "feddwa guidance_epochs=2",
            "FedDWA over everybody": "feddwa top_k=20",
            "FedDWA per layer, over everybody": "feddwa top_k=20 granularity=layer",
            "the same from sketches of 256 numbers a layer": "feddwa top_k=20 granularity=layer sketch=256",
            "FedDWA per tensor, over everybody": "feddwa top_k=20 granularity=tensor",
            "FedDWA per layer, over everybody, two guidance epochs":
                "feddwa top_k=20 granularity=layer guidance_epochs=2",
            "FedDWA+ (per layer, q = 2, k = 200)": "feddwa_plus",
            "FedDWA+ for the whole model": "feddwa_plus granularity=model",
            "FedDWA+ per tensor": "feddwa_plus granularity=tensor",
            "FedDWA+ with q = 1": "feddwa_plus power=1.0",
            "FedDWA+ with k = 20": "feddwa_plus prior=20.0",
            "FedDWA+ without class frequencies (k = 10^9)": "feddwa_plus prior=1e9",
        },
    ),
    "weights": Ablation(
        "cifar10", ("groups", "pathological", "permutation", "practical2"), {
            "FedDWA, as published (K = 5)": "feddwa",
            "FedDWA per layer (K = 5)": "feddwa granularity=layer",
            "FedDWA over everybody": "feddwa top_k=20",
            "FedDWA per layer, over everybody": "feddwa top_k=20 granularity=layer",
            "the same from sketches of 2,048 numbers a layer": "feddwa top_k=20 granularity=layer sketch=2048",
            "FedDWA per tensor, over everybody": "feddwa top_k=20 granularity=tensor",
            "FedDWA per layer, over everybody, two guidance epochs":
                "feddwa top_k=20 granularity=layer guidance_epochs=2",
            "FedDWA+ (per layer, q = 2, k = 200)": "feddwa_plus",
            "FedDWA+ for the whole model": "feddwa_plus granularity=model",
            "FedDWA+ with q = 1": "feddwa_plus power=1.0",
            "FedDWA+ with k = 20": "feddwa_plus prior=20.0",
            "FedDWA+ without class frequencies (k = 10^9)": "feddwa_plus prior=1e9",
        },
    ),
    "federation": Ablation(
        "cifar10", ("groups", "pathological"), {
            f"{ALGORITHMS[name].title}{text}": name + options
            for options, text, names in (
                ("", "", (*LEADING, "local")),
                (" batchnorm=mean", ", everybody's statistics", LEADING[:2]),
                (" batchnorm=all-local", ", all of BatchNorm local", LEADING[:2]),
                (" participation=0.5", ", half of the clients a round", LEADING),
                (" clients=100", ", N = 100", (*LEADING, "local")),
            )
            for name in names
        },
    ),
    "classes": Ablation(
        "tiny-imagenet-32", ("groups", "pathological", "practical2"), {
            **{ALGORITHMS[name].title: name for name in METHODS},
            "FedDWA, two guidance epochs": "feddwa guidance_epochs=2",
        },
    ),
    "breadth": Ablation(  # why it loses there
        "tiny-imagenet-32", ("practical2",), {
            "Local": "local",
            "FedDWA+": "feddwa_plus",
            "FedDWA+ for the whole model": "feddwa_plus granularity=model",
            "FedDWA+ per tensor": "feddwa_plus granularity=tensor",
            "FedDWA+ with q = 1": "feddwa_plus power=1.0",
            "FedDWA+ with q = 8": "feddwa_plus power=8.0",
            "FedDWA+ without class frequencies (k = 10^9)": "feddwa_plus prior=1e9",
            "FedDWA+, the last model in use (r = 0)": "feddwa_plus average=0.0",
            "FedDWA+, everybody's statistics of BatchNorm": "feddwa_plus batchnorm=mean",
            "FedDWA+, all of BatchNorm local": "feddwa_plus batchnorm=all-local",
            "FedDWA+, all clients in 20 rounds": "feddwa_plus participation=1.0 rounds=20",
            "Local, 500 rounds": "local rounds=500",
            "FedDWA+, 500 rounds": "feddwa_plus rounds=500",
        },
    ),
}  # fmt: skip
SEEDS = (0, 1, 2)
FOLDER = Path("results")
PAGE = Path("docs/beyond.md")


def config_of(dataset: str, setting: str, method: str) -> RunConfig:
    """The run of a cell, seed apart."""
    if setting not in SETTINGS:
        raise unknown("--settings", setting, SETTINGS)
    name, *values = method.split()
    if name not in ALGORITHMS:
        raise unknown("--methods", name, ALGORITHMS)
    column = f"{dataset}/{'practical1' if setting == 'groups' else setting}"  # what the paper's tables call it
    if wrong := [value for value in values if "=" not in value]:
        raise InputError(f"--methods: {wrong[0]!r} behind {name} is not of the form KEY=VALUE")
    given = dict(value.split("=", 1) for value in values)
    options = {key: OPTIONS[key](given.pop(key)) for key in OPTIONS if key in given}
    own = [f"{key}={value}" for key, value in given.items()] or TUNED.get(column, {}).get(name, [])
    param = (*(f"{name}.{value}" for value in own), *SETTINGS[setting].get("param", ()))
    chosen = {**SETTINGS[setting], **options, "algorithm": name, "dataset": dataset, "param": param}
    return RunConfig(**chosen).resolved()


def cells(options: argparse.Namespace) -> Iterator[RunConfig]:
    """Method by method: after each one there is a whole row of the table."""
    for name in options.ablations:
        if name not in ABLATIONS:
            raise unknown("--ablations", name, ABLATIONS)
        chosen = ABLATIONS[name]
        yield from _grid(chosen.dataset, options.settings or chosen.settings, chosen.rows.values())
    for dataset in [] if options.ablations else options.dataset:
        yield from _grid(dataset, options.settings or settings_of(dataset), options.methods)


def _grid(dataset: str, settings: Iterable[str], methods: Iterable[str]) -> Iterator[RunConfig]:
    for method in methods:
        for setting in settings:
            yield config_of(dataset, setting, method)


def settings_of(dataset: str) -> list[str]:
    """Those that its samples suffice for."""
    return [name for name, own in SETTINGS.items() if not (dataset in SMALL and own.get("clients", 0) > 20)]


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


def write_page(store: Store) -> None:
    """Put the tables into the page, each where it is announced: <!-- table: DATASET SEED ... -->, and the like."""
    kinds = {"table": _table, "ablation": _ablation, "bytes": _equal_bytes, "flops": _equal_flops}

    def table(found: re.Match[str]) -> str:
        kind, name, *seeds = found.group(1).replace(":", "").split()
        made = kinds[kind](store, name, [int(seed) for seed in seeds])
        return f"<!-- {found.group(1)} -->\n\n{made}\n\n<!-- end -->"

    text = PAGE.read_text(encoding="utf-8")
    new = re.sub(rf"<!-- ((?:{'|'.join(kinds)}): [\w ]+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)
    temporary = PAGE.with_suffix(".part")
    temporary.write_text(new, encoding="utf-8")
    os.replace(temporary, PAGE)


def _table(store: Store, dataset: str, seeds: list[int]) -> str:
    """Accuracy of every method in every setting, mean and standard deviation over seeds; gain over Local below it."""
    settings = settings_of(dataset)
    rows = {name: {s: _results(store, dataset, s, name, seeds) for s in settings} for name in METHODS}
    lines = _lines(settings, {ALGORITHMS[name].title: cells for name, cells in rows.items()})
    gains = [_gain(store, dataset, setting, seeds) for setting in settings]
    if any(gain != "-" for gain in gains):
        lines.append("| FedDWA+ over Local: mean client / worst tenth | " + " | ".join(gains) + " |")
    return "\n".join(lines)


def _ablation(store: Store, name: str, seeds: list[int]) -> str:
    """The same for what parts or circumstances are worth."""
    chosen = ABLATIONS[name]
    rows = {
        label: {setting: _results(store, chosen.dataset, setting, method, seeds) for setting in chosen.settings}
        for label, method in chosen.rows.items()
    }
    return "\n".join(_lines(list(chosen.settings), rows))


def _equal_bytes(store: Store, dataset: str, seeds: list[int]) -> str:
    """Accuracy when a client has sent and received what it does in all rounds of FedAvg."""
    return _at_equal_cost(store, dataset, seeds, lambda record: record["bytes_up"] + record["bytes_down"])


def _equal_flops(store: Store, dataset: str, seeds: list[int]) -> str:
    """The same for what it has computed."""
    return _at_equal_cost(store, dataset, seeds, lambda record: record["flops"])


def _at_equal_cost(store: Store, dataset: str, seeds: list[int], cost: Callable[[Record], float]) -> str:
    """Mean over seeds, and how many rounds that is."""
    settings = settings_of(dataset)
    lines = ["| accuracy, rounds | " + " | ".join(settings) + " |", "| --- |" + " --- |" * len(settings)]
    measure = {s: _records(store, dataset, s, "fedavg", seeds) for s in settings}
    for name in METHODS:
        found = {s: _records(store, dataset, s, name, seeds) for s in settings}
        cells = [
            _within(found[s], _cost(measure[s], cost) / _cost(found[s], cost)) if measure[s] and found[s] else "-"
            for s in settings
        ]
        lines.append(f"| {ALGORITHMS[name].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cost(records: Mapping[int, Record], cost: Callable[[Record], float]) -> float:
    """Of a client and round, mean over seeds; next to nothing where it is nothing."""
    return max(float(np.mean([cost(record) for record in records.values()])), 1e-9)


def _within(records: Mapping[int, Record], share: float) -> str:
    """What has been reached after a share of the rounds; a thousandth too few does not count."""
    curves = np.array([record["series"]["all"] for record in records.values()])
    rounds = min(int((curves.shape[1] - 1) * share * 1.001), curves.shape[1] - 1)
    return f"{curves[:, rounds].mean():.1f}, {rounds}"


def _lines(settings: list[str], rows: dict[str, dict[str, dict[int, float]]]) -> list[str]:
    lines = ["| | " + " | ".join(settings) + " |", "| --- |" + " --- |" * len(settings)]
    for label, cells in rows.items():
        if any(cells.values()):
            lines.append(f"| {label} | " + " | ".join(_cell(list(cells[name].values())) for name in settings) + " |")
    return lines


def _results(store: Store, dataset: str, setting: str, method: str, seeds: list[int]) -> dict[int, float]:
    known = _records(store, dataset, setting, method, seeds)
    return {seed: record["series"]["all"][-1] for seed, record in known.items()}


def _records(store: Store, dataset: str, setting: str, method: str, seeds: list[int]) -> dict[int, Record]:
    """By seed. With full participation FedAvg_FT is FedAvg after its epoch, and need not have been run."""
    known = ((seed, store.find(config_of(dataset, setting, method), seed)) for seed in seeds)
    found = {seed: record for seed, record in known if record is not None}
    if method != "fedavg_ft" or "participation" in SETTINGS[setting]:
        return found
    trained = _records(store, dataset, setting, "fedavg", [seed for seed in seeds if seed not in found])
    tuned_by_training = {
        seed: {**record, "series": {"all": [float("nan"), *record["series"]["after"]]}}
        for seed, record in trained.items()
    }
    return found | tuned_by_training


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else f"{values[0]:.1f} (one seed)"


def _gain(store: Store, dataset: str, setting: str, seeds: list[int]) -> str:
    pairs = [
        [store.find(config_of(dataset, setting, method), seed) for method in ("feddwa_plus", "local")] for seed in seeds
    ]
    known = [np.subtract(own["clients"], alone["clients"]) for own, alone in pairs if own and alone]
    if not known:
        return "-"
    gains = np.sort(np.concatenate(known))
    return f"{gains.mean():+.1f} / {gains[: max(1, len(gains) // 10)].mean():+.1f}"


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
    parser.add_argument("--page", action="store_true", help="write the tables of docs/beyond.md, run nothing")
    options = parser.parse_args()
    store = Store(options.results)
    try:
        if options.page:
            write_page(store)
        elif options.tolerances:
            print_tolerances(options)
        else:
            run_missing(options, store)
    except InputError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
