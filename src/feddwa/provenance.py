"""What a run is made of: its configuration, its data, the versions of the code. A run is continued only by its own."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import feddwa
from feddwa.checkpoint import Warn, to_stderr
from feddwa.config import RunConfig
from feddwa.data.task import Task
from feddwa.errors import InputError

# What may change between two parts of a run: where things are, and how much is done or kept at a time.
FREE = ("out", "dataset", "data_dir", "device", "chunk", "checkpoint_every", "tensorboard")


def provenance(config: RunConfig, task: Task) -> dict[str, Any]:
    """Facts for a checkpoint, in JSON's types."""
    options = {key: value for key, value in dataclasses.asdict(config).items() if key not in FREE}
    versions = {"feddwa": feddwa.__version__, "torch": torch.__version__}
    return {"config": json.loads(json.dumps(options)), "data": task.fingerprint(), "versions": versions}


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], path: Path, warn: Warn = to_stderr) -> None:
    """Raise where a run would go on as another one; warn where it may round differently."""
    old, new = then["config"], now["config"]
    changed = [key for key in old if key in new and old[key] != new[key]]
    if changed:
        values = ", ".join(f"{key} was {old[key]!r} and is {new[key]!r}" for key in changed)
        raise InputError(f"{path / 'config.toml'}: changed since the run began: {values}; set it back, or run anew")
    if then["data"] != now["data"]:
        raise InputError(
            f"{path}: the dataset is not the one that the run began with; bring that one back, or run anew"
        )
    for name, version in now["versions"].items():
        if then["versions"].get(name) != version:
            before = then["versions"].get(name)
            warn(f"{path}: began with {name} {before} and continues with {version}; numbers may differ a little")
