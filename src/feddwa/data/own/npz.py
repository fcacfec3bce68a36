"""An .npz file: x (or tokens), y, perhaps client, and the same with _test behind their names."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from feddwa.data import arrays, labels
from feddwa.data.dataset import Dataset
from feddwa.data.options import DataOptions
from feddwa.data.own.plan import assemble
from feddwa.errors import InputError

ARRAYS = ("x", "tokens", "y", "client")  # each also with _test behind its name
USED = ("standardise", "split", "min_samples", "small_clients")  # options of arrays


class _Rows(NamedTuple):
    """Samples, labels and owners of one part of the file."""

    where: str  # how to speak of it in an error
    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None
    tokens: bool

    def signature(self) -> dict[str, str]:
        """What both parts must have in common, in words."""
        owners = "none" if self.client is None else _kind(self.client)
        samples = f"{self.x.dtype} {self.x.shape[1:]}"
        return {"samples": samples, "labels": f"{_kind(self.y)} {self.y.shape[1:]}", "owners": owners}


def from_npz(path: Path, options: DataOptions) -> Dataset:
    """The dataset in an .npz file."""
    options.refuse_unused(f"{path}, arrays", USED)
    content = arrays.read_npz(path)
    valid = [name + part for part in ("", "_test") for name in ARRAYS]
    foreign = [name for name in content if name not in valid]
    if foreign or "y" not in content or ("x" in content) == ("tokens" in content):
        raise InputError(
            f"{path}: must hold x (or tokens) and y, and may hold client, all also with _test behind their names; it "
            f"has {', '.join(map(ascii, content)) or 'nothing'}"
        )
    parts = [_part(path, content, "")]
    if any(name.endswith("_test") for name in content):
        parts.append(_part(path, content, "_test"))
    for part in parts:
        expected = parts[0].signature()
        for what, found in part.signature().items():
            if found != expected[what]:
                raise InputError(f"{part.where}: {what} are {found}, must be {expected[what]} as in {parts[0].where}")
        labels.refuse_missing(part.where, "label", part.y)
        if part.client is not None:
            labels.refuse_missing(part.where, "client", part.client)
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    owned = [part.client for part in parts if part.client is not None]
    is_test = np.arange(len(y)) >= len(parts[0].y) if len(parts) > 1 else None
    return assemble(str(path), x, y, np.concatenate(owned) if owned else None, is_test, parts[0].tokens, options)


def _kind(values: np.ndarray) -> str:
    return {"U": "names", "S": "names"}.get(values.dtype.kind, "numbers" if values.dtype.kind in "fiub" else "others")


def _part(path: Path, content: dict[str, np.ndarray], part: str) -> _Rows:
    """The arrays whose names end in `part`, which must be those of the training part again."""
    names = [name for name in ARRAYS if name in content]
    found = {name: content[name + part] for name in names if name + part in content}
    if len(found) < len(names):
        missing = next(name for name in names if name not in found)
        raise InputError(f"{path}: has a test part, but no {missing}{part}")
    if any(value.ndim == 0 for value in found.values()):
        raise InputError(f"{path}: its arrays must have a sample axis")
    where = f"{path} ({', '.join(name + part for name in names)})" if part else str(path)
    return _Rows(where, found[names[0]], found["y"], found.get("client"), "tokens" in found)
