"""Two folders of results are compared number by number, in the form of now and in the one before it."""

import json

import pytest

from feddwa.results.store import Store
from feddwa_reproduction import specs
from feddwa_reproduction.same_results import main
from tests.reproduction.made import put

TABLE = specs.experiment("figure-similarity")
OLDER = {"before.all": "all", "before.participants_weighted": "paper", "after.participants_weighted": "after"}


@pytest.fixture
def folders(tmp_path):
    """The same three results: in the older form, a file each, and as lines."""
    old, new = tmp_path / "old", Store(tmp_path / "new")
    for seed in range(3):
        inside = {"weight": [0.5], "partners": [0.4]}
        line = put(new, TABLE, TABLE.columns[0], "feddwa", seed, [90.0 + seed], in_group=inside, groups=[0, 1])
        made = line["made"] | {"versions": {"feddwa": "0.1.0", "torch": "2"}}
        new.save(line | {"made": made})
        record = {
            "seed": seed, "config": {key: value for key, value in line["config"].items() if key != "dtype"},
            "dtype": "float32", "code": f"feddwa 0.1.0, {made['commit']}", "hardware": "a machine, torch 2",
            **line["costs"], "series": {OLDER[name]: values for name, values in line["series"].items()},
            "clients": line["clients"], "mass": [0.5], "partners": [0.4], "groups": [0, 1],
            "weights": {"1": [[900, 100], [100, 900]]},  # which the new form may leave out
        }  # fmt: skip
        path = old / "cifar10" / f"{line['cell']}-s{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    new.merge()
    return old, new.folder


def test_the_same_results_in_both_forms_are_the_same(folders, capsys):
    old, new = map(str, folders)
    assert main([old, new]) == 0
    out = capsys.readouterr().out
    assert "OLD: 1 cells, 3 cells and seeds" in out
    assert out.endswith("the same\n")
    assert "        12 only in OLD" in out  # weights
    assert main([new, new]) == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda line: line["series"]["before.all"].__setitem__(1, 50.0), "series.before.all.1: 90.0 and 50.0"),
        (lambda line: line["clients"].__setitem__(0, 51.0), "clients.0"),
        (lambda line: line["costs"].pop("flops"), "only in OLD"),
        (lambda line: line["in_group"]["weight"].append(0.1), "only in NEW"),
        (lambda line: line["config"].__setitem__("lr", 0.02), "config.lr"),
        (lambda line: line["made"].__setitem__("dirty", True), "made.dirty: False and True"),
        (lambda line: line["made"].__setitem__("commit", "1" * 10), "made.commit"),
        (lambda line: line.__setitem__("seed", 7), "only in OLD: ("),
        (lambda line: line.__setitem__("weights", {"1": [[901, 99], [100, 900]]}), "weights.1.0.0: 900 and 901"),
    ],
)
def test_any_difference_is_told(folders, change, told, capsys):
    old, new = folders
    first, *rest = (new / "cifar10.jsonl").read_text().splitlines(keepends=True)
    line = json.loads(first)
    change(line)
    (new / "cifar10.jsonl").write_text("".join([json.dumps(line) + "\n", *rest]))
    assert main([str(old), str(new)]) == 1
    assert told in capsys.readouterr().out


def test_what_cannot_be_compared_is_told(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path)]) == 2
    assert main([]) == 2
    assert "no results in it" in capsys.readouterr().err
