"""`feddwa federate`: try a federation of real processes on this machine."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from feddwa.cli.outcome import show_outcome
from feddwa.flower.settings import FlowerConfig
from feddwa.params import AtMost
from feddwa.plugins import label


@dataclass(frozen=True)
class FederateConfig(FlowerConfig):
    """Try a federation on this machine: a SuperLink and SuperNodes of Flower, with TLS and node keys, and one run."""

    nodes: Annotated[int, AtMost(1000)] = 3
    """SuperNodes, among which the clients are divided."""
    insecure: bool = False
    """Neither TLS nor keys; only this machine can connect in any case."""


def federate_command(options: FederateConfig) -> int:
    """`feddwa federate`."""
    plain = FlowerConfig(**{field.name: getattr(options, field.name) for field in dataclasses.fields(FlowerConfig)})
    config = plain.resolved()

    from feddwa.flower.federate import federate
    from feddwa.report.progress import progress
    from feddwa.report.terminal import make_console
    from feddwa.results import runs

    path = options.out or str(runs.default_path(options.algorithm, options.dataset))
    config, console = dataclasses.replace(config, out=path), make_console()
    try:
        with progress(console, label(config.algorithm), config.rounds or 0) as observe:
            tell = partial(console.print, highlight=False, markup=False, soft_wrap=True)
            result = federate(config, options.nodes, options.insecure, observe, tell)
    except (KeyboardInterrupt, OSError, RuntimeError) as error:
        if runs.unfinished(Path(path)):
            error.add_note(f"the same command with --out {path} continues it")
        raise
    return show_outcome(console, {label(config.algorithm): result}, Path(path))
