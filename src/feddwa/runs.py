"""The run directory: written as the run goes, readable by people, enough to make the run again.

config.toml           the resolved configuration: `feddwa run --config DIR/config.toml` makes the run again, elsewhere
partition.json        who has how many samples of which class, and the true groups where there are any
metrics.jsonl         a line a round (and a last one: the models that the run delivers)
clients.jsonl         every client's accuracy, a line a round
weights.safetensors   P of every round ("weights/0001") with its cohort ("cohort/0001")
summary.json          what it came to
"""

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from feddwa.config import RunConfig, to_toml
from feddwa.data.describe import Description, to_json
from feddwa.errors import InputError
from feddwa.federation import Round

WEIGHTS_EVERY = 5.0  # seconds between two writes of the weights, which have to be written whole


class RunDirectory:
    """Writes one run."""

    def __init__(self, config: RunConfig, description: Description | None = None) -> None:
        self.path = Path(config.out) if config.out else default_path(config.algorithm, config.dataset)
        claim(self.path)
        (self.path / "config.toml").write_text(to_toml(config), encoding="utf-8")
        if description is not None:
            _replace(self.path / "partition.json", json.dumps(to_json(description)) + "\n")
        self._weights: dict[str, Tensor] = {}
        self._weights_written = time.monotonic()

    def add(self, line: Mapping[str, Any], clients: Mapping[str, Any], result: Round | None = None) -> None:
        """Append what is known of a round."""
        _append(self.path / "metrics.jsonl", line)
        _append(self.path / "clients.jsonl", clients)
        if result is not None and "weights" in result.info:
            number = f"{result.cohort.round:04d}"
            self._weights[f"weights/{number}"] = result.info["weights"].to("cpu", torch.float32).contiguous()
            self._weights[f"cohort/{number}"] = result.cohort.ids
            if time.monotonic() - self._weights_written > WEIGHTS_EVERY:
                self._write_weights()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the rest."""
        self._write_weights()
        _replace(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def _write_weights(self) -> None:
        temporary = self.path / "weights.safetensors.part"
        save_file(self._weights, temporary)
        os.replace(temporary, self.path / "weights.safetensors")
        self._weights_written = time.monotonic()


def default_path(*names: str) -> Path:
    """A directory that does not exist yet: runs/<time>-<names>, numbered where that is taken."""
    slugs = [re.sub(r"[^\w.]+", "-", Path(name).name) for name in names]  # own data have a path for a name
    first = "-".join(["runs/" + time.strftime("%Y%m%d-%H%M%S"), *slugs])
    names_to_try = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names_to_try) if not path.exists())


def claim(path: Path) -> None:
    """Make an empty directory for a run, or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise InputError(f"--out {path}: is not empty; give a new directory, or remove it first")
        probe = path / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out {path}: cannot write there: {error.strerror}; give a directory that can be") from None


def check_free(out: str | None) -> None:
    """Raise what `claim` would raise, and leave no trace: so that nobody waits for data and then hears of it."""
    if out is None:
        return
    path = Path(out)
    new = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        claim(path)
    finally:
        for folder in new:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
