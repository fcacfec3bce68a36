"""Checkpoints: bit for bit, whole or not at all, the last two kept, damage noticed."""

import os
import struct
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddwa import checkpoint

KINDS = list(checkpoint.DTYPES)
NAMES = st.text(min_size=1, max_size=8)


def equal(left, right) -> bool:
    """The same tree: names in their order, types, shapes and bits (NaN included)."""
    if isinstance(left, torch.Tensor):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and torch.equal(
            left.reshape(-1).contiguous().view(torch.uint8), right.reshape(-1).contiguous().view(torch.uint8)
        )
    return list(left) == list(right) and all(equal(value, right[key]) for key, value in left.items())


@st.composite
def tensors(draw):
    kind, shape = draw(st.sampled_from(KINDS)), draw(st.lists(st.integers(0, 3), max_size=3))
    count = torch.Size(shape).numel() * torch.empty(0, dtype=kind).element_size()
    raw = draw(st.binary(min_size=count, max_size=count))
    if kind == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(raw), dtype=kind).reshape(shape)


TREES = st.dictionaries(
    NAMES, st.one_of(tensors(), st.recursive(st.just({}), lambda below: st.dictionaries(NAMES, below | tensors())))
)
FACTS = st.dictionaries(st.text(), st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(tree=TREES, facts=FACTS)
def test_trees_come_back_bit_for_bit(tree, facts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    checkpoint.save(folder, 7, tree, facts)
    found = checkpoint.latest(folder, pytest.fail)
    assert (found.round, found.facts) == (7, facts)
    assert equal(found.tree, tree)


def test_shared_memory_is_written_once_and_shared_again(tmp_path):
    one = torch.randn(1000)
    tree = {"rows": {"same": one.expand(500, 1000), "turned": torch.randn(3, 4).T, "cut": torch.randn(9, 9)[2:4, 1:5]}}
    path = checkpoint.save(tmp_path, 1, tree, {})
    assert path.stat().st_size < 10_000
    found = checkpoint.latest(tmp_path).tree
    assert equal(found, tree)
    assert found["rows"]["same"].stride() == (0, 1)


def test_the_last_two_are_kept(tmp_path):
    for round in (1, 2, 3, 4):
        checkpoint.save(tmp_path, round, {"x": torch.tensor(round)}, {})
    assert sorted(path.name[:12] for path in tmp_path.iterdir()) == ["round-000003", "round-000004"]
    checkpoint.save(tmp_path, 4, {"x": torch.tensor(40)}, {})  # another past: the old fourth round is gone
    checkpoint.save(tmp_path, 2, {"x": torch.tensor(20)}, {})
    assert [int(path.name[6:12]) for path in tmp_path.iterdir()] == [2]
    assert int(checkpoint.latest(tmp_path).tree["x"]) == 20


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "swap", "grow"])
def test_damage_is_noticed_and_the_one_before_serves(tmp_path, damage):
    for round in (1, 2):
        newest = checkpoint.save(tmp_path, round, {"x": torch.full((50,), round)}, {"round": round})
    data = newest.read_bytes()
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    other = next(path for path in tmp_path.iterdir() if path != newest).read_bytes()
    newest.write_bytes({"cut": data[:-9], "flip": changed, "empty": b"", "swap": other, "grow": data + b"x"}[damage])
    told = []
    found = checkpoint.latest(tmp_path, told.append)
    assert (found.round, found.facts) == (1, {"round": 1})
    assert len(told) == 1
    assert str(newest) in told[0]
    assert "not what was written" in told[0]


def test_nothing_there_is_none(tmp_path):
    assert checkpoint.latest(tmp_path / "absent", pytest.fail) is None
    (tmp_path / "next.part").write_bytes(b"half")
    assert checkpoint.latest(tmp_path, pytest.fail) is None


def test_the_default_warning_is_one_line(tmp_path, capsys):
    path = checkpoint.save(tmp_path, 1, {}, {})
    path.write_bytes(b"")
    assert checkpoint.latest(tmp_path) is None
    assert capsys.readouterr().err.count("\n") == 1


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200), header=st.none() | st.binary(max_size=100))
def test_any_content_is_a_warning_never_a_crash(content, header, tmp_path_factory):
    """Content whose sum is right, but which nobody here wrote."""
    import hashlib

    folder = tmp_path_factory.mktemp("hostile")
    if header is not None:
        content = struct.pack("<Q", len(header)) + header + content
    (folder / f"round-000001-{hashlib.sha256(content).hexdigest()}.safetensors").write_bytes(content)
    told = []
    assert checkpoint.latest(folder, told.append) is None
    assert len(told) == 1


def test_a_newer_version_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", 9)
    checkpoint.save(tmp_path, 1, {}, {})
    monkeypatch.undo()
    told = []
    assert checkpoint.latest(tmp_path, told.append) is None
    assert "version 9" in told[0]


def test_written_in_the_background_from_a_copy(tmp_path):
    go, value = threading.Event(), torch.zeros(5)
    writer = checkpoint.Writer(tmp_path)
    writer.save(1, {"x": value}, {}, before=lambda: go.wait(10) and None)
    value += 1  # the run continues
    assert checkpoint.latest(tmp_path) is None
    go.set()
    writer.close()
    assert checkpoint.latest(tmp_path).tree["x"].tolist() == [0] * 5


def test_what_goes_wrong_in_the_background_is_raised_once(tmp_path):
    (tmp_path / "file").write_text("")
    writer = checkpoint.Writer(tmp_path / "file")
    writer.save(1, {}, {})
    with pytest.raises(OSError, match="file"):
        writer.save(2, {}, {})
    writer.directory = tmp_path / "folder"
    writer.save(3, {}, {})
    writer.close()
    assert checkpoint.latest(tmp_path / "folder").round == 3


def test_file_and_folder_are_synced_around_the_rename(tmp_path, monkeypatch):
    steps = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), real_sync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("rename"), real_replace(*names))[1])
    checkpoint.save(tmp_path, 1, {"x": torch.ones(2)}, {})
    assert steps == ["sync", "rename", "sync"]
