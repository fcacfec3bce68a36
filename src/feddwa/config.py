"""The configuration of a run: a dataclass that is the command line, the TOML file and the Python keyword arguments."""

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from feddwa import models, params
from feddwa.algorithms import ALGORITHMS, Algorithm
from feddwa.data.partition import PARTITIONS
from feddwa.errors import InputError, require, unknown

DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("vectorised", "sequential")
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Defaults:
    """Settings that depend on the dataset."""

    rounds: int = 100
    batch_size: int = 20
    lr: float = 0.01


PAPER = Defaults()
DATASET_DEFAULTS = {"digits": Defaults(rounds=40, batch_size=10, lr=0.1)}


@dataclass(frozen=True)
class RunConfig:
    """One run. Without any option: FedDWA on digits, 20 clients in 4 groups whose images are turned differently."""

    algorithm: str = "feddwa"
    """Name from `feddwa list algorithms`."""
    dataset: str = "digits"
    """Name from `feddwa list datasets`, or the path of own data."""
    data_dir: str | None = None
    """Folder with dataset files; default: the environment variable FEDDWA_DATA."""
    model: str | None = None
    """Name from `feddwa list models`; default: the dataset's."""
    partition: str = "rotations"
    """Name from `feddwa list partitions`: who has what."""
    clients: int = 20
    """Number of clients, N."""
    participation: float = 1.0
    """Share of the clients that take part in a round, above 0 and up to 1."""
    rounds: int | None = None
    """Communication rounds, T; default: 40 for digits, else the paper's 100."""
    epochs: int = 1
    """Local epochs a round, E."""
    batch_size: int | None = None
    """Local batch size, B; default: 10 for digits, else the paper's 20."""
    lr: float | None = None
    """Rate of local SGD; default: 0.1 for digits, else the paper's 0.01."""
    seed: int = 0
    """Seed of everything random: partition, initialisation, cohorts, batch order, dropout."""
    device: str = "auto"
    """auto, cpu or cuda."""
    backend: str = "vectorised"
    """vectorised (all clients as one program) or sequential (the plain loop, for debugging)."""
    dtype: str = "float32"
    """float32 or float64."""
    chunk: int | None = None
    """Clients trained together; default: as many as fit into memory."""
    out: str | None = None
    """Directory to write; default: runs/<time>-<name>."""
    param: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE, a hyper-parameter of the algorithm or partition; NAME.KEY=VALUE where both have it. Repeatable."""

    def resolved(self) -> "RunConfig":
        """The same with every default filled in and every value checked, hyper-parameters included."""
        defaults = DATASET_DEFAULTS.get(self.dataset, PAPER)
        config = dataclasses.replace(
            self,
            model=self.model or models.default_for(self.dataset),
            rounds=defaults.rounds if self.rounds is None else self.rounds,
            batch_size=defaults.batch_size if self.batch_size is None else self.batch_size,
            lr=defaults.lr if self.lr is None else self.lr,
        )
        config._check()
        return dataclasses.replace(config, param=tuple(config._all_parameters()))

    def make_algorithm(self) -> Algorithm:
        """The algorithm with its hyper-parameters."""
        return params.build(ALGORITHMS[self.algorithm], self._parameters()[0], f"algorithm {self.algorithm}")

    def partition_parameters(self) -> dict[str, str]:
        """The partition's hyper-parameters that were given."""
        return self._parameters()[1]

    def _check(self) -> None:
        names: dict[str, Iterable[str]] = {"algorithm": ALGORITHMS, "model": models.MODELS, "partition": PARTITIONS}
        names |= {"device": DEVICES, "backend": BACKENDS, "dtype": DTYPES}
        for field, valid in names.items():
            if getattr(self, field) not in list(valid):
                raise unknown(f"--{field}", getattr(self, field), valid)
        for field in ("clients", "rounds", "epochs", "batch_size", "chunk"):
            value = getattr(self, field)
            require(value is None or value >= 1, f"--{field.replace('_', '-')}", value, "at least 1")
        require(self.lr is not None and 0 <= self.lr < float("inf"), "--lr", self.lr, "a finite number, 0 or more")
        require(0 < self.participation <= 1, "--participation", self.participation, "above 0 and at most 1")
        enough = self.participation * self.clients >= 1 - 1e-9
        require(
            enough, "--participation", self.participation, f"at least 1/{self.clients}, one of {self.clients} clients"
        )
        require(0 <= self.seed < 2**63, "--seed", self.seed, "from 0 to 2^63 - 1")

    def _parameters(self) -> tuple[dict[str, str], dict[str, str]]:
        """--param sorted into (algorithm's, partition's)."""
        owners = {self.algorithm: ALGORITHMS[self.algorithm], self.partition: PARTITIONS[self.partition]}
        given: dict[str, dict[str, str]] = {owner: {} for owner in owners}
        for entry in self.param:
            owner, key, value = _parse(entry, owners)
            given[owner][key] = value
        return given[self.algorithm], given[self.partition]

    def _all_parameters(self) -> Iterable[str]:
        """Every hyper-parameter of the algorithm, defaults included, and those of the partition that were given."""
        for key, value in dataclasses.asdict(self.make_algorithm()).items():
            yield f"{self.algorithm}.{key}={value}"
        given = self.partition_parameters()
        params.build(PARTITIONS[self.partition], given, f"partition {self.partition}")  # for its checks
        for key, text in given.items():
            yield f"{self.partition}.{key}={text}"


def _parse(entry: str, owners: Mapping[str, type]) -> tuple[str, str, str]:
    """(owner, key, value) of a --param entry."""
    name, equals, value = entry.partition("=")
    require(bool(equals and name), "--param", entry, "of the form KEY=VALUE")
    owner, dot, key = name.rpartition(".")
    if dot and owner not in owners:
        raise InputError(f"--param {entry}: {owner} is not part of this run; valid: {', '.join(owners)}")
    known = {name: list(params.fields_of(cls)) for name, cls in owners.items()}
    holders = [owner] if dot else [name for name, keys in known.items() if key in keys]
    if len(holders) > 1:
        raise InputError(f"--param {entry}: {' and '.join(holders)} both have it; write {holders[0]}.{key}=...")
    if not holders or key not in known[holders[0]]:
        valid = "; ".join(f"{name}: {', '.join(keys) or 'none'}" for name, keys in known.items())
        raise InputError(f"--param {key}: no such hyper-parameter; valid for {valid}")
    return holders[0], key, value


def from_toml(path: str | Path, kind: type[RunConfig] = RunConfig) -> RunConfig:
    """Read a configuration file; keys are the options' names with underscores."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: not a TOML file: {error}") from None
    known = params.fields_of(kind)
    for key, value in values.items():
        if key not in known:
            raise unknown(f"--config {path}", key, known)
        values[key] = tuple(value) if isinstance(value, list) else params.convert(key, value, known[key][0], str(path))
    return kind(**values)


def to_toml(config: RunConfig) -> str:
    """The configuration as TOML that reads back to itself; JSON's literals are TOML's."""
    given = {key: value for key, value in dataclasses.asdict(config).items() if value is not None}
    return "".join(f"{key} = {_literal(value)}\n" for key, value in given.items())


def _literal(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + "".join(f"\n  {json.dumps(item)}," for item in value) + "\n]" if value else "[]"
    return json.dumps(value)
