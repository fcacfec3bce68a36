"""Hyper-parameters from text, TOML and Python: what is taken, and what the refusal says."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from feddwa.errors import InputError
from feddwa.params import build, fields_of, in_words, parse, typed


@dataclass(frozen=True)
class Example:
    count: int = 1
    rate: float = 0.5
    flag: bool = False
    kind: Literal["near", "far"] = "near"
    limit: int | None = None


def test_fields_are_the_hyper_parameters():
    assert fields_of(Example)["count"] == (int, 1)
    assert list(fields_of(Example)) == ["count", "rate", "flag", "kind", "limit"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Example()),
        (
            {"count": "3", "rate": "1e-3", "flag": "true", "kind": "far", "limit": "7"},
            Example(3, 0.001, True, "far", 7),
        ),
        ({"flag": "False", "limit": "None"}, Example(flag=False, limit=None)),
        ({"count": 3, "rate": 2, "limit": None}, Example(3, 2.0)),
        ({"count": np.int64(3), "rate": np.float32(0.5)}, Example(3, 0.5)),
    ],
)
def test_text_and_values_are_taken(values, expected):
    built = build(Example, values, "example")
    assert built == expected
    assert [type(getattr(built, key)) for key in ("count", "rate")] == [int, float]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "many"}, "--param count: got 'many', must be a whole number"),
        ({"count": "1.5"}, "--param count: got '1.5', must be a whole number"),
        ({"count": 1.5}, "--param count: got 1.5, must be a whole number"),
        ({"count": True}, "--param count: got True, must be a whole number"),
        ({"count": None}, "--param count: got None, must be a whole number"),
        ({"rate": "fast"}, "--param rate: got 'fast', must be a number"),
        ({"flag": "1"}, "--param flag: got '1', must be true or false"),
        ({"flag": 1}, "--param flag: got 1, must be true or false"),
        ({"kind": "middle"}, "--param kind: got 'middle', must be one of near, far"),
        ({"limit": "few"}, "--param limit: got 'few', must be a whole number"),
        ({"size": 1}, "--param size: example has no such parameter; valid: count, rate, flag, kind, limit"),
    ],
)
def test_anything_else_is_refused_by_name(values, message):
    with pytest.raises(InputError) as refused:
        build(Example, values, "example")
    assert str(refused.value) == message


def test_lists_of_strings():
    kind = tuple[str, ...]
    assert typed("--param", ["a", "b"], kind) == ("a", "b")
    assert in_words(kind) == "a list of strings"
    for wrong in ("a=1", [1], None, {"a": 1}):
        with pytest.raises(InputError, match="must be a list of strings"):
            typed("--param", wrong, kind)


def test_parsing_leaves_what_it_cannot_read():
    assert parse("x", int) == "x"
    assert parse("none", int) == "none"
    assert parse("none", int | None) is None
    assert parse("3", str) == "3"
    assert parse(3.0, int) == 3.0
