"""The configuration of a run: a dataclass that is the command line, the TOML file and the Python keyword arguments.

Imports that need torch are inside functions, so that help and option errors do not wait for them.
"""

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from feddwa import params
from feddwa.data.catalogue import defaults_of, is_named
from feddwa.data.options import DataOptions
from feddwa.errors import require, unknown
from feddwa.options.adapter import AdapterOptions
from feddwa.options.evaluation import EvaluationOptions, held_out
from feddwa.options.privacy import PrivacyOptions
from feddwa.options.robustness import RobustnessOptions
from feddwa.options.tracking import TrackingOptions
from feddwa.options.training import TrainingOptions
from feddwa.params import AtMost, Option, Repeats
from feddwa.plugins import (
    ALGORITHMS,
    ATTACKS,
    DATASETS,
    DEFENCES,
    LOSSES,
    METRICS,
    MODELS,
    PARTITIONS,
    by_owners,
    label,
    located,
    metric_of,
)

if TYPE_CHECKING:
    from feddwa.algorithms import Algorithm
    from feddwa.attacks import Attack
    from feddwa.defences import Defence

DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("vectorised", "sequential", "auto")
DTYPES = ("float32", "tf32", "float64", "bfloat16")
POLICIES = ("local", "mean", "all-local")  # see feddwa.batchnorm
CLIENTS = 20
# Fields that do not change a run's result, except for rounding.
WHERE_AND_HOW = (
    "data_dir", "device", "backend", "chunk", "checkpoint_every", "save_models", "metrics", "out", "track", "callbacks",
    "eval_every", "eval_clients", "eval", "state",
)  # fmt: skip


@dataclass(frozen=True)
class RunConfig(
    TrackingOptions, TrainingOptions, AdapterOptions, PrivacyOptions, RobustnessOptions, EvaluationOptions, DataOptions
):  # fmt: skip
    """One run. Default: FedDWA on digits, 20 clients in 4 groups with differently rotated images."""

    algorithm: str = "feddwa"
    """Name from `feddwa list algorithms`, MODULE:CLASS or FILE.py:CLASS."""
    dataset: str = "digits"
    """Name from `feddwa list datasets`, a path, or MODULE:FUNCTION."""
    data_dir: str | None = None
    """Folder with dataset files; default: the environment variable FEDDWA_DATA."""
    model: str | None = None
    """`feddwa list models`, MODULE:CLASS or timm:NAME; default: the dataset's."""
    model_arg: Annotated[tuple[str, ...], Option(metavar="KEY=VALUE", repeated=True)] = ()
    """KEY=VALUE, an argument of the network's constructor (`feddwa list models NAME`). Repeatable."""
    partition: str | None = None
    """`feddwa list partitions`, MODULE:NAME [rotations; owners natural; else iid]."""
    clients: int | None = None
    """Number of clients, N; default: 20, fewer on small own data, or with `natural` the data's owners."""
    participation: float = 1.0
    """Share of the clients that take part in a round, above 0 and up to 1."""
    rounds: Annotated[int, AtMost(100_000)] | None = None
    """Communication rounds, T; default: the dataset's (the paper's: 100)."""
    epochs: Repeats = 1
    """Local epochs a round, E."""
    batch_size: int | None = None
    """Local batch size, B; default: 10 for digits and own data, else 20."""
    lr: float | Literal["auto"] | None = None
    """Rate of local SGD, or auto: tried on the first client [paper's 0.01; digits, own data 0.1, images 0.01]."""
    loss: str | None = None
    """cross-entropy, mse, mae, huber, bce or MODULE:FUNCTION [cross-entropy for classes, mse for numbers]."""
    metrics: Annotated[tuple[str, ...], Option(metavar="NAME", flag="--metric", repeated=True)] = ()
    """Also measure macro-f1, rmse, ... (`feddwa list metrics`) or NAME=MODULE:FUNCTION. Repeatable."""
    seed: Annotated[int, AtMost(2**63 - 1)] = 0
    """Seed of everything random: partition, initialisation, cohorts, batch order, dropout."""
    device: str = "auto"
    """auto, cpu or cuda."""
    backend: str = "vectorised"
    """vectorised (all clients as one program), sequential (the plain loop) or auto (vectorised if possible)."""
    dtype: str = "float32"
    """float32, float64, bfloat16, or tf32: float32 whose products have three digits, faster on a GPU."""
    batchnorm: str = "local"
    """BatchNorm policy: local statistics, mean of the statistics, or all-local (FedBN: scale and shift stay, too)."""
    chunk: int | None = None
    """Clients trained together; default: as many as fit into memory."""
    state: Literal["auto", "device", "host", "disk"] = "auto"
    """Where all clients' models and memories are kept between rounds; auto: the first with enough free memory."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints, from which `feddwa resume` continues; 0 = none."""
    save_models: bool = True
    """Keep every client's trained model in the run directory, for `feddwa export`, `predict` and `adapt`."""
    out: str | None = None
    """Directory to write; default: runs/<time>-<name>."""
    param: Annotated[tuple[str, ...], Option(metavar="KEY=VALUE", repeated=True)] = ()
    """KEY=VALUE, of algorithm, partition, attack or defence; NAME.KEY=VALUE where two have it. Repeatable."""

    def resolved(self) -> Self:
        """The configuration with all defaults filled in and all values checked, hyper-parameters included.

        For own data `partition`, `clients`, `model`, `batch_size` and `lr`, and with partition natural `clients`, stay
        None until the data are loaded: `build.completed` fills them in.
        """
        config = self.checked().defended(ALGORITHMS.find(self.algorithm).defence)

        from feddwa import models

        if config.model is not None:
            models.find(config.model, config.model_arg)
        adapter = models.adapters.read(config.adapter_arg).entries if config.adapter else ()
        config.callback_classes()
        return dataclasses.replace(config, adapter_arg=adapter, param=tuple(config._all_parameters()))

    def checked(self) -> Self:
        """The configuration with known names, numbers within bounds and defaults except for the model; imports nothing.

        Paths of data become absolute, so that a run can be resumed from any folder.
        """
        kinds = params.fields_of(type(self))
        given = {key: params.typed(_option(key), getattr(self, key), kind) for key, (kind, _) in kinds.items()}
        defaults = defaults_of(self.dataset)
        given["data_dir"] = _located(given["data_dir"])
        if self.usual_partition is None:
            given["dataset"] = _located(given["dataset"])
        for key in ("algorithm", "dataset", "partition", "loss"):
            given[key] = given[key] and located(given[key])
        given["callbacks"] = tuple(map(located, given["callbacks"]))
        given |= self.located_robustness()
        given["metrics"] = tuple(_located_metric(entry) for entry in given["metrics"])
        given["model"] = given["model"] and _located_model(given["model"])
        partition = given["partition"] or self.usual_partition
        named = is_named(self.dataset)
        clients = CLIENTS if named and partition is not None and not by_owners(partition) else None
        filled: dict[str, Any] = {"partition": partition, "clients": clients, "rounds": defaults.rounds}
        if named:
            filled |= {"model": defaults.model, "batch_size": defaults.batch_size, "lr": defaults.lr}
        given |= {key: value for key, value in filled.items() if given[key] is None}
        config = dataclasses.replace(self, **given)
        config._check()
        return config

    @property
    def members(self) -> int | None:
        """Number of clients in the federation, without held-out ones; None if it is not known yet."""
        return None if self.clients is None else self.clients - held_out(self.holdout_clients, self.clients)

    @property
    def usual_partition(self) -> str | None:
        """The default partition of a named dataset; None for own data, which determine it."""
        return defaults_of(self.dataset).partition

    def make_algorithm(self) -> "Algorithm":
        """The algorithm with its hyper-parameters."""
        kind: type[Algorithm] = ALGORITHMS.find(self.algorithm)
        return params.build(kind, self.algorithm_parameters(), f"algorithm {label(self.algorithm)}")

    def make_attacks(self) -> "tuple[tuple[Attack, float], ...]":
        """The attacks with their parameters, and the share of the clients that each has."""
        given = self._parameters()
        return tuple(
            (params.build(ATTACKS.find(name), given[label(name)], f"attack {label(name)}"), share)
            for name, share in self.attacks.items()
        )

    def make_defences(self) -> "tuple[Defence, ...]":
        """The defences with their parameters, in the order in which they act."""
        given, names = self._parameters(), {label(name): DEFENCES.find(name) for name in self.defences}
        return tuple(params.build(kind, given[name], f"defence {name}") for name, kind in names.items())

    def algorithm_parameters(self) -> dict[str, str]:
        """The algorithm's hyper-parameters that were given."""
        return self._parameters()[label(self.algorithm)]

    def partition_parameters(self) -> dict[str, str]:
        """The partition's hyper-parameters that were given."""
        return self._parameters()[label(self.partition or "")] if self.partition else {}

    def _check(self) -> None:
        """Raise unless names are known and numbers within their bounds."""
        ALGORITHMS.check(self.algorithm)
        if self.model is not None:
            MODELS.check(self.model.partition("@")[0])
        if self.partition is not None:
            PARTITIONS.check(self.partition)
        if self.loss is not None:
            LOSSES.check(self.loss)
        taken = ["accuracy", "loss"]
        for name, function in map(metric_of, self.metrics):
            METRICS.check(function)
            require(name not in taken, "--metric", name, "another name, which no other metric has")
            taken.append(name)
        names = {"device": DEVICES, "backend": BACKENDS, "dtype": DTYPES, "batchnorm": POLICIES}
        for field, valid in names.items():
            if getattr(self, field) not in list(valid):
                raise unknown(f"--{field}", getattr(self, field), valid)
        for field in ("clients", "rounds", "epochs", "batch_size", "chunk"):
            value = getattr(self, field)
            require(value is None or value >= 1, _option(field), value, "at least 1")
        known = self.lr in (None, "auto") or 0 <= float(self.lr or 0) < float("inf")
        require(known, "--lr", self.lr, "a finite number, 0 or more, or auto")
        require(0 < self.participation <= 1, "--participation", self.participation, "above 0 and at most 1")
        self.check_evaluation()
        members = self.members
        nobody = members is not None and self.participation * members < 1 - 1e-9
        require(not nobody, "--participation", self.participation, f"at least 1/{members}: one client a round")
        require(self.checkpoint_every >= 0, "--checkpoint-every", self.checkpoint_every, "0 or more")
        require(self.seed >= 0, "--seed", self.seed, "from 0 to 2^63 - 1")
        if self.given() and DATASETS.knows(self.dataset):
            self.refuse_given(f"is about own data, and dataset {label(self.dataset)} is not read from files of yours")
        self.check_options()
        self.check_training()
        self.check_adapter()
        self.check_rounds(self.rounds, self.epochs)
        self.check_robustness(members, self.participation)
        self.check_privacy(self.lr, ",".join(self.defences), self.batchnorm, self.holdout_clients)
        self.check_tracking()

    def owners(self) -> dict[str, type]:
        """Label -> class of everything whose fields --param sets: the algorithm first."""
        hostile = [*((ATTACKS, name) for name in self.attacks), *((DEFENCES, name) for name in self.defences)]
        names = ((ALGORITHMS, self.algorithm), (PARTITIONS, self.partition), *hostile)
        found: dict[str, type] = {}
        for registry, name in names:
            if name is not None:
                where, valid = f"--{registry.kind}", "of another name than the rest of the run, for --param's sake"
                require(label(name) not in found, where, name, valid)
                found[label(name)] = registry.find(name)
        return found

    def usual_parameters(self) -> set[str]:
        """Every parameter at its default, as `param` has it."""
        known = {owner: params.fields_of(kind) for owner, kind in self.owners().items()}
        return {f"{owner}.{key}={usual}" for owner, own in known.items() for key, (_, usual) in own.items()}

    def _parameters(self) -> dict[str, dict[str, str]]:
        """--param by its owner."""
        owners = self.owners()
        given: dict[str, dict[str, str]] = {owner: {} for owner in owners}
        for entry in self.param:
            owner, key, value = params.assigned(entry, owners)
            require(key not in given[owner], "--param", entry, f"the only value of {owner}.{key}; it is given twice")
            given[owner][key] = value
        return given

    def _all_parameters(self) -> Iterable[str]:
        """Every parameter of algorithm, partition, attacks and defences, defaults included."""
        parts: dict[str, object] = {label(self.algorithm): self.make_algorithm()}
        if self.partition is not None:
            from feddwa.data import partition as partitions

            scheme = partitions.make_scheme(self.partition, self.partition_parameters(), self.dataset)
            parts[label(self.partition)] = scheme
        parts |= {label(name): each for name, (each, _) in zip(self.attacks, self.make_attacks(), strict=True)}
        parts |= dict(zip(map(label, self.defences), self.make_defences(), strict=True))
        for owner, part in parts.items():
            for key in params.fields_of(type(part)):
                yield f"{owner}.{key}={getattr(part, key)}"


def options_of(config: Any, leaving_out: Iterable[str] = ()) -> dict[str, Any]:
    """Name -> value of the fields of a configuration, without some."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in leaving_out]
    return {name: getattr(config, name) for name in names}


def _located(path: str | None) -> str | None:
    """A path from the root on, so that it leads there from any folder; what is not there stays as it is."""
    try:
        return path if path is None or not os.path.exists(path) else os.path.abspath(path)
    except ValueError:  # a zero byte
        return path


def _located_model(name: str) -> str:
    """A model's name whose files, of code and behind @ of parameters, are named from the root on."""
    plain, at, file = name.partition("@")
    return located(plain) + (f"@{os.path.abspath(file)}" if at else "")


def _located_metric(entry: str) -> str:
    name, function = metric_of(entry)
    return entry if name == label(function) else f"{name}={located(function)}"


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
