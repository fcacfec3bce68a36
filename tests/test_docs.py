"""The documents tell the truth: their examples run, their commands parse, their tables and maps match the code."""

import contextlib
import dataclasses
import importlib.util
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.cli import parser, train
from feddwa.cli.parser import arguments_of
from feddwa.groups import expanded

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "src" / "feddwa"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
}
GUIDES = [name for name in PAGES if name.startswith("docs/guides/") or name in ("docs/start.md", "docs/concepts.md")]
ELSEWHERE = ("README.md", "docs/data.md", "docs/algorithms/own.md")  # whose examples have tests of their own


def fenced(text: str) -> list[tuple[str, str]]:
    """(language, content) of every block between two fences."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def blocks(text: str, *languages: str) -> list[str]:
    return [content for language, content in fenced(text) if language in languages]


def commands(text: str) -> list[str]:
    """The `feddwa ...` lines of the shell blocks, without comments."""
    shell = [block.replace("\\\n", " ") for block in blocks(text, "sh", "bash", "")]
    lines = (line.split(" #")[0].strip() for block in shell for line in block.splitlines())
    return [line for line in lines if line.startswith("feddwa ")]


def quick(command: str) -> list[str] | None:
    """The command as words that take seconds; None where it needs data that are not here, or has a test of its own."""
    words = shlex.split(command)[1:]
    foreign = "--dataset" in words and words[words.index("--dataset") + 1] != "digits"
    if foreign or words[0] == "watch" or words[:2] == ["reproduce", "docs"]:
        return None
    if words[0] == "federate":
        return [*without(words, "--nodes", "--rounds"), "--nodes", "2", "--rounds", "1", "--clients", "4"]
    if words[0] == "reproduce":
        return [*(word for word in words if word != "--dry-run"), "--dry-run"]
    if words[0] not in ("run", "compare", "tune"):
        return words
    words = [*without(words, "--rounds"), "--rounds", "1", *(() if "--clients" in words else ("--clients", "6"))]
    if words[0] == "tune":  # two trials of two methods
        words = [
            *without(words, "--trials", "--jobs", "--algorithms"),
            "--trials",
            "2",
            "--algorithms",
            "fedavg",
            "local",
        ]
    return words


def without(words: list[str], *options: str) -> list[str]:
    """The words without these options and their values."""
    kept, dropped = [], False
    for word in words:
        dropped = word in options if word.startswith("--") else dropped
        kept += [] if dropped else [word]
    return kept


def test_the_readmes_examples_run_and_hold_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    examples = blocks(README, "python")
    assert len(examples) == 4
    exec(compile(examples[0], "README.md", "exec"), namespace)
    assert namespace["last"].matrix.shape == (8, 8)
    exec(compile(examples[1], "README.md", "exec"), namespace)
    assert namespace["result"].summary["accuracy"]["last"] > 75
    assert not namespace["result"].weights[-1].matrix[:3, 3:].any()  # the two groups part
    exec(compile(examples[2], "README.md", "exec"), namespace)
    assert namespace["result"].summary["accuracy"]["last"] is None
    exec(compile(examples[3], "README.md", "exec"), namespace)
    assert namespace["weights"].sum(1).tolist() == pytest.approx([1] * 5)


@pytest.mark.parametrize("command", sorted({command for text in PAGES.values() for command in commands(text)}))
def test_the_commands_are_understood(command, monkeypatch):
    name, *arguments = shlex.split(command)[1:]
    monkeypatch.setattr(parser, "from_toml", lambda _, kind: kind())
    config = parser.parse(name, cli.COMMANDS[name].options, arguments)
    if name == "run":
        config.resolved()
    if name == "compare":
        config = dataclasses.replace(config, algorithms=expanded(config.algorithms)[0])
        assert all(each.resolved() for each in train.method_configs(config, Path("out")).values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the run directory is that the pages speak of."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "examples").symlink_to(ROOT / "examples")
    with contextlib.chdir(folder):
        out = "runs/20260801-120000-compare-digits"
        assert (
            cli.main(["compare", "--rounds", "1", "--clients", "4", "--param", "groups=2", "--quiet", "--out", out])
            == 0
        )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted({c for name in PAGES if name not in GUIDES for c in commands(PAGES[name])}))
def test_the_commands_of_all_other_pages_run(command, folder, monkeypatch, capsys):
    words = quick(command)
    if words is None:
        pytest.skip("needs data or has a test of its own")
    monkeypatch.chdir(folder)
    if words[0] == "federate":  # in a process: Flower's imports warn, and warnings are errors here
        assert subprocess.run([sys.executable, "-m", "feddwa", *words], stdout=subprocess.DEVNULL).returncode == 0
    else:
        assert cli.main(words) == 0


def test_what_serves_until_it_is_stopped_serves(folder):
    """`feddwa watch runs`, of the README; what its pages do is in tests/report."""
    command = [sys.executable, "-m", "feddwa", "watch", "runs"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as watch:
        try:
            page = urllib.request.urlopen(watch.stdout.readline().strip(), timeout=100).read()
        finally:
            watch.terminate()
    assert b"<html" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_the_guides_commands_and_examples_run(name, tmp_path, monkeypatch, capsys):
    """hospitals.csv stands for a table of the reader's own, photos for a folder of images."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{place % 2 + place / 500},{place % 7},{place % 2},h{place % 3}\n" for place in range(180))
    Path("hospitals.csv").write_text("age,dose,label,client\n" + rows)
    if "photos" in PAGES[name]:
        _photos()
    namespace: dict = {"__name__": "example"}
    for language, content in fenced(PAGES[name]):  # in their order: one block may need what another has written
        for command in commands(f"```{language}\n{content}```\n"):
            assert cli.main(shlex.split(command)[1:]) == 0, command
        if language == "python":
            _run_example(name, content, namespace)


def _photos():
    """photos/CLIENT/CLASS/IMAGE of digits: two sizes and formats, one that cannot be read."""
    digits = load_digits()
    for place, (image, label) in enumerate(zip(digits.images[:400], digits.target[:400], strict=True)):
        if label in (3, 5, 8):
            folder = Path("photos", ("lab", "north clinic", "home")[place % 3], str(label))
            folder.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray((15 * image).astype("uint8")).resize((32 + 4 * (place % 2), 32))
            picture.save(folder / f"img {place}.{('png', 'jpg')[place % 2]}")
    Path("photos/home/3/broken.jpg").write_bytes(b"no image")


@pytest.mark.parametrize("name", [name for name in PAGES if name not in (*GUIDES, *ELSEWHERE)])
def test_the_other_pages_examples_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _run_examples(name)


def _run_examples(name):
    """The Python blocks of a page, one after another."""
    namespace: dict = {"__name__": "example"}
    for example in blocks(PAGES[name], "python"):
        _run_example(name, example, namespace)


def _run_example(name, example, namespace):
    """A Python block; "# needs: flwr" on top names what may be missing."""
    needs = re.match(r"# needs: (\w+)", example)
    if needs is None or importlib.util.find_spec(needs[1]) is not None:
        exec(compile(example, name, "exec"), namespace)


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    code = (ROOT / "examples" / "first_steps.py").read_text()
    assert code.count("# %%") == 5  # one of them in its first sentence
    exec(compile(code.replace("ROUNDS = 40", "ROUNDS = 8"), "first_steps.py", "exec"), {"__name__": "notebook"})
    out = capsys.readouterr().out
    assert re.search(r"feddwa  \d\d\.\d\d % after 8 rounds", out)
    assert "100 % of all weight stays inside the true groups" in out
    assert (tmp_path / "report.html").exists()


def test_the_readme_names_every_option():
    options = {argument.label for argument in arguments_of(train.SingleOptions)}
    table = "\n".join(line for line in README.splitlines() if line.startswith("| `--"))
    assert set(re.findall(r"--[a-z-]+", table)) == options


def test_no_page_has_a_closed_list_or_a_count_that_a_new_file_makes_wrong():
    numbers = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|[0-9]+"
    for name in ("README.md", "docs/architecture.md", "docs/index.md"):
        assert not re.search(rf"\b({numbers}) (algorithms|datasets|partitions|networks)\b", PAGES[name]), name
    listed = (line for line in README.splitlines() if line.startswith("| `--"))
    assert max(sum(f"`{name}`" in line for name in ALGORITHMS) for line in listed) == 1  # the default


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        if not target.startswith("http"):
            assert ((ROOT / name).parent / target).exists(), target


def test_the_map_is_that_of_the_docstrings():
    """`python docs/module_map.py` writes it."""
    spec = importlib.util.spec_from_file_location("module_map", ROOT / "docs" / "module_map.py")
    module_map = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module_map)
    assert module_map.page(ARCHITECTURE) == ARCHITECTURE
    for name in ("recorder.py", "kernels/", "federation.py", "cells.py"):
        assert f" {name} " in ARCHITECTURE
