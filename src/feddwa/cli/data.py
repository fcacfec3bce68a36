"""Commands that show what there is: `feddwa partition`, `list`."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from feddwa import models
from feddwa.algorithms import ALGORITHMS, REGISTRY
from feddwa.config import RunConfig
from feddwa.data import partition as partitions
from feddwa.data import sources
from feddwa.data.catalogue import DATASETS
from feddwa.data.partition import PARTITIONS
from feddwa.plugins import Registry
from feddwa.report.terminal import make_console


@dataclass(frozen=True)
class PartitionConfig:
    """Draw who has which data, and say how different the clients are."""

    dataset: str = "digits"
    """Name from `feddwa list datasets`, a path, or MODULE:FUNCTION."""
    data_dir: str | None = None
    """Folder with dataset files; default: the environment variable FEDDWA_DATA."""
    partition: str | None = None
    """`feddwa list partitions`, MODULE:NAME [rotations; own data: natural or iid]."""
    clients: int | None = None
    """Number of clients, N; default: 20, or with partition natural the data's owners."""
    seed: int = 0
    """The same seed as in `feddwa run` gives the same partition."""
    param: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE, a hyper-parameter of the partition. Repeatable."""
    out: str | None = None
    """Picture to write (.png, .svg or .pdf)."""


@dataclass(frozen=True)
class ListConfig:
    """List the names that options take."""

    what: tyro.conf.Positional[Literal["algorithms", "datasets", "models", "partitions"]]
    """What to list."""
    json: bool = False
    """As JSON: name -> description."""


def partition_command(config: PartitionConfig) -> int:
    """`feddwa partition`."""
    from feddwa.build import load_task
    from feddwa.cli.train import told
    from feddwa.data import describe

    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "out"}
    run = RunConfig(algorithm="local", **shared).resolved()
    task = load_task(run)
    description = describe.describe(task.dataset, task.partition)
    console = make_console()
    run = told(console, run, task)
    console.print(describe.table(description))
    for name, value in description.summary().items():
        console.print(f"{name.replace('_', ' ')}: {value:,.4g}", highlight=False)
    if config.out:
        title = f"{Path(run.dataset).name}, {run.partition}, {task.clients} clients"
        describe.draw(description, config.out, title)
        console.print(f"wrote {config.out}", highlight=False, soft_wrap=True)
    return 0


def list_command(config: ListConfig) -> int:
    """`feddwa list`."""
    tables: dict[str, tuple[dict[str, str], Registry[Any]]] = {
        "algorithms": ({name: f"{kind.title}: {kind.summary}" for name, kind in ALGORITHMS.items()}, REGISTRY),
        "datasets": ({name: info.summary for name, info in DATASETS.items()}, sources.REGISTRY),
        "models": ({name: f"takes {model.takes}" for name, model in models.MODELS.items()}, models.REGISTRY),
        "partitions": (
            {name: (kind.__doc__ or "").splitlines()[0] for name, kind in PARTITIONS.items()},
            partitions.REGISTRY,
        ),
    }
    own, registry = tables[config.what]
    table = {**own, **{name: f"plug-in {reference}" for name, reference in registry.plugins().items()}}
    if config.json:
        print(json.dumps(table, indent=2))
    else:
        width = max(map(len, table))
        print("\n".join(f"{name:<{width}}  {text}" for name, text in table.items()))
    return 0
