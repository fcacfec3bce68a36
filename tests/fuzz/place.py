"""The folder in which cases are tried: data of sixty points, a finished run, an interrupted one, something else."""

import contextlib
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from feddwa import run

ROUNDS = 2
COMMON: dict[str, Any] = {
    "dataset": "tiny.npz", "partition": "iid", "clients": 3, "rounds": ROUNDS, "device": "cpu",
}  # fmt: skip


def tiny(path: Path) -> None:
    """Sixty labelled points of three classes and three owners."""
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    x = (rng.normal(size=(60, 6)) + y[:, None]).astype(np.float32)
    np.savez(path, x=x, y=y, client=np.arange(60) // 20)


def finished(folder: Path, **options: Any) -> None:
    """A run that is done."""
    run(out=str(folder), **{**COMMON, **options})


def cut(folder: Path, **options: Any) -> None:
    """A run that was interrupted after its first round."""

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == ROUNDS:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), contextlib.redirect_stderr(io.StringIO()):
        run(out=str(folder), observe=stop, **{**COMMON, **options})


def clear(folder: Path, keep: set[str]) -> None:
    """Remove what a case has left behind."""
    for path in folder.iterdir():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
