"""The examples of docs/data.md, run in their order, in one namespace, in an empty folder."""

import importlib.util
import re
from pathlib import Path

from feddwa.data.catalogue import DATASETS, OWN_BY_KIND
from feddwa.data.partition import PARTITIONS, make_scheme
from feddwa.params import fields_of

GUIDE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_guides_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(examples) >= 7
    namespace: dict[str, object] = {}
    for example in examples:
        needs = re.match(r"# needs: (\w+)", example)
        if needs is None or importlib.util.find_spec(needs[1]) is not None:
            exec(compile(example, str(GUIDE), "exec"), namespace)
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert "label_distance_mean" in capsys.readouterr().out


def test_the_guides_tables_agree_with_the_catalogue():
    text = GUIDE.read_text()
    for info in DATASETS.values():
        line = next(line for line in text.splitlines() if line.startswith("|") and f"`{info.name}`" in line)
        assert info.rows is None or f"{info.rows[0]:,} / {info.rows[1]:,}" in line
        assert str(info.classes) in line
    for name, scheme in PARTITIONS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert all(f"`{field}" in line for field in fields_of(scheme))


def table(heading):
    """Dataset -> the cells of its row, without quotes, of the guide's table with this heading."""
    body = GUIDE.read_text().replace("`", "").partition(f"| dataset | {heading}")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    return {name: cells for first, *cells in rows for name in first.split(", ")}


def test_the_guides_defaults_are_those_of_the_catalogue():
    told, classes = table("network"), table("classes_per_client")
    told["own image"] = told.pop("own images of at least 8x8")
    assert told.keys() == {*DATASETS, *(f"own {kind}" for kind in OWN_BY_KIND)}
    for name, cells in told.items():
        known = DATASETS[name].defaults if name in DATASETS else OWN_BY_KIND[name.removeprefix("own ")]
        assert cells[:4] == [known.model, str(known.rounds), str(known.batch_size), str(known.lr)]
        assert known.partition in (None, cells[4])
        pathological, groups = (make_scheme(scheme, {}, name) for scheme in ("pathological", "groups"))
        first, second = classes.get(name, classes["others"])
        assert (first.split(",")[0], second) == (str(pathological.classes_per_client), str(groups.dominant_classes))
        assert ("variant=classes" in first) == (pathological.variant == "classes")
