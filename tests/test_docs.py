"""The documents tell the truth: their examples run, their commands parse, their tables and maps match the code."""

import re
import shlex
from pathlib import Path

import pytest

from feddwa import cli, models
from feddwa.algorithms import ALGORITHMS
from feddwa.cli import options, train
from feddwa.data.partition import PARTITIONS
from feddwa.data.sources import DATASETS
from feddwa.params import fields_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "src" / "feddwa"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[str]:
    """The `feddwa ...` lines of the shell blocks, without comments."""
    lines = (line.split("  #")[0].strip() for block in blocks(text, "sh") for line in block.splitlines())
    return [line for line in lines if re.match(r"feddwa (run|compare|partition|list) ", line)]


def test_the_readmes_examples_run_and_hold_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    examples = blocks(README, "python")
    assert len(examples) == 4
    exec(compile(examples[0], "README.md", "exec"), namespace)
    assert namespace["weights"].shape == (8, 8)
    exec(compile(examples[1], "README.md", "exec"), namespace)
    assert namespace["result"].summary["accuracy"]["last"] > 75
    assert not namespace["result"].weights[-1][1][:3, 3:].any()  # the two groups part
    exec(compile(examples[2], "README.md", "exec"), namespace)
    assert namespace["result"].summary["accuracy"]["last"] is None
    exec(compile(examples[3], "README.md", "exec"), namespace)
    assert namespace["weights"].sum(1).tolist() == pytest.approx([1] * 5)


@pytest.mark.parametrize("command", commands(README) + commands(ARCHITECTURE))
def test_the_commands_are_understood(command, monkeypatch):
    name, *arguments = shlex.split(command)[1:]
    monkeypatch.setattr(options, "from_toml", lambda _, kind: kind())
    config = options.parse(name, cli.COMMANDS[name].options, arguments)
    if name == "run":
        config.resolved()
    if name == "compare":
        assert all(each.resolved() for each in train._split(config, Path("out")).values())


def test_the_readme_names_every_option_and_every_name():
    options = {f"--{field.replace('_', '-')}" for field in fields_of(train.RunOptions)} | {"--config"}
    table = "\n".join(line for line in README.splitlines() if line.startswith("| `--"))
    assert set(re.findall(r"--[a-z-]+", table)) == options
    rows = {row.split("|")[1].strip(" `"): row for row in table.splitlines()}
    assert re.findall(r"`([\w]+)`", rows["--algorithm"].split("|")[2]) == list(ALGORITHMS)
    assert re.findall(r"`([\w-]+)`", rows["--partition"].split("|")[2]) == list(PARTITIONS)
    counted = {"fourteen algorithms": ALGORITHMS, "eleven datasets": DATASETS}
    counted |= {"seven partitions": PARTITIONS, "nine networks": models.MODELS}
    assert all(words in README for words in counted)
    assert list(map(len, counted.values())) == [14, 11, 7, 9]


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md", "docs/data.md"])
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        if not target.startswith("http"):
            assert ((ROOT / name).parent / target).exists(), target


def test_the_map_shows_every_module_and_no_other():
    listing = next(block for block in blocks(ARCHITECTURE, "text") if block.startswith("src/feddwa/"))
    shown, folder = set(), Path()
    for line in listing.splitlines()[1:]:
        indent = len(line) - len(line.lstrip())
        entry = line.split()[0]
        if entry.endswith("/"):
            folder = Path(*folder.parts[: indent // 2 - 1], entry)
        else:
            folder = Path(*folder.parts[: indent // 2 - 1])
            shown.add((folder / entry).as_posix())
    real = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert shown == {path for path in real if not path.endswith("__init__.py")} - {"__main__.py"}
