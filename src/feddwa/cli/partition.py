"""`feddwa partition`: draw how the data are divided among clients."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from feddwa.config import RunConfig
from feddwa.data.options import DataOptions
from feddwa.params import Option
from feddwa.plugins import check_dataset


@dataclass(frozen=True)
class PartitionConfig(DataOptions):
    """Draw who has which data, and say how different the clients are."""

    dataset: str = "digits"
    """Name from `feddwa list datasets`, a path, or MODULE:FUNCTION."""
    data_dir: str | None = None
    """Folder with dataset files; default: the environment variable FEDDWA_DATA."""
    partition: str | None = None
    """`feddwa list partitions`, MODULE:NAME [rotations; owners natural; else iid]."""
    clients: int | None = None
    """Number of clients, N; default: 20, or with `natural` the data's owners."""
    seed: int = 0
    """The same seed as in `feddwa run` gives the same partition."""
    param: Annotated[tuple[str, ...], Option(metavar="KEY=VALUE", repeated=True)] = ()
    """KEY=VALUE, a hyper-parameter of the partition. Repeatable."""
    out: str | None = None
    """Picture to write (.png, .svg or .pdf)."""


def partition_command(config: PartitionConfig) -> int:
    """`feddwa partition`."""
    check_dataset(config.dataset)
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "out"}
    run = RunConfig(algorithm="local", **shared).resolved()

    from feddwa.build import load_task
    from feddwa.cli.methods import told
    from feddwa.data import describe
    from feddwa.report.progress import decoding
    from feddwa.report.terminal import make_console

    with decoding() as tell:
        task = load_task(run, tell)
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
