"""P of every round on disk: a journal with one record per round, and the final file.

    weights.journal       during the run. One record per round, little-endian: the round and m (int64), the cohort
                          (m int64), P (m x m float32)
    weights.safetensors   of a finished run: "weights/0001" = P of round 1, "cohort/0001" = its clients

P of 1,000 clients has 4 MB per round, so neither file is ever in memory as a whole: each round is appended at its end,
the journal is converted block by block, and `StoredWeights` reads a round from disk on access.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

import numpy as np
from torch import Tensor

from feddwa.errors import InputError
from feddwa.results.checks import check_weights

JOURNAL, WEIGHTS = "weights.journal", "weights.safetensors"
HEAD = struct.Struct("<qq")  # round, m
CLIENT, WEIGHT = np.dtype("<i8"), np.dtype("<f4")


class Weights(NamedTuple):
    """P of one round."""

    round: int
    cohort: np.ndarray  # (m,) int64, the clients' numbers
    matrix: np.ndarray  # (m, m) float32, row i has the weights of client cohort[i]


class Extent(NamedTuple):
    """The position of a round's numbers in a file."""

    round: int
    clients: int  # m
    cohort: int  # byte at which the cohort begins
    matrix: int  # byte at which P begins

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return max(self.cohort + self.clients * CLIENT.itemsize, self.matrix + self.clients**2 * WEIGHT.itemsize)


class StoredWeights(Sequence[Weights]):
    """P of every round of a run, in order, read from disk and checked on each access."""

    def __init__(self, path: Path, extents: Sequence[Extent], clients: int | None = None) -> None:
        """clients: the run's number of clients, if known."""
        self.path, self._extents, self._clients = path, extents, clients

    @property
    def rounds(self) -> list[int]:
        """The number of each round; rounds without participants have no P."""
        return [extent.round for extent in self._extents]

    def __len__(self) -> int:
        return len(self._extents)

    @overload
    def __getitem__(self, index: int) -> Weights: ...

    @overload
    def __getitem__(self, index: slice) -> "StoredWeights": ...

    def __getitem__(self, index: int | slice) -> "Weights | StoredWeights":
        if isinstance(index, slice):
            return StoredWeights(self.path, self._extents[index], self._clients)
        with self._open() as file:
            return self._read(file, self._extents[index])

    def __iter__(self) -> Iterator[Weights]:
        if not self._extents:
            return
        with self._open() as file:
            for extent in self._extents:
                yield self._read(file, extent)

    def _read(self, file: BinaryIO, extent: Extent) -> Weights:
        cohort, matrix = _cohort(file, extent), _matrix(file, extent)
        check_weights(self.path, extent.round, cohort, matrix, self._clients)
        return Weights(extent.round, cohort, matrix)

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from None


def journal_record(round: int, cohort: Tensor, weights: Tensor) -> bytes:
    """A round's record in the journal. cohort: (m,); weights: (m, m), any type and device."""
    ids, matrix = cohort.cpu().numpy(), weights.detach().cpu().float().numpy()
    return HEAD.pack(round, len(ids)) + ids.astype(CLIENT).tobytes() + matrix.astype(WEIGHT, copy=False).tobytes()


def read(folder: Path, clients: int | None = None) -> StoredWeights:
    """The weights in a run directory, finished or not; clients: the run's number of clients, if known.

    A finishing run writes weights.safetensors before it removes the journal.
    """
    names = (JOURNAL, WEIGHTS)
    for path in (folder / name for name in names):
        try:
            extents = journal_extents(path) if path.name == JOURNAL else _safetensors_extents(path)
            return StoredWeights(path, extents, clients)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return StoredWeights(folder / names[-1], [])


def journal_extents(path: Path) -> list[Extent]:
    """The records of a journal; an incomplete last one is ignored."""
    extents: list[Extent] = []
    size = path.stat().st_size
    with path.open("rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            round, clients = HEAD.unpack(head)
            if round < 1 or not 1 <= clients <= size:
                raise InputError(f"{path}: is damaged: record {len(extents) + 1} is none of a round")
            start = file.tell()
            extent = Extent(round, clients, start, start + clients * CLIENT.itemsize)
            if extent.end > size:
                break
            extents.append(extent)
            file.seek(extent.end)
    return extents


def as_safetensors(journal: Path) -> Iterator[bytes]:
    """The content of weights.safetensors from a journal, in blocks of at most one round.

    Cohorts come first, so that every tensor begins at a multiple of its item size.
    """
    extents, header, end = journal_extents(journal), {}, 0
    for kind, dtype, axes in (("cohort", "I64", 1), ("weights", "F32", 2)):
        for extent in extents:
            start, end = end, end + extent.clients**axes * (CLIENT if axes == 1 else WEIGHT).itemsize
            header[f"{kind}/{extent.round:04d}"] = {
                "dtype": dtype, "shape": [extent.clients] * axes, "data_offsets": [start, end],
            }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    with journal.open("rb") as file:
        for part in (_cohort, _matrix):
            for extent in extents:
                yield part(file, extent).tobytes()


def _safetensors_extents(path: Path) -> list[Extent]:
    """The rounds of a weights.safetensors, in their order."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size:
                raise ValueError("it ends within its header")
            header: dict[str, Any] = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is none of a safetensors file")
        names = sorted((name for name in header if name.startswith("weights/")), key=lambda name: int(name[8:]))
        extents = [_extent(header, name[8:], 8 + length) for name in names]
        if any(extent.end > size for extent in extents):
            raise ValueError("it ends before its last round")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: is damaged: {error}") from None
    return extents


def _extent(header: dict[str, Any], number: str, base: int) -> Extent:
    """The extent of a round from the header of a safetensors file whose data begin at byte `base`."""
    matrix, cohort = header[f"weights/{number}"], header[f"cohort/{number}"]
    (clients,) = cohort["shape"]
    starts = [each["data_offsets"][0] for each in (cohort, matrix)]
    if not all(type(each) is int and each >= 0 for each in (clients, *starts)):
        raise ValueError(f"round {number} has no place in it")
    if (matrix["dtype"], cohort["dtype"], matrix["shape"]) != ("F32", "I64", [clients, clients]):
        raise ValueError(f"round {number} is not {clients} clients and their float32 weights")
    return Extent(int(number), clients, base + starts[0], base + starts[1])


def _cohort(file: BinaryIO, extent: Extent) -> np.ndarray:
    return _numbers(file, extent.cohort, extent.clients, CLIENT)


def _matrix(file: BinaryIO, extent: Extent) -> np.ndarray:
    return _numbers(file, extent.matrix, extent.clients**2, WEIGHT).reshape(extent.clients, extent.clients)


def _numbers(file: BinaryIO, start: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    file.seek(start)
    data = file.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise InputError(f"{file.name}: has become shorter since it was opened")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
