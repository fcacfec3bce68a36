"""Messages as Flower records of named arrays. Every field of a message is validated against its bytes; no pickle.

A part of a message is one array (m, d), one row per client, with the tensors of the part side by side: Flower sends
every array separately, and the time of a round grows with their number. A layout record holds the tensors' names and
shapes. Tensors that are equal for all clients of a node (FedAvg's model, L2C's updates) are sent once, in their own
record.
"""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from feddwa.engine import Message
from feddwa.engine.rows import tensors
from feddwa.errors import InputError, one_line

ROWS, SHARED, LAYOUT = "rows", "shared", "layout"  # records: a row per client; one row for all; names and shapes
DTYPES = ("float32", "float64", "int64", "bool")
NUMPY = "numpy.ndarray"  # Flower's name for np.save's format
TOLD = 600  # characters of an error


class Malformed(InputError):
    """A record that is missing or invalid. Its text discloses nothing about the machine that sent it, and is one line.

    What a node has sent may stand in it, so that it is escaped and cut.
    """

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text)[:TOLD])


def pack(name: str, message: Message) -> dict[str, ArrayRecord | ConfigRecord]:
    """A message, part -> name -> (m, *shape), as the records `<name>.rows`, `<name>.shared` and `<name>.layout`."""
    columns: dict[tuple[str, str], list[Tensor]] = {}  # (record, array) -> tensors side by side
    layout: dict[str, Any] = {}  # "record array part/name" -> shape without the client axis
    for key, value in tensors(message):
        one_for_all = len(value) > 1 and value.stride(0) == 0
        record, array = SHARED if one_for_all else ROWS, f"{key.partition('/')[0]} {str(value.dtype)[6:]}"
        layout[f"{record} {array} {key}"] = list(value.shape[1:])
        rows = value[:1] if one_for_all else value
        columns.setdefault((record, array), []).append(rows.reshape(len(rows), -1))
    found: dict[str, dict[str, Array]] = {ROWS: {}, SHARED: {}}
    for (record, array), parts in columns.items():
        found[record][array] = to_array(torch.cat([part.cpu() for part in parts], 1))
    records = {f"{name}.{record}": ArrayRecord(values) for record, values in found.items()}
    return {**records, f"{name}.{LAYOUT}": ConfigRecord(layout)}


def unpack(name: str, content: RecordDict, clients: int, device: torch.device) -> Message:
    """The message, part -> name -> (clients, *shape) on `device`, that `pack` made.

    Raises Malformed unless the layout describes every column of every array exactly once.
    """
    stacks = {}
    for record in (ROWS, SHARED):
        for array, packed in arrays(content, f"{name}.{record}").items():
            value = to_tensor(packed)
            if value.ndim != 2 or len(value) != (clients if record == ROWS else 1):
                raise Malformed(f"{name}: {array!r} of shape {tuple(value.shape)} for {clients} clients")
            stacks[f"{record} {array}"] = value.to(device).expand(clients, -1)
    message: dict[str, dict[str, Tensor]] = {}
    used = dict.fromkeys(stacks, 0)  # columns of every stack that the layout has described so far
    layout = settings(content, f"{name}.{LAYOUT}")
    for entry in layout:
        stack, _, key = entry.rpartition(" ")
        part, slash, tensor = key.partition("/")
        shape = setting(layout, entry, list)
        width = _volume(shape)
        if stack not in stacks or not slash or any(side < 0 for side in shape):
            raise Malformed(f"{name}: {entry!r} describes nothing")
        start, used[stack] = used[stack], used[stack] + width
        if used[stack] > stacks[stack].shape[1] or tensor in message.get(part, {}):
            raise Malformed(f"{name}: {entry!r} describes more than there is")
        values = stacks[stack][:, start : start + width].reshape(clients, *shape)
        message.setdefault(part, {})[tensor] = values
    if any(width != stacks[stack].shape[1] for stack, width in used.items()):
        raise Malformed(f"{name}: numbers without a name")
    return message


def arrays(content: RecordDict, name: str) -> Mapping[str, Array]:
    """The arrays of the record `name`; Malformed where there is no such record."""
    record = content.get(name)
    if not isinstance(record, ArrayRecord):
        raise Malformed(f"{name}: no such record of arrays")
    return record


def numbers(values: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors of any shapes as a record."""
    return ArrayRecord({name: to_array(value) for name, value in values.items()})


def settings(content: RecordDict, name: str) -> ConfigRecord:
    """The record `name` of plain values; Malformed where there is no such record."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise Malformed(f"{name}: no such record of settings")
    return record


def setting(record: Mapping[str, Any], name: str, kind: type) -> Any:
    """The value `name` of a record; Malformed unless its type is exactly `kind`. A list must contain integers only."""
    value = record.get(name)
    if type(value) is not kind or (isinstance(value, list) and any(type(item) is not int for item in value)):
        raise Malformed(f"{name}: no such setting of type {kind.__name__}")
    return value


def to_array(value: Tensor) -> Array:
    """A tensor, on any device, as Flower's array."""
    return Array(value.detach().cpu().contiguous().numpy())


def to_tensor(array: Array) -> Tensor:
    """An array as a tensor on the CPU.

    Shape and dtype come from the header inside the bytes, which must account for every byte; the sender's separate
    statement of them is ignored. So nothing is allocated that was not received. Raises Malformed.
    """
    if array.stype != NUMPY:
        raise Malformed(f"an array of kind {array.stype!r}, must be {NUMPY}")
    file = io.BytesIO(array.data)
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
    except Exception as error:  # NumPy parses the header as a Python literal, which raises many types
        raise Malformed("an array without a readable header") from error
    if dtype.name not in DTYPES or fortran or not dtype.isnative:
        raise Malformed(f"an array of type {dtype}, must be one of {', '.join(DTYPES)}")
    if any(side < 0 for side in shape) or _volume(shape) * dtype.itemsize != len(array.data) - file.tell():
        raise Malformed(f"an array of shape {shape} in {len(array.data)} bytes")
    values = np.frombuffer(array.data, dtype, offset=file.tell()).reshape(shape)
    if dtype == np.bool_ and values.view(np.uint8).max(initial=0) > 1:
        raise Malformed("an array of truth values that are neither")
    return torch.from_numpy(values.copy())  # a copy is writable and aligned


def _volume(shape: Iterable[int]) -> int:
    """Number of entries of a shape, in Python's exact integers: an int64 product could overflow to a small number."""
    volume = 1
    for side in shape:
        volume *= int(side)
    return volume


def size(content: RecordDict) -> int:
    """Bytes of a message: of all arrays, headers included, each time that one is named, and of all settings."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    others = (*content.config_records.values(), *content.metric_records.values())
    return arrays + sum(len(record.deflate()) for record in others)
