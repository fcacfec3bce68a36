"""Run directories with one thing broken: each is read, or refused in one line that names the file. Nothing else."""

import contextlib
import io
import itertools
import json
import random
import shutil

import numpy as np
import pytest
from safetensors import numpy as safetensors

import feddwa
from feddwa import cli, doctor
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.report import facts
from feddwa.report.collect import collect
from feddwa.report.figures import FIGURES
from feddwa.report.page import page
from feddwa.results import runs
from feddwa.results.compare import budgets, leaderboard
from feddwa.results.methods import by_method
from feddwa.results.record import read
from feddwa.results.weights import read as read_weights
from feddwa.storage import sum_of
from tests.conftest import FUZZED, SETTING

OTHERS = ("null", '"x"', "-1", "3.5", "1e999", "NaN", "[]", "[1, [2]]", "{}", '{"all": 1}', "true", "9" * 400, "1e17")
TOML = ("-1", "0", "1", "nan", "1e999", '"x"', '"[/x]"', "[]", "true", "9" * 12, "1979-05-27", "{}", "0.5")
FEW = 4  # of them take turns at every place
TURNS, KINDS = itertools.count(), itertools.cycle(FIGURES)  # of what is read in spite of the damage, a few are drawn
NO_LOCAL = "no run of local with the same seed"  # a damaged seed is another one: a figure of gains has no Local


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """A run that was stopped after three rounds; with its journal."""
    path = tmp_path_factory.mktemp("stopped") / "run"

    def observe(line):
        if line["round"] == 3:
            raise Stop

    with contextlib.suppress(Stop):
        feddwa.run(out=str(path), observe=observe, **SETTING)
    return path


@pytest.fixture
def finished(runs):
    return runs / "0" / "feddwa"


def look(path, local, tmp_path) -> bool:
    """Everything that reads a run, as Python; whether the report could read it."""
    for reader in (_resume_reads, lambda path: _report_reads(path, local, tmp_path)):
        FUZZED["run directory"] += 1
        told = None
        try:
            reader(path)
        except InputError as error:
            told = str(error)
        named = told is None or str(path) in told or told.startswith(("--", NO_LOCAL))
        assert named, told
        assert told is None or "\n" not in told, told
    return told is None


def _resume_reads(path) -> None:
    runs.read_config(path).resolved()
    if runs.read_record(path) is not None:
        runs.read_lines(path / runs.METRICS)
        read_weights(path)
    else:
        copy = shutil.copytree(path, path.with_name("rewound"))
        try:
            with runs.RunDirectory.reopen(RunConfig(out=str(copy)), {}) as directory:
                directory.rewind(_AsItIs(copy))
        except InputError as error:
            raise InputError(str(error).replace(str(copy), str(path))) from None
        finally:
            shutil.rmtree(copy)


class _AsItIs:
    """A checkpoint that was made when the files were as long as they are."""

    def __init__(self, path):
        names = (runs.METRICS, runs.CLIENTS, runs.JOURNAL)
        marks = {
            name: {"length": (path / name).stat().st_size, "sha256": sum_of(path / name).hexdigest()} for name in names
        }
        self.facts = {"files": marks}


def _report_reads(path, local, tmp_path) -> None:
    methods = by_method(read([path, local]))
    for method in methods:
        list(doctor.finished_run(method.runs[0]))
    budgets(methods)
    leaderboard(methods)
    json.dumps(collect(methods), allow_nan=False)
    for words in (facts.headline, facts.warnings, facts.story, facts.cards):
        words(methods)
    if next(TURNS) % 10 == 0:
        page(methods)
        FIGURES[next(KINDS)](methods, tmp_path / "figure.svg")


def places(value, path=()):
    """The paths of everything inside a JSON value; of a long list, the first and the last."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(inside) if isinstance(value, dict) else [*inside][:1] + [*inside][-1:]:
        yield (*path, key)
        yield from places(each, (*path, key))


def with_other(value, path, text):
    """A JSON text with something else at a path; None drops it."""
    copy = json.loads(json.dumps(value))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if text is None:
        del place[path[-1]]
    else:
        place[path[-1]] = "\0"
    return json.dumps(copy).replace('"\\u0000"', text or "")


def json_damage(text: str):
    """A file of JSON, or of lines of it, with every key dropped and every value replaced."""
    lines = text.splitlines() if "}\n{" in text else [text]
    for number in sorted({0, len(lines) // 2, len(lines) - 1}):
        value = json.loads(lines[number])
        others = itertools.cycle(OTHERS)
        for path in places(value):
            for other in (None, *itertools.islice(others, FEW)):
                yield "\n".join([*lines[:number], with_other(value, path, other), *lines[number + 1 :]]) + "\n"
        for other in OTHERS:
            yield "\n".join([*lines[:number], other, *lines[number + 1 :]]) + "\n"
        if len(lines) > 1:
            yield "\n".join([*lines[:number], *lines[number + 1 :]]) + "\n"
    yield "[" * 100_000 + "\n"


def toml_damage(text: str):
    lines, others = text.splitlines(), itertools.cycle(TOML)
    for number, line in enumerate(lines):
        yield "\n".join([*lines[:number], *lines[number + 1 :]])
        if " = " in line and not line.endswith("["):
            for other in itertools.islice(others, FEW):
                yield "\n".join([*lines[:number], f"{line.split(' = ')[0]} = {other}", *lines[number + 1 :]])


def bytes_damage(content: bytes, seed: int):
    """Cut at many places, and with single bytes changed."""
    rng = random.Random(seed)
    for _ in range(25):
        yield content[: rng.randrange(len(content))]
    for _ in range(50):
        place = rng.randrange(min(len(content), rng.choice((64, 2000, len(content)))))
        yield content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]


def weights_damage(content: bytes):
    stored = safetensors.load(content)
    cohort, matrix = stored["cohort/0002"], stored["weights/0002"]
    others = {
        "weights/0002": (
            matrix[:3], matrix[0], np.full_like(matrix, np.nan), np.full_like(matrix, np.inf), matrix.astype(np.int64),
            np.zeros((0, 0), np.float32), np.zeros_like(matrix), matrix.astype(np.float16), matrix[None],
        ),
        "cohort/0002": (
            cohort[:3], cohort + 1, -cohort, cohort * 0, cohort.astype(np.float32), cohort[None], cohort[:0],
        ),
    }  # fmt: skip
    for name, values in others.items():
        yield safetensors.save({key: value for key, value in stored.items() if key != name})
        for value in values:
            yield safetensors.save({**stored, name: np.ascontiguousarray(value)})
    for name in ("weights/", "weights/x", "weights/-1", "weights/99999"):
        yield safetensors.save({**stored, name: matrix})
    yield safetensors.save({})


def damages(file):
    content = file.read_bytes()
    if file.suffix in (".json", ".jsonl"):
        yield from (text.encode() for text in json_damage(content.decode()))
    if file.suffix == ".toml":
        yield from (text.encode() for text in toml_damage(content.decode()))
    if file.suffix == ".safetensors":
        yield from weights_damage(content)
    yield from bytes_damage(content, len(content))


FILES = ("metrics.jsonl", "clients.jsonl", "partition.json", "record.json", "config.toml", "weights.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, "weights.journal"])
def test_whatever_is_damaged_is_read_or_named_in_one_line(name, finished, unfinished, runs, tmp_path):
    path = shutil.copytree(unfinished if name == "weights.journal" else finished, tmp_path / "run")
    assert look(path, runs / "0" / "local", tmp_path)  # it is sound before
    whole = (path / name).read_bytes()
    for damage in damages(path / name):
        if damage != whole:
            (path / name).write_bytes(damage)
            look(path, runs / "0" / "local", tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.jsonl", "partition.json"])
def test_a_stopped_run_is_damaged_too(name, unfinished, runs, tmp_path):
    path = shutil.copytree(unfinished, tmp_path / "run")
    for damage in itertools.islice(damages(path / name), 0, None, 7):
        (path / name).write_bytes(damage)
        look(path, runs / "0" / "local", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "empty", "missing"])
def test_every_command_ends_in_one_line(name, kind, finished, tmp_path, capsys):
    path = shutil.copytree(finished, tmp_path / "run")
    (path / name).unlink()
    if kind == "folder":
        (path / name).mkdir()
    elif kind == "empty":
        (path / name).touch()
    commands = (
        ["report", path, "-o", tmp_path / "r.html"],
        ["figure", "curves", path, "-o", tmp_path / "f.png"],
        ["figure", "partition", path, "-o", tmp_path / "f.png"],
        ["doctor", path],
        ["leaderboard", path],
        ["resume", path],
    )
    for command in commands:
        status = cli.main([*map(str, command)])
        error = capsys.readouterr().err
        assert status in (0, 2), error
        if status == 2:
            assert error.count("\n") == 1
            assert str(path) in error


def test_a_file_that_was_cut_at_a_line_is_not_taken_for_a_short_run(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "run")
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:3]))
    with pytest.raises(InputError, match=r"metrics\.jsonl: is damaged: 3 lines of 6 rounds"):
        read([path])


def test_an_error_of_many_lines_is_told_in_one(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "run")
    (path / "weights.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0" + b"{\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n}")
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert cli.main(["doctor", str(path)]) in (0, 2)
    assert errors.getvalue().count("\n") <= 1
