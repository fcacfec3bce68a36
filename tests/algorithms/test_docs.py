"""The pages about algorithms are true: parameters, defaults, commands, the example."""

import dataclasses
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.cli import parser
from feddwa.groups import by_kind
from tests.oracles.test_oracles import CASES

DOCS = Path(__file__).parents[2] / "docs" / "algorithms"
spec = importlib.util.spec_from_file_location("algorithm_index", DOCS.parent / "algorithm_index.py")
algorithm_index = importlib.util.module_from_spec(spec)
spec.loader.exec_module(algorithm_index)


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
    config = parser.parse("run", cli.COMMANDS["run"].options, shlex.split(command.group(1))[2:]).resolved()
    assert config.algorithm == name


def test_the_index_links_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| .+ \| (.+) \| (.+) \|$", index, flags=re.MULTILINE)
    assert [row[:2] for row in rows] == [(name, name) for names in by_kind().values() for name in names]
    assert {row[0] for row in rows} == set(ALGORITHMS)
    assert ("feddwa", "feddwa", "1 + 2", "2") in rows
    assert ("fedavg_ft", "fedavg_ft", "1 + 1", "1, and 1 before evaluation") in rows
    assert "(own.md)" in index


def test_the_index_is_what_its_script_writes():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert algorithm_index.index(index) == index, "run python docs/algorithm_index.py"
    without = re.sub(r"^\| \[fedprox\].*\n", "", index, flags=re.MULTILINE)
    assert "[fedprox](fedprox.md) | global | 2020 | FedAvg with a pull" in algorithm_index.index(without)
    assert algorithm_index.new_page("fedprox", ALGORITHMS["fedprox"]).startswith("# FedProx\n")


def verified(heading):
    """The last table under a heading of the page about other code: rows of cells."""
    page = (DOCS / "verified.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].strip()
    lines = section.rpartition("\n\n")[2].splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_every_algorithm_has_a_reference_and_its_row_says_which():
    """FedBN's is FedAvg's, under a policy: test_batchnorm.py."""
    names, table = {kind: name for name, kind in ALGORITHMS.items()}, verified("Method by method")
    references = {
        names[type(algorithm)]: f"{oracle.__module__.rpartition('.')[2]}.{oracle.__name__}"
        for algorithm, oracle, _ in CASES.values()
    }
    assert {row[0]: row[1] for row in table} == references | {"fedbn": "reference.fedavg"}
    assert [row[0] for row in table] == [name for names in by_kind().values() for name in names]


def test_what_is_said_of_other_code_has_a_comparison_and_a_fault_a_line():
    faults = {(row[0], name) for row in verified("Faults and traps") for name in row[1].split("`, `")}
    measured = {}
    for name, code, plain, changed, *_ in verified("The comparisons"):
        library = code if code in ("PFLlib", "FL-bench") else "others"
        measured.setdefault((name, library), []).append((plain, changed))
    words = {}
    for name, _, *cells in verified("Method by method"):
        words |= {(name, library): cell for library, cell in zip(("PFLlib", "FL-bench", "others"), cells, strict=True)}
    assert set(words.values()) <= {"agrees", "agrees, if", "differs", "fault", "there", "-"}
    assert set(measured) == {key for key, word in words.items() if word not in ("there", "-")}
    for (name, library), pairs in measured.items():
        assert words[name, library] != "agrees" or all(float(plain) < 1e-14 for plain, _ in pairs), name
        assert all(float(changed or plain) < 1e-11 for plain, changed in pairs), name
        assert words[name, library] != "fault" or (library, name) in faults


def test_the_example_of_an_own_algorithm_runs(capsys):
    code = re.search(r"```python\n(.+?)```", (DOCS / "own.md").read_text(encoding="utf-8"), flags=re.DOTALL).group(1)
    exec(compile(code, "own.md", "exec"), {"__name__": "own"})
    assert float(capsys.readouterr().out) > 60
