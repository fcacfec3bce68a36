"""Mutated replies through the real path, from Flower's objects to the combined round: refused and named, or harmless.

An attacker chooses the bytes of its objects freely, so mutations work on those and on the records. Whatever it sends,
the updates of the others come out bit for bit, no exception escapes, nothing is unpickled, and memory stays bounded.
"""

import functools
import json
import pickle
import random
import re
import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.task_identity import TaskIdentity

from feddwa.engine import Scores
from feddwa.flower import codec
from feddwa.flower.inbox import opened
from feddwa.flower.replies import Assignment, Replies, collect_replies, read_reply
from feddwa.flower.validation import Expected
from feddwa.updates import OVERSIZED, oversized, signature

LIMIT = 1e6  # bytes of a reply
NAMES = Scores._fields[:2]
BAD = 2  # the node that sends mutations; it holds clients 2 and 3
TASKS = {node: Assignment(str(node), rows, rows, rows) for node, rows in {1: [0, 1], BAD: [2, 3], 3: [4, 5]}.items()}
PICKLED = pickle.dumps(np.zeros(3))


def upload(node):
    rng = torch.Generator().manual_seed(node)
    model = {"w": torch.randn(2, 3, 4, generator=rng), "b": torch.randn(2, 4, generator=rng)}
    return {"model": model, "guidance": {name: value + 0.1 for name, value in model.items()}}


def content_of(node, nonce):
    scores = {f"{when}.{name}": [0.5, 0.5] for when in ("before", "after") for name in NAMES} | {"flops": [1.0, 1.0]}
    records = codec.pack("upload", upload(node))
    state = ConfigRecord({"remembered": 0, "nonce": nonce})
    return RecordDict({"scores": ConfigRecord(scores), "state": state, **records})


EXPECTED = Expected(signature(upload(1)), torch.device("cpu"), NAMES)


def objects_of(content):
    """The message with a content, as the objects that cross: its id, and id -> bytes."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3
    message = Message(content, 1, "train", ttl=60.0)
    with no_object_id_recompute():
        return message.object_id, {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}


def an_array(content, rng):
    name = rng.choice([name for name in content if isinstance(content[name], ArrayRecord) and content[name]])
    return content[name], rng.choice(list(content[name]))


def set_array(content, rng, data=None, **changes):
    record, key = an_array(content, rng)
    old = record[key]
    fields = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data if data is None else data}
    record[key] = Array(**{**fields, **changes})


def tensor_changed(change):
    def mutate(content, rng):
        record, key = an_array(content, rng)
        record[key] = codec.to_array(change(codec.to_tensor(record[key]), rng))

    return mutate


def truncated(content, rng):
    record, key = an_array(content, rng)
    data = record[key].data
    set_one(record, key, data[: rng.randrange(len(data))])


def set_one(record, key, data):
    record[key] = Array("float32", (2,), "numpy.ndarray", data)


def lengthened(content, rng):
    record, key = an_array(content, rng)
    set_one(record, key, record[key].data + rng.randbytes(rng.randrange(1, 100)))


def header(content, rng):
    record, key = an_array(content, rng)
    lies = (b"(9999999999999,", b"(-1, 4, 9, 9, 9", b"__import__('os')", b"(1e9, None, 99,")
    set_one(record, key, record[key].data.replace(record[key].data[60:75], rng.choice(lies)[:15], 1))


def filled(content, rng):
    value = rng.choice([torch.nan, torch.inf, -torch.inf, 3e38, 1e11, 1e13])
    record, key = an_array(content, rng)
    old = codec.to_tensor(record[key])
    if old.is_floating_point():
        old.view(-1)[rng.randrange(old.numel())] = value
        record[key] = codec.to_array(old)


def settings_changed(content, rng):
    name = rng.choice([name for name in content if isinstance(content[name], ConfigRecord)])
    values = dict(content[name])
    key = rng.choice(list(values))
    values[key] = rng.choice([2**62, -1, 0.5, "x" * 1000, "\n", True, [2**62], [-1, -4], [], [0] * 999, b"\0" * 50])
    content[name] = ConfigRecord(values)


def settings_more(content, rng):
    name = rng.choice([name for name in content if isinstance(content[name], ConfigRecord)])
    more = {f"rows float32 model/{place}\n": [rng.randrange(9)] for place in range(rng.choice([1, 500]))}
    content[name] = ConfigRecord({**content[name], **more})


def dropped(content, rng):
    del content[rng.choice(list(content))]


def renamed(content, rng):
    names = rng.sample(list(content), 2)
    content[names[0]] = content[names[1]]


def replayed(content, rng):
    content["state"] = ConfigRecord({"remembered": 0, "nonce": rng.choice([TASKS[1].nonce, "0" * 32, ""])})


def of_others(content, rng):
    for name, record in codec.pack(
        "upload", {p: {n: v[:1] for n, v in r.items()} for p, r in upload(1).items()}
    ).items():
        content[name] = record


def pickled(content, rng):
    record, key = an_array(content, rng)
    record[key] = Array("float32", (2,), rng.choice(["numpy.ndarray", "pickle"]), PICKLED)


RECORDS = (
    truncated, lengthened, header, filled, settings_changed, settings_more, dropped, renamed, replayed, of_others,
    pickled,
    tensor_changed(lambda value, rng: value.double() if value.dtype == torch.float32 else value.float()),
    tensor_changed(lambda value, rng: value[: rng.randrange(len(value))]),
    tensor_changed(lambda value, rng: torch.cat([value] * rng.choice([2, 300]))),
    tensor_changed(lambda value, rng: value.reshape(-1)),
)  # fmt: skip


def bytes_changed(root, objects, rng):
    """Any bytes of any object."""
    name = rng.choice(list(objects))
    data = bytearray(objects[name])
    for _ in range(rng.choice([1, 3, 30])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    objects[name] = bytes(data)


def object_cut(root, objects, rng):
    name = rng.choice(list(objects))
    objects[name] = objects[name][: rng.randrange(len(objects[name]))]


def object_lost(root, objects, rng):
    del objects[rng.choice(list(objects))]


def objects_exchanged(root, objects, rng):
    a, b = rng.sample(list(objects), 2)
    objects[a], objects[b] = objects[b], objects[a]


def object_inflated(root, objects, rng):
    """A small body that stands for a huge array: the same piece, many times."""
    name = rng.choice([name for name, data in objects.items() if data.startswith(b"Array ")])
    head, _, body = objects[name].partition(b"\0")
    kind, children, _ = head.split(b" ")
    facts = json.loads(body)
    facts["arraychunk_ids"] = [0] * rng.choice([10**4, 10**5])
    body = json.dumps(facts).encode()
    objects[name] = b" ".join([kind, children, str(len(body)).encode()]) + b"\0" + body


def object_huge(root, objects, rng):
    name = rng.choice(list(objects))
    objects[name] += bytes(2 * int(LIMIT))


OBJECTS = (bytes_changed, object_cut, object_lost, objects_exchanged, object_inflated, object_huge)


@functools.cache
def unchanged():
    """The honest reply of the bad node."""
    return objects_of(content_of(BAD, TASKS[BAD].nonce))


def received(number):
    """The answer of the bad node to mutation `number`."""
    rng = random.Random(number)
    if number % 2:
        content = content_of(BAD, TASKS[BAD].nonce)
        for _ in range(rng.choice([1, 1, 2, 5])):
            if len(content) > 1:
                try:
                    rng.choice(RECORDS)(content, rng)
                except (codec.Malformed, ValueError, TypeError, KeyError, IndexError):  # one mutation upon another
                    continue
        root, objects = objects_of(content)
    else:
        root, objects = unchanged()
        objects = dict(objects)
        rng.choice(OBJECTS)(root, objects, rng)
    return opened(root, objects, LIMIT)


@functools.cache
def honest():
    """The replies of the other two nodes."""
    answers = {node: opened(*objects_of(content_of(node, TASKS[node].nonce)), LIMIT) for node in (1, 3)}
    return {node: read_reply(answer, TASKS[node], EXPECTED) for node, answer in answers.items()}


def combined(answer) -> tuple[Replies, dict[int, str]]:
    """The round with the bad node's answer, and who is missing in it."""
    missing: dict[int, str] = {}
    found = {**honest(), BAD: read_reply(answer, TASKS[BAD], EXPECTED)}
    replies = collect_replies(TASKS, found, NAMES, 6, missing)
    huge = oversized(replies.upload, {"model": replies.upload["model"]}, (), len(replies.ids))
    missing |= dict.fromkeys(replies.ids[huge].tolist(), OVERSIZED)
    return replies.only(~huge), missing


def check(numbers, monkeypatch, caplog):
    alone, _ = combined("late")
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("something was unpickled"))
    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("something was unpickled"))
    refused = 0
    for number in numbers:
        caplog.clear()
        replies, missing = combined(received(number))
        assert set(missing) <= {2, 3}, number
        assert sorted([*missing, *replies.ids.tolist()]) == [0, 1, 2, 3, 4, 5], number
        others = torch.isin(replies.ids, torch.tensor([0, 1, 4, 5]))
        for part, rows in alone.upload.items():
            for name, value in rows.items():
                assert torch.equal(replies.upload[part][name][others], value), number
                assert replies.upload[part][name].isfinite().all(), number
        lines = [record.getMessage() for record in caplog.records]
        assert all("\n" not in line and len(line) < 1000 for line in lines), number
        assert lines or not missing or OVERSIZED in missing.values(), number
        refused += bool(missing)
    return refused


def test_an_honest_reply_is_taken():
    replies, missing = combined(opened(*objects_of(content_of(BAD, TASKS[BAD].nonce)), LIMIT))
    assert not missing
    assert replies.ids.tolist() == [0, 1, 2, 3, 4, 5]


def test_three_hundred_mutated_replies(monkeypatch, caplog):
    assert check(range(300), monkeypatch, caplog) > 200


@pytest.mark.parametrize("mutate", [object_inflated, object_huge])
def test_memory_is_bounded_by_the_limit_of_a_reply(mutate):
    """Pieces that are named a hundred thousand times would be gigabytes, were they put together."""
    for number in range(5):
        root, objects = objects_of(content_of(BAD, TASKS[BAD].nonce))
        mutate(root, objects, random.Random(number))
        tracemalloc.start()
        answer = opened(root, objects, LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(answer, str)  # why it is refused
        assert peak < 20 * LIMIT  # a list of numbers among them


def test_names_and_settings_are_counted_and_have_a_limit_of_their_own():
    """A layout of millions of entries takes many times its bytes once it is read."""
    content = content_of(BAD, TASKS[BAD].nonce)
    content["more"] = ConfigRecord({"x": bytes(5 * 10**6)})
    answer = opened(*objects_of(content), 100 * LIMIT)
    assert isinstance(answer, str)
    assert re.fullmatch(r"invalid: 5,00\d,\d{3} bytes of names and settings, the limit is 4,000,000", answer)


@pytest.mark.slow
def test_five_thousand_mutated_replies(monkeypatch, caplog):
    assert check(range(300, 5_300), monkeypatch, caplog) > 3_500
