"""Messages as Flower records of named arrays. Every field of a message is validated against its bytes; no pickle.

A message is one array (m, d) of each type of numbers, one row per client, with all tensors side by side: Flower sends
every record and every array separately, and the time of a round grows with their number. Tensors that are equal for all
clients of a node (FedAvg's model, L2C's updates) are sent once, in an array (1, d) of their own. A layout record holds
the tensors' names and shapes.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from feddwa.engine import Message
from feddwa.engine.rows import tensors
from feddwa.errors import InputError, one_line

ROWS, SHARED = "rows", "shared"  # kinds of arrays: a row per client; one row for all
LAYOUT = "layout"  # record of names and shapes
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
    """A message, part -> name -> (m, *shape), as the records `<name>` and `<name>.layout`."""
    columns: dict[str, list[Tensor]] = {}  # array -> tensors side by side
    layout: dict[str, Any] = {}  # "array part/name" -> shape without the client axis
    for key, value in tensors(message):
        one_for_all = len(value) > 1 and value.stride(0) == 0
        array = f"{SHARED if one_for_all else ROWS} {str(value.dtype)[6:]}"
        layout[f"{array} {key}"] = list(value.shape[1:])
        columns.setdefault(array, []).append(value[:1] if one_for_all else value)
    arrays = {array: side_by_side(values) for array, values in columns.items()}
    return {name: ArrayRecord(arrays), f"{name}.{LAYOUT}": ConfigRecord(layout)}


def unpack(name: str, content: RecordDict, clients: int, device: torch.device) -> Message:
    """The message, part -> name -> (clients, *shape) on `device`, that `pack` made.

    Raises Malformed unless the layout describes every column of every array exactly once.
    """
    stacks = {}
    for array, packed in arrays(content, name).items():
        kind, value = array.partition(" ")[0], to_tensor(packed)
        if value.ndim != 2 or len(value) != (1 if kind == SHARED else clients):
            raise Malformed(f"{name}: {array!r} of shape {tuple(value.shape)} for {clients} clients")
        stacks[array] = value.to(device).expand(clients, -1)
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


def reals(record: Mapping[str, Any], name: str, count: int) -> Tensor:
    """The list `name` of a record, (count,) float64; Malformed unless it is one. A missing list is an empty one."""
    value = record.get(name, [])
    if type(value) is not list or len(value) != count or any(type(item) is not float for item in value):
        raise Malformed(f"{name}: no list of {count} numbers")
    return torch.tensor(value, dtype=torch.float64)


def to_array(value: Tensor) -> Array:
    """A tensor, on any device, as Flower's array."""
    return Array(value.detach().cpu().contiguous().numpy())


def side_by_side(values: Sequence[Tensor]) -> Array:
    """Tensors (m, *shape), each on any device, as one array (m, d); their bytes are copied once."""
    rows = [value.detach().cpu().reshape(len(value), -1).contiguous().numpy() for value in values]
    shape = len(rows[0]), sum(each.shape[1] for each in rows)
    head = io.BytesIO()
    npy.write_array_header_1_0(
        head, {"descr": npy.dtype_to_descr(rows[0].dtype), "fortran_order": False, "shape": shape}
    )
    pieces = (each[number] for number in range(shape[0]) for each in rows)
    return Array(str(rows[0].dtype), shape, NUMPY, b"".join([head.getvalue(), *pieces]))


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
