"""Several seeds of one experiment: the option, and the run directories inside a directory.

    DIR/seeds.toml            every option, defaults filled in; `feddwa run --config` repeats the runs
    DIR/seed-0, DIR/seed-1    a run directory each, as of `feddwa run --seed 0`

A comparison has compare.toml and DIR/METHOD, or with several seeds DIR/METHOD/seed-0. `feddwa federate --seeds` has
federate.toml in place of seeds.toml.
"""

import contextlib
import dataclasses
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from feddwa.config import RunConfig, options_of
from feddwa.errors import require
from feddwa.params import AtMost, Option
from feddwa.plugins import label

Config = TypeVar("Config", bound=RunConfig)

COMPARISON, SEEDS, FEDERATIONS = "compare.toml", "seeds.toml", "federate.toml"
MOST = 1000  # seeds in one directory


@dataclass(frozen=True)
class SeedOptions:
    """Several seeds in one command."""

    seeds: Annotated[tuple[Annotated[int, AtMost(2**63 - 1)], ...] | None, Option(metavar="N", instead_of="seed")] = (
        None
    )
    """Several seeds in place of --seed, trained in lockstep; results are means, spreads and intervals."""


@dataclass(frozen=True)
class SeededConfig(SeedOptions, RunConfig):
    """One run, or the same run from several seeds: the content of seeds.toml."""

    def run_config(self) -> RunConfig:
        """The options of a single run."""
        return RunConfig(**{name: getattr(self, name) for name in options_of(RunConfig())})

    def _check(self) -> None:
        super()._check()
        if self.seeds is not None:
            check_seeds(self.seeds)


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise unless there is at least one seed and all are different."""
    require(len(seeds) > 0, "--seeds", "none", "one seed or more")
    for seed, count in Counter(seeds).items():
        require(seed >= 0, "--seeds", seed, "from 0 to 2^63 - 1")
        require(count == 1, "--seeds", seed, "given once")
    require(len(seeds) <= MOST, "--seeds", f"{len(seeds)} of them", f"at most {MOST}")


def folder_of(path: Path, seed: int) -> Path:
    """The run directory of a seed."""
    return path / f"seed-{seed}"


def each_seed(config: Config, seeds: Sequence[int], path: Path | None) -> list[Config]:
    """A configuration for each seed, with its own directory in `path`, if given."""
    return [
        dataclasses.replace(config, seed=seed, out=None if path is None else str(folder_of(path, seed)))
        for seed in seeds
    ]


def members(path: Path) -> list[Path]:
    """The run directories inside that of a comparison or of several seeds, finished or not; empty for any other."""
    for file in (COMPARISON, SEEDS, FEDERATIONS):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            given = tomllib.loads((path / file).read_text(encoding="utf-8"))
            methods = [path / label(name) for name in given["algorithms"]] if file == COMPARISON else [path]
            seeds = given.get("seeds")
            return methods if seeds is None else [folder_of(own, seed) for own in methods for seed in seeds]
    return []
