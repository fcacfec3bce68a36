"""Own data that are in memory already: pandas DataFrames and PyTorch datasets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from feddwa.data.dataset import Dataset
from feddwa.data.files import first_line
from feddwa.data.options import CLIENT, DataOptions
from feddwa.data.own.npz import USED
from feddwa.data.own.plan import EVERYBODY, assemble
from feddwa.data.own.tabular import from_parts, text_columns
from feddwa.data.tables import Part
from feddwa.errors import InputError

NAME = "own"  # of data without a file


def from_frame(frames: Any, options: DataOptions = EVERYBODY) -> Dataset:
    """The dataset of a pandas DataFrame with a column of labels, or of a mapping from clients' names to DataFrames."""
    if not isinstance(frames, Mapping):
        return from_parts(NAME, [_part("dataset", frames, options)], [], options)
    if not frames or not all(str(name).strip() for name in frames):
        raise InputError(f"dataset: clients {list(frames)}; must have a name and a DataFrame for each client")
    owned = [_part(f"dataset[{name!r}]", frame, options, str(name)) for name, frame in frames.items()]
    given = next((part for part in owned if (options.client or CLIENT) in part.table.column_names), None)
    if given is not None:
        raise InputError(
            f"{given.where}: has a column {options.client or CLIENT!r}, and the mapping names clients, too"
        )
    return from_parts(NAME, owned, [], options)


def _part(where: str, frame: Any, options: DataOptions, owner: str = "") -> Part:
    """A DataFrame as a table, without its index, unless that is the column of labels, owners, times or test marks."""
    try:
        used = (*text_columns(options), options.time_column)
        needed = [name for name in getattr(frame.index, "names", ()) if name is not None and name in used]
        table = pa.Table.from_pandas(frame.reset_index(needed) if needed else frame, preserve_index=False)
    except AttributeError:
        raise InputError(f"{where}: a {type(frame).__name__}, must be a pandas DataFrame") from None
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"{where}: not a table that can be read ({first_line(error)})") from None
    return Part(where, table.replace_schema_metadata(None), owner=owner)


def from_torch(clients: Any, options: DataOptions = EVERYBODY) -> Dataset:
    """The dataset of PyTorch datasets, one per client: a list, or a mapping from the clients' names.

    A client is a Dataset of (x, y), or a pair of them: one to train on, one to test on. A single Dataset has no
    clients. Whole numbers in flat rows are token ids.
    """
    options.refuse_unused("PyTorch datasets", USED)
    named = isinstance(clients, Mapping)
    owned = _is_dataset(clients) is False
    entries = clients.items() if named else enumerate(clients) if owned else [("", clients)]
    x, y, owner, is_test = [], [], [], []
    given: set[int] = set()  # numbers of datasets that clients have
    for name, entry in entries:
        where = f"dataset[{name!r}]" if owned else "dataset"
        pair = [entry] if _is_dataset(entry) else list(entry) if isinstance(entry, Sequence) else []
        if len(pair) not in (1, 2) or not all(map(_is_dataset, pair)):
            found = type(entry).__name__
            raise InputError(f"{where}: is a {found}, must be a torch Dataset, or a pair of them (train, test)")
        given.add(len(pair))
        if len(given) > 1:
            raise InputError(f"{where}: all clients or none must be a pair of torch Datasets (train, test)")
        for place, part in enumerate(pair):
            inputs, targets = _arrays(where, part)
            if len(targets) == 0:
                raise InputError(f"{where}: has no samples; leave the client out")
            x.append(inputs)
            y.append(targets)
            owner += [str(name) if named else name] * len(targets)
            is_test += [place == 1] * len(targets)
    if not x:
        raise InputError("dataset: has no clients; must have one torch Dataset for each")
    _check_alike(x, y)
    tested = any(is_test)
    joined = np.concatenate(x)
    tokens = joined.ndim == 2 and joined.dtype.kind in "iu" and joined.dtype != np.uint8
    return assemble(
        NAME, joined, np.concatenate(y), np.array(owner) if owned else None,
        np.array(is_test) if tested else None, tokens, options,
    )  # fmt: skip


def _is_dataset(value: Any) -> bool:
    return isinstance(value, torch.utils.data.Dataset)


def _check_alike(x: list[np.ndarray], y: list[np.ndarray]) -> None:
    for what, arrays in (("samples", x), ("targets", y)):
        shapes = {each.shape[1:] for each in arrays}
        if len(shapes) > 1:
            raise InputError(f"dataset: {what} of the shapes {sorted(shapes)}; must be of one shape")


def _arrays(where: str, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """x (n, ...) and y (n, ...) of a dataset; a TensorDataset is not taken apart."""
    if isinstance(dataset, torch.utils.data.TensorDataset):
        if len(dataset.tensors) != 2:
            raise InputError(f"{where}: a TensorDataset of {len(dataset.tensors)} tensors, must be of two, x and y")
        return _numbers(dataset.tensors[0]), _numbers(dataset.tensors[1])
    try:
        items = list(_items(dataset))
    except Exception as error:  # foreign code
        why = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{where}: its items cannot be read ({why})") from error
    if not items or any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise InputError(f"{where}: its items must be pairs (x, y), at least one")
    inputs, targets = [_numbers(item[0]) for item in items], [_numbers(item[1]) for item in items]
    for what, values in (("sample", inputs), ("target", targets)):
        strange = next((i for i, value in enumerate(values) if value.dtype.kind not in "fiubU"), None)
        if strange is not None:
            found = type(items[strange][0 if what == "sample" else 1]).__name__
            raise InputError(f"{where}: {what} {strange} is a {found}, must be numbers")
        other = next((i for i, value in enumerate(values) if value.shape != values[0].shape), None)
        if other is not None:
            shapes = f"{values[other].shape}, the first {values[0].shape}"
            raise InputError(f"{where}: {what} {other} has shape {shapes}; must be of one shape")
    return np.stack(inputs), np.stack(targets)


def _items(dataset: Any) -> Iterable[Any]:
    """All items: of one that is iterated, or of one with a length."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return dataset
    return (dataset[i] for i in range(len(dataset)))


def _numbers(value: Any) -> np.ndarray:
    """A tensor, an array, a number, text or a Pillow image as an array; an image as bytes (C, H, W)."""
    if isinstance(value, torch.Tensor):
        return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).detach().cpu())
    array = np.asarray(value)
    return array.transpose(2, 0, 1) if hasattr(value, "getbands") and array.ndim == 3 else array
