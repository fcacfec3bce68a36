"""Checkpoints: named tensors and facts on disk, written atomically.

    DIR/round-000012-<SHA-256 of the file>.safetensors

One file is one checkpoint and is written atomically: to a temporary name, synced, renamed, with a sync of the folder.
The sum in the name covers every byte. The last two are kept; if the newer one is damaged, the older one is used.
Nothing here depends on the meaning of the tensors.

Files DIR/*.rows hold rows that a checkpoint refers to without repeating them (`feddwa.engine.stored`): they are synced
first.

Tensors are restored bit for bit: type, shape, and axes along which memory is shared (one model repeated for all
clients), which are written once.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from feddwa.errors import one_line
from feddwa.storage import replacing, sum_of, sync, write_named

Tree: TypeAlias = Mapping[str, "Tree | Tensor"]  # {"server": {"model": {"0.weight": tensor}}}: any depth, no empty name
Warn: TypeAlias = Callable[[str], None]

VERSION = 2  # of the file format
KEPT = 2
ROWS = ".rows"  # suffix of files with rows
NAME = re.compile(r"round-(\d{6,12})-([0-9a-f]{64})\.safetensors")
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read."""

    path: Path
    round: int
    tree: dict[str, Any]  # as passed to `save`, on the CPU
    facts: dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """A copy of a tree on the CPU, independent of later changes to the tree."""

    tensors: dict[str, Tensor]  # path in the tree -> contiguous values, axes of shared memory cut down to 1
    shapes: dict[str, list[int]]  # original shapes, in order


def snapshot(tree: Tree) -> Snapshot:
    """Copy a tree of tensors."""
    found = dict(leaves(tree))
    cut = {name: value.detach()[own_memory(value)] for name, value in found.items()}
    shapes = {name: list(value.shape) for name, value in found.items()}
    copies = {name: value.to("cpu", copy=True, memory_format=torch.contiguous_format) for name, value in cut.items()}
    return Snapshot(copies, shapes)


def size(tree: Tree) -> int:
    """Size in bytes of a tree of tensors in a file."""
    return sum(value[own_memory(value)].numel() * value.element_size() for _, value in leaves(tree))


def save(directory: str | Path, round: int, tree: Tree, facts: Mapping[str, Any]) -> Path:
    """Write a checkpoint and remove all but the previous one. `facts` is anything that JSON can hold."""
    return _write(Path(directory), round, snapshot(tree), facts)


def to_stderr(line: str) -> None:
    """Print a warning to stderr, the default."""
    print(f"feddwa: {one_line(line)}", file=sys.stderr)


def latest(directory: str | Path, warn: Warn = to_stderr, below: float = math.inf) -> Checkpoint | None:
    """The newest undamaged checkpoint of a round below a limit; `warn` is called for each damaged one."""
    for path in reversed([path for path in _all(Path(directory)) if _round(path) < below]):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
            warn(f"{path}: damaged checkpoint, not used: {error}")
    return None


def keep(directory: str | Path, count: int) -> None:
    """Remove all but the newest checkpoints."""
    for path in _all(Path(directory))[:-count]:
        path.unlink()


class Writer:
    """Writes checkpoints in the background, one at a time. Errors are raised by the next call."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Path] | None = None

    def save(self, round: int, tree: Tree, facts: Mapping[str, Any], before: Callable[[], None] = lambda: None) -> None:
        """As `save`, but waits only for the copy and the previous checkpoint; `before` is called first."""
        self.wait()
        copy = snapshot(tree)

        def work() -> Path:
            before()
            return _write(self.directory, round, copy, facts)

        self._pending = self._thread.submit(work)

    def wait(self) -> None:
        """Wait until all writing has ended; raises its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        self._thread.shutdown()
        self.wait()


def _write(directory: Path, round: int, copy: Snapshot, facts: Mapping[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for rows in directory.glob(f"*{ROWS}"):
        sync(rows)
    pieces = _pieces(round, copy, facts)
    path = write_named(directory, pieces, lambda digest: f"round-{round:06d}-{digest}.safetensors")
    for other in _all(directory):
        if _round(other) >= round and other != path:  # from an abandoned continuation of the run
            other.unlink()
    keep(directory, KEPT)
    return path


def _pieces(round: int, copy: Snapshot, facts: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """The bytes of a checkpoint file, block by block."""
    about = {"version": VERSION, "round": round, "shapes": copy.shapes, "facts": facts}
    yield from as_safetensors(copy, about)


def as_safetensors(copy: Snapshot, about: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """Tensors in the safetensors format, block by block, without a second copy of the state.

    about: anything that JSON can hold; stored in the file's metadata under "feddwa".
    """
    yield _header(copy.tensors, about)[0]
    flat = (value.reshape(-1).view(torch.uint8) for value in copy.tensors.values())
    yield from (value.numpy().data for value in flat if len(value))


def write_rows(
    path: Path, like: Mapping[str, Tensor], blocks: Iterable[Mapping[str, Tensor]], about: Mapping[str, Any]
) -> str:
    """Write a file in the same format with one block of rows in memory at a time; returns its SHA-256.

    like: name -> (m, *shape), used for shapes and types; blocks: name -> the next (k, *shape), on any device. For a
    name with m = 1 the first row of the first block is written.
    """
    head, starts = _header(like, about)
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            file.write(head)
            row = 0
            for block in blocks:
                for name, value in block.items():
                    own = value[:1] if len(like[name]) == 1 else value
                    if row < len(like[name]) and own.numel():
                        file.seek(starts[name] + row * own[0].numel() * own.element_size())
                        file.write(own.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
                row += len(value)
        found: str = sum_of(temporary).hexdigest()
        return found


def _header(like: Mapping[str, Tensor], about: Mapping[str, Any]) -> tuple[bytes, dict[str, int]]:
    """The first bytes of a safetensors file of such tensors, and the position of each tensor in the file."""
    header: dict[str, Any] = {"__metadata__": {"feddwa": json.dumps(about, allow_nan=False)}}
    end = 0
    for name, value in like.items():
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    starts = {name: 8 + len(text) + header[name]["data_offsets"][0] for name in like}
    return len(text).to_bytes(8, "little") + text, starts


def _read(path: Path) -> Checkpoint:
    """A checkpoint; raises an error that describes the damage."""
    found = NAME.fullmatch(path.name)
    assert found is not None
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != found[2]:
            raise ValueError("its content is not what was written")
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {})["feddwa"])
        if about["version"] != VERSION:
            raise ValueError(f"is of version {about['version']}, this feddwa reads version {VERSION}")
        # Cloned: file memory may be unaligned, on which arithmetic may round differently.
        values = [(name, file.get_tensor(name).clone().expand(shape)) for name, shape in about["shapes"].items()]
    return Checkpoint(path, about["round"], tree_of(values), about["facts"])


def _all(directory: Path) -> list[Path]:
    """Checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if NAME.fullmatch(path.name)), key=_round)


def _round(path: Path) -> int:
    return int(path.name.split("-")[1])


def own_memory(value: Tensor) -> tuple[slice, ...]:
    """An index of distinct memory: along an axis with stride 0 all positions share memory, so only one is taken."""
    return tuple(slice(0, 1) if stride == 0 else slice(None) for stride in value.stride())


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Paths and tensors, in order; an empty mapping is an empty tensor at a path that ends with a slash."""
    for key, value in tree.items():
        place = path + quote(key, safe=" ")
        if isinstance(value, Tensor):
            yield place, value
        elif value:
            yield from leaves(value, place + "/")
        else:
            yield place + "/", torch.zeros(0)


def tree_of(leaves: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
    """The tree with these leaves."""
    tree: dict[str, Any] = {}
    for path, value in leaves:
        *way, name = path.split("/")
        place = tree
        for key in way:
            place = place.setdefault(unquote(key), {})
        if name:
            place[unquote(name)] = value
    return tree
