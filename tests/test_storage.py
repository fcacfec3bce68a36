"""Files that are replaced whole or not at all."""

import contextlib
import hashlib

from feddwa.storage import replacing, write_named, write_whole


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "f"
    assert write_whole(path, "one") == hashlib.sha256(b"one").hexdigest()
    with contextlib.suppress(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "one"
    with replacing(path) as temporary:
        temporary.write_text("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two"
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


def test_a_file_may_be_named_by_its_sum(tmp_path):
    path = write_named(tmp_path, iter([b"a", memoryview(b"b")]), lambda digest: f"x-{digest}")
    assert path == tmp_path / f"x-{hashlib.sha256(b'ab').hexdigest()}"
    assert path.read_bytes() == b"ab"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
