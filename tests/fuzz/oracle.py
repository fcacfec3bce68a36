"""The command line called in this process, and what is sound about its answers."""

import contextlib
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from feddwa import cli
from feddwa.faults import Faults

FAILED = re.compile(r"feddwa: failed: .+: (nothing was trained|the loss is no finite number)[^\n]+\n")
FAULTS = ", ".join(field.name for field in fields(Faults))
NO_NUMBER = re.compile(r"(?<![\w./'-])[-+]?(nan|inf|infinity)(?![\w./'-])", re.IGNORECASE)


def call(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command. Both streams are UTF-8, as in a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(arguments)
        except SystemExit as leaving:  # --help
            status = int(leaving.code or 0)
    return status, *(_content(stream) for stream in (out, err))


def _content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


def answer(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Call a command: its status, its refusal and its output. Every status has the words that belong to it."""
    status, out, errors = call(arguments)
    assert status in (0, 1, 2), (arguments, status, errors)
    if status == 1:
        assert FAILED.search(errors) or "no place" in errors or _says_why(out), (arguments, out, errors)
    if status != 2:
        lines = errors.splitlines()
        assert all(line.isprintable() for line in lines), (arguments, errors)
        return status, "", out
    *notes, refusal = errors.splitlines(keepends=True)
    assert re.fullmatch(r"feddwa: [^\n]+\n", refusal), (arguments, errors)
    assert all(note.startswith("feddwa: ") for note in notes), (arguments, errors)
    assert refusal[:-1].isprintable(), (arguments, errors)
    assert len(refusal) < 3000, (arguments, errors)
    return status, refusal.strip(), out


def _says_why(out: str) -> bool:
    """Whether a mark of a finding stands before a line: the doctor, a leaderboard without anybody in it."""
    return re.search(r"^ +bad  \S", out, re.MULTILINE) is not None


def numbers(value: Any) -> Iterator[float]:
    """All numbers in a value of JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield value


def sound_run(path: Path, failed: bool = False) -> None:
    """A finished run has finite numbers everywhere; one that has failed may have models without."""
    for file in (*path.rglob("*.json"), *path.rglob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            found = json.loads(line, parse_constant=lambda constant, file=file: _nonsense(f"{constant} in {file}"))
            assert all(math.isfinite(number) for number in numbers(found)), (file, line)
    for record in path.rglob("record.json"):
        summary = json.loads(record.read_text())["summary"]
        accuracy, loss = (summary[what]["last"] if summary.get(what) else None for what in ("accuracy", "loss"))
        assert failed or accuracy is not None or loss is not None, (record, "neither accuracy nor loss, and no word")
        assert accuracy is None or 0 <= accuracy <= 100, (record, accuracy)
    for models in path.rglob("models.safetensors"):
        for name, value in safetensors.load_file(models).items():
            assert failed or value.dtype.kind != "f" or np.isfinite(value).all(), (models, name)


def _nonsense(what: str) -> None:
    raise AssertionError(what)


def finite_text(text: str) -> None:
    """A table that was shown has no NaN in it; the fault of this name may be told."""
    text = " ".join(text.split()).replace(FAULTS, "")
    found = NO_NUMBER.search(text)
    assert found is None, text[max(0, found.start() - 200) : found.end() + 200]
