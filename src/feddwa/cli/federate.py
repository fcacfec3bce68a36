"""`feddwa federate`: try a federation of real processes on this machine."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from feddwa.cli.outcome import show_outcome
from feddwa.config_file import from_toml, to_toml
from feddwa.errors import InputError
from feddwa.flower.settings import FlowerConfig
from feddwa.params import AtMost
from feddwa.plugins import label
from feddwa.seeds import FEDERATIONS, SeedOptions, check_seeds, each_seed

if TYPE_CHECKING:
    from feddwa.result import Result


@dataclass(frozen=True)
class FederateConfig(SeedOptions, FlowerConfig):
    """Try a federation on this machine: a SuperLink and SuperNodes of Flower, with TLS and node keys, and one run."""

    nodes: Annotated[int, AtMost(1000)] = 3
    """SuperNodes, among which the clients are divided."""
    insecure: bool = False
    """Neither TLS nor keys; only this machine can connect in any case."""


def federate_command(options: FederateConfig) -> int:
    """`feddwa federate`."""
    plain = FlowerConfig(**{field.name: getattr(options, field.name) for field in dataclasses.fields(FlowerConfig)})
    if options.seeds is not None:
        check_seeds(options.seeds)
    config = plain.resolved()

    from feddwa.build import load_task
    from feddwa.flower.federate import federate, read_back
    from feddwa.report.progress import jobs
    from feddwa.report.terminal import make_console
    from feddwa.result import Results
    from feddwa.results import runs

    path = Path(options.out or runs.default_path(options.algorithm, options.dataset))
    seeds, name, console = options.seeds, label(config.algorithm), make_console()
    configs = [dataclasses.replace(config, out=str(path))] if seeds is None else each_seed(config, seeds, path)
    if seeds is not None:
        _begin(path, options)
    found: dict[int, Result] = {}
    try:
        with jobs(console, len(configs), "seeds") as job:
            for each in configs:
                if seeds is not None and (Path(str(each.out)) / runs.RECORD).exists():
                    found[each.seed] = read_back(Path(str(each.out)), load_task(each))
                    continue
                with job(name if seeds is None else f"{name}, seed {each.seed}", each.rounds or 0) as observe:
                    tell = partial(console.print, highlight=False, markup=False, soft_wrap=True)
                    found[each.seed] = federate(each, options.nodes, options.insecure, observe, tell)
    except (KeyboardInterrupt, OSError, RuntimeError) as error:
        if runs.unfinished(path):
            error.add_note(f"the same command with --out {path} continues it")
        raise
    result = found[config.seed] if seeds is None else Results(found, str(path))
    return show_outcome(console, {name: result}, path)


def _begin(path: Path, options: FederateConfig) -> None:
    """Write the options of the federations, one per seed; a continued one must have the same options."""
    from feddwa.results.runs import check_free, unfinished
    from feddwa.storage import write_whole

    if not unfinished(path):
        check_free(str(path))
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / FEDERATIONS, to_toml(options))
    elif not (path / FEDERATIONS).exists() or from_toml(path / FEDERATIONS, FederateConfig) != dataclasses.replace(
        options, out=None
    ):
        raise InputError(f"--out {path}: has unfinished runs with other options, or of another command")
