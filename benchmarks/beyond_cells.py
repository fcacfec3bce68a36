"""What benchmarks/beyond.py runs: settings, methods and ablations, and the run of each cell."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig
from feddwa.errors import InputError, unknown
from feddwa.paper.specs import tuned

# Most important first: where the paper's method loses, where it wins, where none may lose.
SETTINGS: dict[str, dict[str, Any]] = {
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
    """What single parts or circumstances change: the same settings for every row."""

    dataset: str
    settings: tuple[str, ...]
    rows: Mapping[str, str]  # label -> method


FROZEN = {  # whether it matters that weights go on changing
    "FedDWA+": "feddwa_plus",
    "FedDWA+, weights of round 1 in all rounds": "feddwa_plus freeze=1",
    "FedDWA+, weights of round 10 in all later rounds": "feddwa_plus freeze=10",
}
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
    "frozen": Ablation("cifar10", ("groups", "pathological", "rotations", "permutation"), FROZEN),
    "frozen_digits": Ablation("digits", ("groups", "pathological", "rotations", "permutation", "dirichlet"), FROZEN),
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
