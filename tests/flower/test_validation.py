"""Every field of a message is validated: signature, sizes and numbers; one bad client harms no other."""

import contextlib
import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from hypothesis import given, settings
from hypothesis import strategies as st

from feddwa.engine.rows import tensors
from feddwa.flower import codec, server
from feddwa.flower.codec import Malformed, pack, to_array, to_tensor, unpack
from feddwa.flower.inbox import Parcel
from feddwa.flower.settings import FlowerConfig
from tests.flower.grid import LocalGrid, blocks
from tests.flower.test_parity import lines_of, models_of

CPU = torch.device("cpu")
BAD = 1000 - 1  # the node that misbehaves: it holds clients 2 and 3


def message():
    model = {"0.weight": torch.randn(3, 2, 4), "0.bias": torch.randn(3, 2)}
    shared = {"w": torch.randn(5).expand(3, 5), "empty": torch.zeros(0, 4).expand(3, 0, 4)}
    return {"model": model, "ids": {"who": torch.arange(3), "seen": torch.tensor([True, False, True])}, "all": shared}


def test_messages_come_back_bit_for_bit():
    sent = message()
    content = RecordDict(pack("m", sent))
    back = unpack("m", content, 3, CPU)
    for (name, a), (other, b) in zip(sorted(tensors(sent)), sorted(tensors(back)), strict=True):
        assert name == other
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert back["all"]["w"].stride(0) == 0  # travelled once
    assert codec.size(content) < sum(v.numel() * v.element_size() for _, v in tensors(sent)) + 6 * 128


def test_rows_for_other_clients_than_asked_are_refused():
    with pytest.raises(Malformed, match="for 2 clients"):
        unpack("m", RecordDict(pack("m", message())), 2, CPU)


@pytest.mark.parametrize("name", ["m", "m.layout"])
def test_a_record_that_is_missing_or_another_is_refused(name):
    records = pack("m", message())
    with pytest.raises(Malformed):
        unpack("m", RecordDict({key: value for key, value in records.items() if key != name}), 3, CPU)
    other = ConfigRecord({}) if "layout" not in name else ArrayRecord({})
    with pytest.raises(Malformed):
        unpack("m", RecordDict({**records, name: other}), 3, CPU)


LIES = {
    "too wide": {"rows float32 model/w": [9]},
    "too narrow": {"rows float32 model/w": [3]},
    "nothing": {},
    "negative": {"rows float32 model/w": [-1, -4]},
    "twice": {"rows float32 model/w": [2], "rows  float32 model/w": [2]},
    "elsewhere": {"shared float32 model/w": [4]},
    "no name": {"rows float32 w": [4]},
    "no shape": {"rows float32 model/w": "4"},
    "wraps around": {"rows float32 model/w": [2**62, 4, 2**62]},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_layout_that_lies_is_refused(lie):
    stack = ArrayRecord({"rows float32": to_array(torch.zeros(2, 4))})
    content = RecordDict({"m": stack, "m.layout": ConfigRecord(LIES[lie])})
    with pytest.raises(Malformed):
        unpack("m", content, 2, CPU)


def saved(array, **options) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def array(data: bytes, kind="numpy.ndarray") -> Array:
    return Array("float32", (2,), kind, data)


def test_arrays_that_are_not_what_they_say_are_refused():
    good = saved(np.zeros(4, dtype=np.float32))
    assert to_tensor(array(good)).shape == (4,)  # the bytes count, not what stands beside them
    huge = good.replace(b"(4,)", b"(9" + b"9" * 12 + b",)")  # would be allocated by np.load
    half = saved(np.zeros(4, dtype=np.float16))
    pickled = saved(np.array([{"a": 1}], dtype=object), allow_pickle=True)
    columns = saved(np.asfortranarray(np.zeros((2, 3), dtype=np.float32)))
    swapped = saved(np.zeros(4, dtype=">f4"))
    neither = saved(np.array([0, 7], dtype=np.uint8).view(np.bool_))
    for data in (b"", b"\x93NUMPY", good[:-1], good + b"x", huge, half, pickled, columns, swapped, neither):
        with pytest.raises(Malformed):
            to_tensor(array(data))
    with pytest.raises(Malformed):
        to_tensor(array(good, "pickle"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_damaged_arrays_never_raise_anything_else(noise, place):
    data = saved(np.arange(6, dtype=np.float32))
    damaged = data[:place] + noise + data[place + len(noise) :]
    with contextlib.suppress(Malformed):
        assert to_tensor(array(damaged)).numel() <= len(damaged)


def upload_changed(change):
    """A fault: the reply with its upload changed by `change(message of 2 rows)`."""

    def fault(_, reply: Message) -> Message:
        if "upload" in reply.content:
            upload = {part: dict(rows) for part, rows in unpack("upload", reply.content, 2, CPU).items()}
            records = pack("upload", change(upload))
            reply.content.update(records)
        return reply

    return fault


def with_nan(upload):
    name, value = next(iter(upload["model"].items()))
    upload["model"][name] = value.clone()
    upload["model"][name][1].view(-1)[0] = torch.nan
    return upload


def each(change):
    return lambda upload: {part: {name: change(value) for name, value in rows.items()} for part, rows in upload.items()}


CHANGES = {
    "a part is missing": lambda upload: {"model": upload["model"]},
    "a part too many": lambda upload: {**upload, "extra": upload["model"]},
    "other names": lambda upload: {part: {f"x{k}": v for k, v in rows.items()} for part, rows in upload.items()},
    "another type": each(lambda value: value.double()),
    "another shape": each(lambda value: value[:, :1]),
    "transposed": each(lambda value: value.mT if value.ndim == 3 else value),
}


def run_with(tmp_path, fault, **options):
    config = FlowerConfig(clients=6, rounds=2, min_nodes=3, out=str(tmp_path / "out"), **options).resolved()
    grid = LocalGrid(config, blocks(3, str(tmp_path / "nodes")))
    grid.faults[BAD] = fault
    server.run(grid, config, simulated=False)
    return lines_of(tmp_path / "out"), models_of(tmp_path / "nodes")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_an_upload_of_another_signature_is_dropped_whole(tmp_path, change):
    lines, models = run_with(tmp_path, upload_changed(CHANGES[change]))
    for line in lines[:2]:
        ((reason, clients),) = line["missing"].items()
        assert reason.startswith("invalid: upload")
        assert clients == [2, 3]
        assert line["participants"] == 4
    assert all(value.isfinite().all() for value in models.values())


def test_one_client_that_diverges_is_dropped_alone(tmp_path):
    lines, models = run_with(tmp_path, upload_changed(with_nan))
    for line in lines[:2]:
        assert line["missing"] == {"not finite": [3]}
        assert line["participants"] == 5
        assert line["before"]["all"] is not None
    assert all(value.isfinite().all() for value in models.values())


@pytest.mark.parametrize("algorithm", ["fedavg", "feddwa"])
def test_huge_numbers_change_nobodys_model(tmp_path, algorithm):
    """A node with 2 of 6 clients sends 1e11: finite, but out of proportion. The others end as if it had not come."""
    huge = upload_changed(each(lambda value: torch.full_like(value, 1e11)))
    lines, models = run_with(tmp_path / "huge", huge, algorithm=algorithm)
    diverged = upload_changed(each(lambda value: torch.full_like(value, torch.nan)))
    others, expected = run_with(tmp_path / "nan", diverged, algorithm=algorithm)
    assert [line["missing"] for line in lines[:2]] == [{"out of proportion": [2, 3]}] * 2
    assert [line["missing"] for line in others[:2]] == [{"not finite": [2, 3]}] * 2
    honest = [0, 1, 4, 5]
    assert all(torch.equal(value[honest], expected[name][honest]) for name, value in models.items())


def replies_of_old(tmp_path, of):
    """A run whose bad node answers every round with what node `of` answered to the first one."""
    config = FlowerConfig(clients=6, rounds=2, min_nodes=3, out=str(tmp_path / "out")).resolved()
    grid, first = LocalGrid(config, blocks(3, str(tmp_path / "nodes"))), {}

    def kept(node):
        def fault(message, reply):
            if message.metadata.message_type == "train":
                first.setdefault(node, reply.content)
                return Message(first[of], reply_to=message) if node == BAD and of in first else reply
            return reply

        return fault

    grid.faults = {node: kept(node) for node in grid.nodes}
    server.run(grid, config, simulated=False)
    return lines_of(tmp_path / "out")


@pytest.mark.parametrize(("of", "rounds"), [(BAD, [False, True]), (998, [True, True])])
def test_its_own_reply_to_an_earlier_round_or_that_of_another_node_is_refused(tmp_path, of, rounds):
    lines = replies_of_old(tmp_path, of)
    refused = {"invalid: state: a reply to another message, or one sent again": [2, 3]}
    assert [line.get("missing") for line in lines[:2]] == [refused if wrong else None for wrong in rounds]
    assert [line["participants"] for line in lines[:2]] == [4 if wrong else 6 for wrong in rounds]


def test_a_reply_is_given_up_at_the_first_object_too_many():
    """Nothing more is fetched than is allowed, whatever the reply says that it has."""
    fetched = []
    parcel = Parcel("reply", "asked", [f"object {number}" for number in range(1000)])
    with pytest.raises(Malformed, match=r"4,000,000 bytes, the limit is 3,000,000"):
        parcel.fetch(lambda name: fetched.append(name) or bytes(10**6), 3e6)
    assert len(fetched) == 4


def test_a_reply_that_arrives_in_pieces_is_continued_where_it_stood():
    here = {"b": b"there"}

    def pull(name):
        if name not in here:
            raise ObjectUnavailableError(name)
        return here[name]

    parcel = Parcel("reply", "asked", ["a", "b"])
    assert not parcel.fetch(pull, 1e6)
    here["a"] = b"now"
    del here["b"]  # it is not fetched again
    assert parcel.fetch(pull, 1e6)
    assert parcel.contents == {"a": b"now", "b": b"there"}


def test_a_reply_beyond_the_limit_is_not_looked_at(tmp_path):
    lines, _ = run_with(tmp_path, lambda _, reply: reply, max_megabytes=0.01)
    assert all(line["participants"] == 0 and "missing" in line for line in lines[:2])
    assert "the limit is 10,000" in next(iter(lines[0]["missing"]))


def scores_changed(name, value):
    def fault(_, reply: Message) -> Message:
        if "scores" in reply.content:
            reply.content["scores"][name] = value
        return reply

    return fault


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("before.accuracy", [0.5, 1.5]),
        ("before.accuracy", [0.5]),
        ("before.loss", [1, 2]),
        ("before.loss", "0.5"),
        ("flops", [-1.0, 1.0]),
        ("flops", [float("inf"), 1.0]),
    ],
)
def test_scores_out_of_range_are_refused(tmp_path, name, value):
    lines, _ = run_with(tmp_path, scores_changed(name, value))
    assert [line["missing"][f"invalid: {reason}"] for line in lines[:1] for reason in _reasons(line)] == [[2, 3]]


def _reasons(line):
    return [reason.removeprefix("invalid: ") for reason in line["missing"]]


def test_a_reply_without_anything_in_it_is_an_invalid_one(tmp_path):
    empty = lambda message, reply: Message(RecordDict(), reply_to=message) if "task" in message.content else reply  # noqa: E731
    lines, _ = run_with(tmp_path, empty)
    assert [line["missing"] for line in lines] == [{"invalid: state: no such record of settings": [2, 3]}] * 3


def test_a_node_that_describes_nothing_is_not_admitted(tmp_path):
    with pytest.raises(RuntimeError, match=r"2 of 3 nodes.*facts: no such record"):
        run_with(tmp_path, lambda message, _: Message(RecordDict(), reply_to=message), wait=1.0)
