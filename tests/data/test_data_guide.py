"""The examples of docs/data.md, run in their order, in one namespace, in an empty folder."""

import importlib.util
import re
from pathlib import Path

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
    from feddwa.data.catalogue import DATASETS
    from feddwa.data.partition import PARTITIONS
    from feddwa.params import fields_of

    text = GUIDE.read_text()
    for info in DATASETS.values():
        line = next(line for line in text.splitlines() if line.startswith("|") and f"`{info.name}`" in line)
        assert f"{info.rows[0]:,} / {info.rows[1]:,}" in line
        assert str(info.classes) in line
    for name, scheme in PARTITIONS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert all(f"`{field}" in line for field in fields_of(scheme))
