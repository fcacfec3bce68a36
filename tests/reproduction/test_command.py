"""`feddwa reproduce` as people type it."""

import json
from pathlib import Path

import pytest

import feddwa
from feddwa import cli
from feddwa_reproduction import specs


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = cli.main(["reproduce", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_it_lists_what_there_is(call):
    status, out, _ = call("--list")
    assert status == 0
    assert out == call()[1]
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:2] == ["table1", "table2"]
    assert names[-2:] == ["clusterfl-norms", "docs"]
    assert {"methods-cifar10", "equal-bytes", "breadth"} < set(names)


def test_a_smoke_run_says_what_it_is_and_is_not_run_again(call, tmp_path):
    options = ("figure-similarity", "--scale", "smoke")
    status, out, _ = call(*options, "--dry-run")
    assert (status, "4 of 4 runs missing" in out) == (0, True)
    status, out, err = call(*options)
    assert (status, err) == (0, "")
    assert "Smoke scale" in out
    assert "wrote runs/figures/figure-similarity.svg" in out
    assert (tmp_path / "runs" / "figures" / "figure-similarity-maps.svg").exists()
    assert len((tmp_path / "runs" / "smoke" / "digits.jsonl").read_text().splitlines()) == 4
    assert not (tmp_path / "results").exists()
    assert "seed 0" not in call(*options)[1]
    assert "0 of 4 runs missing" in call(*options, "--dry-run")[1]


def test_the_toy_needs_nothing(call):
    status, out, _ = call("toy")
    assert status == 0
    assert "FedDWA's rule: (0.5, 0.5, 0)" in out


def test_norms_of_updates(call):
    status, out, _ = call("clusterfl-norms", "--scale", "smoke", "--columns", "cifar10/pathological")
    assert status == 0
    assert out.startswith("cifar10/pathological: mean and largest ")
    assert "eps2=" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("tabel1",), "reproduce: unknown name 'tabel1'; valid: table1, "),
        (("table1", "--columns", "mnist/iid"), "--columns: unknown name 'mnist/iid'; valid: emnist/pathological, "),
        (("table1", "--methods", "sgd"), "--methods: unknown name 'sgd'; valid: local, "),
        (("table1", "--seeds", "0"), "--seeds: got 0, must be at least 1"),
        (("table1", "--scale", "huge"), "--scale: got 'huge', must be one of paper, smoke"),
        (("clusterfl-norms", "--columns", "x"), "--columns: unknown name 'x'"),
    ],
)
def test_bad_requests_are_one_line(call, arguments, complaint):
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"feddwa: {complaint}")
    assert err.count("\n") == 1


def test_without_any_data_it_says_where_to_get_them(call, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDDWA_DATA", raising=False)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    status, out, err = call("figure-k")
    assert status == 2
    assert "cifar10: not at hand" in out
    assert "feddwa[hub]" in out
    assert "none of its data are at hand" in err


def test_an_entry_beyond_the_paper_is_run_and_shown(call, tmp_path):
    """Its seeds are its own, and --seeds takes the first of them."""
    own = ("lead-digits-fresh", "--columns", "digits/groups", "--methods", "feddwa_plus", "fedrod", "local")
    status, out, err = call(*own, "--seeds", "2", "--scale", "smoke")
    assert (status, err) == (0, "")
    seeds = [json.loads(line)["seed"] for line in (tmp_path / "runs/smoke/digits.jsonl").read_text().splitlines()]
    assert sorted(seeds) == [40, 40, 40, 41, 41, 41]
    assert "best other method" in out


def test_the_tolerances_of_clusterfl_are_what_the_rule_gives(call):
    status, out, _ = call("clusterfl-norms", "--columns", "digits/rotations", "--device", "cpu")
    assert status == 0
    (column,) = specs.experiment("methods-digits").select(["digits/rotations"]).columns
    assert out.rstrip().endswith(column.tuned["clusterfl"][0])


def test_the_application_is_found_by_its_name_and_the_library_does_not_need_it():
    """Nothing in feddwa imports it but the command line, which is told its name."""
    sources = Path(feddwa.__file__).parent.rglob("*.py")
    naming = [path.relative_to(Path(feddwa.__file__).parent).as_posix() for path in sources
              if "feddwa_reproduction" in path.read_text(encoding="utf-8")]  # fmt: skip
    assert naming == ["cli/__init__.py"]


def test_the_map_of_the_application_shows_every_module():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.partition("apps/reproduction/feddwa_reproduction/\n")[2].partition("```")[0]
    folder = root / "apps" / "reproduction" / "feddwa_reproduction"
    shown = {line.split()[0] for line in block.splitlines()}
    assert {name for name in shown if name.endswith(".py")} == {path.name for path in folder.glob("*.py")} - {
        "__init__.py"
    }
    assert all((folder / name).is_file() for name in shown)
