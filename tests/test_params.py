"""Hyper-parameters from text, TOML and Python: what is taken, and what the refusal says."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
import torch

import feddwa
from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.data.partition import PARTITIONS
from feddwa.errors import InputError
from feddwa.params import LARGEST, AtMost, Repeats, build, check, fields_of, in_words, parse, typed


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


@dataclass(frozen=True)
class Bounded:
    steps: Repeats = 1
    few: Annotated[int, AtMost(3)] | None = None
    plain: int | None = None


def test_whole_numbers_are_bounded_by_their_type():
    assert build(Bounded, {"steps": "10000", "few": "3", "plain": str(LARGEST)}, "x") == Bounded(10_000, 3, LARGEST)
    for name, value, most in (("steps", 10_001, "10,000"), ("few", 4, "3"), ("plain", 10**9, "1,000,000")):
        with pytest.raises(InputError, match=f"^--param {name}: got {value}, must be at most {most}$"):
            build(Bounded, {name: str(value)}, "x")
        with pytest.raises(InputError, match=f"^--param {name}: got {value}, must be at most {most}$"):
            check(Bounded(**{name: value}))
    with pytest.raises(InputError, match="must be a number that a float can hold"):
        typed("--lr", 10**400, float)


@pytest.mark.parametrize("text", ["1_0", " 3", "3 ", "\uff13", "0x3", "3.0", "", "three"])
def test_numbers_are_plain_digits(text):
    with pytest.raises(InputError, match=r"--param count: got .*, must be a whole number"):
        build(Example, {"count": text}, "example")
    assert build(Example, {"rate": "+1.5E-3"}, "example").rate == 0.0015


@pytest.mark.parametrize("text", ["a\nb", "\x00", "\x7f", "\x1b[0m", "\udcff", "\u2028"])
def test_text_is_one_line(text):
    with pytest.raises(InputError, match="must be text without control characters") as refused:
        typed("--out", text, str)
    assert str(refused.value).isprintable()
    with pytest.raises(InputError, match="--param: got"):
        typed("--param", ["a=1", text], tuple[str, ...])
    assert typed("--out", "données \u200d名 [/x]", str) == "données \u200d名 [/x]"


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


def whole_numbers(kinds: dict[str, type]) -> list[tuple[str, str]]:
    """Owner and name of every hyper-parameter or option that is a whole number."""
    return [
        (owner, name)
        for owner, kind in kinds.items()
        for name, (type_, _) in fields_of(kind).items()
        if in_words(type_) == "a whole number"
    ]


@pytest.mark.parametrize("value", [10**9, 2**63, 2**64, 10**30])
def test_every_whole_number_is_bounded(value, capsys):
    """No count of a method or partition, and no option of a command, may be so large that nothing ends."""
    for owner, name in whole_numbers({**ALGORITHMS, **PARTITIONS}):
        kind = {**ALGORITHMS, **PARTITIONS}[owner]
        with pytest.raises(InputError, match=rf"^--param {name}: got {value}, must be at most [\d,]+$"):
            build(kind, {name: str(value)}, owner)
        with pytest.raises(InputError, match=rf"^--param {name}: got {value}, must be (at most|[\d.]+)"):
            check(kind(**{name: value}))
    commands = {name: command.options for name, command in cli.COMMANDS.items()}
    for command, name in whole_numbers(commands):
        if name == "seed" and value == 10**9:
            continue  # any number of 63 bits is a seed
        flag = f"--{name.replace('_', '-')}"
        assert cli.main([command, f"{flag}={value}"]) == 2, (command, name)
        assert re.match(rf"feddwa: {flag}: got {value}, must be at most", capsys.readouterr().err)


def test_an_instance_with_a_count_without_end_is_refused():
    data = [(np.ones((4, 2), np.float32), np.arange(4) % 2)] * 2
    with pytest.raises(InputError, match="--param inner_steps: got 1000000000, must be at most 10,000"):
        feddwa.run(
            model=torch.nn.Linear(2, 2),
            dataset=data,
            algorithm=ALGORITHMS["pfedme"](inner_steps=10**9),
            rounds=1,
            out=False,
        )
