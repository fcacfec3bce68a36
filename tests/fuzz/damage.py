"""Damage to a sound file: an edit is a short list, as JSON has it, so that it can be kept without the file."""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from tests.fuzz.case import byte_change, changed

Edit = list[Any]  # kind, and what it takes

LITERALS = (
    "null", '"x"', '""', "-1", "0", "1", "3.5", "1e999", "NaN", "-Infinity", "[]", "[1, [2]]", "{}", '{"all": 1}',
    "true", "9" * 30, "9" * 400, "1e17", "1e-300", '"\\ud800"', '"a\\nb"', '"[/x]"', "[null]", '"../../x"',
    "[" * 3000 + "]" * 3000,
)  # fmt: skip
TOML = ("-1", "0", "1", "nan", "1e999", '"x"', '""', '"[/x]"', "[]", '["x"]', "true", "9" * 12, "1979-05-27", "{}")
TENSORS = ("drop", "nan", "inf", "zero", "huge", "minus", "half", "whole", "first", "axis", "empty", "add")


def draw(rng: random.Random, content: bytes, suffix: str) -> Edit:
    """An edit of a file with this content."""
    if suffix == ".safetensors" and rng.random() < 0.5:
        return ["tensor", rng.choice([*safetensors.load(content), "weights/", "x/y"]), rng.choice(TENSORS)]
    if suffix == ".safetensors" and rng.random() < 0.7:
        about = rng.random() < 0.6
        paths = list(_places(_about(content) if about else _header(content)))
        return ["about" if about else "header", list(rng.choice(paths)), _literal(rng)] if paths else ["drop"]
    if suffix in (".json", ".jsonl") and rng.random() < 0.8:
        lines = [content] if suffix == ".json" else content.splitlines()
        number = rng.randrange(len(lines))
        if rng.random() < 0.1:
            return ["line", number, rng.choice([None, _literal(rng), 2])]
        return [
            "json",
            number if suffix == ".jsonl" else None,
            list(_path(rng, json.loads(lines[number]))),
            _literal(rng),
        ]
    if suffix == ".toml" and rng.random() < 0.8:
        number = rng.randrange(len(content.splitlines()))
        return ["toml", number, rng.choice([None, *TOML, *TOML])]
    return ["drop"] if rng.random() < 0.05 else ["bytes", *byte_change(rng, len(content))]


def apply(edit: Edit, content: bytes) -> bytes | None:
    """The content after an edit; None where the file is gone."""
    kind, *rest = edit
    if kind == "drop":
        return None
    if kind == "bytes":
        return changed(rest, content)
    known = {"line": _line, "json": _json, "toml": _toml, "tensor": _tensor, "header": _in_header, "about": _in_about}
    return known[kind](content, *rest)


def resum(folder: Path) -> None:
    """Write the sums of a finished run anew, as somebody does who changes its files on purpose."""
    file = folder / "SHA256SUMS"
    names = [line.split("  ", 1)[1] for line in file.read_text().splitlines() if "  " in line]
    there = [name for name in names if (folder / name).is_file()]
    file.write_text("".join(f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in there))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside a value; of a list, the first and the last."""
    inside = list(value.items()) if isinstance(value, dict) else []
    inside = list(enumerate(value)) if isinstance(value, list) else inside
    for key, each in inside if isinstance(value, dict) else [*inside[:1], *inside[1:][-1:]]:
        yield (*path, key)
        yield from _places(each, (*path, key))


def _path(rng: random.Random, value: Any) -> tuple[Any, ...]:
    """Down into a value, at every level with even odds for each key: a long table does not hide the rest."""
    path: tuple[Any, ...] = ()
    while isinstance(value, dict | list) and value and (not path or rng.random() < 0.6):
        key = rng.choice([*value]) if isinstance(value, dict) else rng.choice([0, len(value) - 1])
        path, value = (*path, key), value[key]
    return path


def _literal(rng: random.Random) -> str | None:
    return None if rng.random() < 0.15 else rng.choice(LITERALS)


def _replaced(value: Any, path: list[Any], literal: str | None) -> str:
    """A value as JSON with something else at a path; None drops it."""
    place = copy = json.loads(json.dumps(value))
    if not path:
        return literal or ""
    try:
        for key in path[:-1]:
            place = place[key]
        if literal is None:
            del place[path[-1]]
        else:
            place[path[-1]] = "\0"
    except (LookupError, TypeError):  # a kept case whose file looks different today
        return json.dumps(copy)
    return json.dumps(copy).replace('"\\u0000"', literal or "", 1)


def _json(content: bytes, number: int | None, path: list[Any], literal: str | None) -> bytes:
    if number is None:
        return _replaced(json.loads(content), path, literal).encode()
    lines = content.splitlines()
    number = min(number, len(lines) - 1)
    lines[number] = _replaced(json.loads(lines[number]), path, literal).encode()
    return b"\n".join(lines) + b"\n"


def _line(content: bytes, number: int, other: Any) -> bytes:
    lines = content.splitlines()
    number = min(number, len(lines) - 1)
    lines[number : number + 1] = [] if other is None else [lines[number]] * 2 if other == 2 else [other.encode()]
    return b"".join(line + b"\n" for line in lines)


def _toml(content: bytes, number: int, literal: str | None) -> bytes:
    lines = content.splitlines()
    number = min(number, len(lines) - 1)
    name = lines[number].partition(b" = ")[0]
    lines[number : number + 1] = [] if literal is None else [name + b" = " + literal.encode()]
    return b"\n".join(lines) + b"\n"


def _tensor(content: bytes, name: str, how: str) -> bytes:
    stored, metadata = safetensors.load(content), _header(content).get("__metadata__")
    value = stored.pop(name, np.zeros((2, 2), np.float32))
    number = value.astype(np.float32)
    changed = {
        "nan": np.full_like(number, np.nan), "inf": np.full_like(number, np.inf), "zero": np.zeros_like(value),
        "huge": np.full_like(number, 1e38), "minus": -number, "half": value.astype(np.float16),
        "whole": value.astype(np.int64), "first": value[:1] if value.ndim else value, "axis": value[None],
        "empty": np.zeros((0, *value.shape[1:]), value.dtype), "add": value,
    }  # fmt: skip
    if how != "drop":
        stored[name] = np.ascontiguousarray(changed[how])
    return safetensors.save(stored, metadata)


def _header(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    found: dict[str, Any] = json.loads(content[8 : 8 + length])
    return found


def _about(content: bytes) -> Any:
    return json.loads(_header(content).get("__metadata__", {}).get("feddwa", "{}"))


def _in_header(content: bytes, path: list[Any], literal: str | None) -> bytes:
    text = _replaced(_header(content), path, literal).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + int.from_bytes(content[:8], "little") :]


def _in_about(content: bytes, path: list[Any], literal: str | None) -> bytes:
    text = _replaced(_about(content), path, literal)
    return _in_header(content, ["__metadata__", "feddwa"], json.dumps(text))
