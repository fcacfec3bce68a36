"""Own arrays as a dataset: one client per entry, each with arrays or tensors of samples and targets.

A network with several inputs has samples that are a mapping (input name -> array) or a tuple of arrays (inputs by
position): they become one structured array with a field for every input.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feddwa.data.dataset import Dataset, hold_out
from feddwa.data.labels import PADDING, are_tokens
from feddwa.data.own.objects import NAME
from feddwa.errors import require

WHAT = {0: "samples", 1: "targets"}


def from_arrays(clients: Iterable[Sequence[Any]] | Mapping[str, Sequence[Any]]) -> Dataset:
    """Clients (x, y) or (x, y, x_test, y_test) as a dataset with owners; the keys of a mapping are their names.

    uint8 values are pixels, scaled to 0..1 on the device; other numbers are used as they are. Whole numbers and names
    as targets are classes, real numbers are targets of a regression. Without test samples a fifth of each client's is
    held out.
    """
    train, test = [], []
    names = tuple(map(str, clients)) if isinstance(clients, Mapping) else ()
    for number, entry in enumerate(clients.values() if isinstance(clients, Mapping) else clients):
        own = _with_test(_arrays(f"clients[{names[number]!r}]" if names else f"clients[{number}]", entry), number)
        train.append(own[:2])
        test.append(own[2:])
    require(len(train) > 0, "clients", len(train), "a list with at least one (x, y)")
    x, y = (_joined([part[which] for part in (*train, *test)], WHAT[which]) for which in (0, 1))
    sizes = [len(part[1]) for part in (*train, *test)]
    owner = np.repeat(np.tile(np.arange(len(train)), 2), sizes)
    words, y = np.unique(y, return_inverse=True) if y.dtype.kind == "U" else ((), y)
    classes = int(y.max()) + 1 if np.issubdtype(y.dtype, np.integer) else 0
    return Dataset(
        NAME, x, y, sum(sizes[: len(train)]), classes,
        class_names=tuple(map(str, words)), client=owner, client_names=names,
    )  # fmt: skip


def _arrays(client: str, entry: Sequence[Any]) -> list[np.ndarray]:
    """x, y and perhaps x_test, y_test of one client, checked."""
    parts = list(entry) if isinstance(entry, Iterable) and not isinstance(entry, Mapping | str) else []
    found = f"{type(entry).__name__} of {len(parts)}" if parts else type(entry).__name__
    require(len(parts) in (2, 4), client, found, "(x, y) or (x, y, x_test, y_test)")
    arrays = [_samples(client, part) if place % 2 == 0 else _targets(client, part) for place, part in enumerate(parts)]
    lengths = [len(array) for array in arrays]
    require(lengths[0::2] == lengths[1::2], client, lengths, "as many targets as samples")
    require(len(arrays) == 4 or lengths[0] >= 2, client, lengths[0], "at least 2 samples: one to train, one to test")
    require(min(lengths) > 0, client, lengths, "at least one sample to train and one to test")
    return arrays


def _samples(client: str, x: Any) -> np.ndarray:
    """The samples of a client: (n, *shape), or of several inputs a structured array (n,)."""
    several = isinstance(x, Mapping) or (isinstance(x, tuple) and any(np.ndim(each) for each in x))
    if not several:
        return _array(client, x)
    given = dict(x) if isinstance(x, Mapping) else {str(place): each for place, each in enumerate(x)}
    inputs = {str(name): _array(f"{client}, input {name}", value) for name, value in given.items()}
    require(len(inputs) > 0, client, "no input", "one input or more")
    lengths = {name: len(value) for name, value in inputs.items()}
    require(len(set(lengths.values())) == 1, client, lengths, "as many samples of every input")
    kinds = [(name, value.dtype, value.shape[1:]) for name, value in inputs.items()]
    joined = np.zeros(next(iter(lengths.values())), dtype=kinds)
    for name, value in inputs.items():
        joined[name] = value
    return joined


def _targets(client: str, y: Any) -> np.ndarray:
    """The targets of a client: numbers, or a row of names."""
    names = np.zeros(0) if isinstance(y, torch.Tensor) else np.asarray(y)
    if names.dtype.kind == "O" and all(isinstance(name, str) for name in names.ravel()):  # as pandas has them
        names = names.astype(str)
    if names.dtype.kind == "U" and names.ndim == 1:
        return names
    found = _array(client, y)
    least = found.min(initial=0) if found.dtype.kind in "iu" else 0
    if found.ndim > 1 and least < 0:
        require(are_tokens(found), client, f"tokens from {least}", f"tokens from 0, and {PADDING} for padding")
    else:
        require(least >= 0, client, f"labels from {least}", "labels from 0")
    return found


def _array(client: str, value: Any) -> np.ndarray:
    """An array of finite numbers: bytes as they are, other whole numbers as int64, real ones as float32."""
    if isinstance(value, torch.Tensor):  # NumPy has no bfloat16
        value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu()
    array = np.asarray(value)
    numbers = array.ndim > 0 and array.dtype.kind in "fiub"
    require(numbers, client, f"{array.dtype} {array.shape}", "arrays of numbers with a sample axis")
    require(bool(np.isfinite(array).all()), client, "NaN or infinity", "finite")
    return array if array.dtype == np.uint8 else array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _with_test(arrays: list[np.ndarray], client: int) -> list[np.ndarray]:
    """A fifth of a client's samples set apart for testing, evenly over the classes, unless there are test samples."""
    if len(arrays) == 4:
        return arrays
    x, y = arrays
    strata = y if y.ndim == 1 and y.dtype.kind in "iubU" else np.zeros(len(y))
    order, cut = hold_out(np.zeros(len(y), dtype=np.int64), strata, first=client)
    return [x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]]


def _joined(parts: list[np.ndarray], what: str) -> np.ndarray:
    """All clients' samples or targets as one array."""
    shapes = {_shape(part): None for part in parts}
    require(len(shapes) == 1, "clients", " and ".join(map(str, shapes)), f"{what} of one shape")
    kinds = {str(part.dtype): None for part in parts}
    mixed = len(kinds) > 1 and (parts[0].dtype.names is not None or len({part.dtype.kind == "U" for part in parts}) > 1)
    require(not mixed, "clients", " and ".join(kinds), f"{what} of one type")
    joined = np.concatenate(parts)
    if what == "targets" and joined.dtype == np.uint8:
        return joined.astype(np.int64)
    return joined if joined.dtype.kind != "f" else joined.astype(np.float32)


def _shape(part: np.ndarray) -> object:
    """The shape of a sample; of several inputs, of each."""
    names = part.dtype.names
    return part.shape[1:] if names is None else {name: part.dtype[name].shape for name in names}.__repr__()
