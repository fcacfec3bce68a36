"""The origin of a result: code, machine and versions; and the check that a resumed run matches its origin."""

import functools
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import feddwa
from feddwa.checkpoint import Warn, to_stderr
from feddwa.config import WHERE_AND_HOW, RunConfig, options_of
from feddwa.data.task import Task
from feddwa.errors import InputError


def made_by(device: torch.device) -> dict[str, Any]:
    """The origin of a result on this machine, in JSON's types.

    commit, dirty     of the code: None if it is neither in a repository nor from an archive of one
    hardware          the GPU's name, or the processor's architecture
    """
    commit, dirty = _commit()
    gpu = device.type == "cuda"
    return {
        "commit": commit,
        "dirty": dirty,
        "hardware": torch.cuda.get_device_name(device) if gpu else platform.machine(),
        "versions": {**_versions(), "numpy": np.__version__, "python": platform.python_version()},
    }


@functools.cache
def _commit() -> tuple[str | None, bool | None]:
    """(commit, whether files differ from it): of the archive with the code, else of the surrounding repository."""
    package = Path(__file__).parents[1]
    known = (package / "commit.txt").read_text(encoding="utf-8").strip()  # `git archive` fills it in
    if not known.startswith("$"):
        return known[:10], False
    command = ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None, None
    return found.removesuffix("-dirty"), found.endswith("-dirty")


def _versions() -> dict[str, str]:
    return {"feddwa": feddwa.__version__, "torch": torch.__version__}


def provenance(config: RunConfig, task: Task) -> dict[str, Any]:
    """Facts for a checkpoint, in JSON's types. Data are identified by fingerprint, since they may be moved."""
    options = options_of(config, leaving_out=(*WHERE_AND_HOW, "dataset"))
    return {"config": json.loads(json.dumps(options)), "data": task.fingerprint(), "versions": _versions()}


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], path: Path, warn: Warn = to_stderr) -> None:
    """Raise if a resumed run would differ from its origin; warn if it may round differently."""
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
