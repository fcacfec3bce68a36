"""The pages about algorithms are true: parameters, defaults, commands, the example."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig

DOCS = Path(__file__).parents[2] / "docs" / "algorithms"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page_with_its_parameters(name):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {ALGORITHMS[name].title}\n")
    table = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", page, flags=re.MULTILINE))
    shown = {
        field.name: str(field.default).lower() if field.default in (None, True, False) else str(field.default)
        for field in dataclasses.fields(ALGORITHMS[name])
    }
    assert table == shown


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_command_on_the_page_is_valid(name):
    command = re.search(r"```\n(feddwa run .+)\n```", (DOCS / f"{name}.md").read_text(encoding="utf-8"))
    words = shlex.split(command.group(1))[2:]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    options = {key[2:].replace("-", "_"): value for key, value in pairs if key != "--param"}
    options["batch_size"] = int(options.get("batch_size", 10))
    config = RunConfig(**options, param=tuple(value for key, value in pairs if key == "--param")).resolved()
    assert config.algorithm == name


def test_the_index_links_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| .+ \| (.+) \| (.+) \|$", index, flags=re.MULTILINE)
    assert rows == [(name, name, kind.traffic, kind.cost) for name, kind in ALGORITHMS.items()]
    assert "(own.md)" in index


def test_the_example_of_an_own_algorithm_runs(capsys):
    code = re.search(r"```python\n(.+?)```", (DOCS / "own.md").read_text(encoding="utf-8"), flags=re.DOTALL).group(1)
    exec(compile(code, "own.md", "exec"), {"__name__": "own"})
    assert float(capsys.readouterr().out) > 60
