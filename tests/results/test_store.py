"""Published results: a line per cell and seed, found by what was run, and read like the runs that they are of."""

import dataclasses
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from feddwa import cli
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.results import content
from feddwa.results.compare import Gain, Spread, difference, gain_over, interval, tie, within
from feddwa.results.methods import by_method, by_setting, setting_name
from feddwa.results.record import Record, read
from feddwa.results.store import Store
from tests.conftest import ROUNDS


def publish(folder: Path, records: list[Record]) -> Store:
    """Put runs into a store, with P of their first and last round."""
    store = Store(folder)
    for record in records:
        kept = [record.weights[0], record.weights[-1]] if record.weights else []
        store.save(content.published(record.content, record.config, kept, record.lines))
    return store


@pytest.fixture(scope="module")
def store(runs, tmp_path_factory):
    found = publish(tmp_path_factory.mktemp("results"), read([runs]))
    found.merge()
    return found


def test_a_line_per_cell_and_seed_sorted_with_its_provenance(store):
    lines = [json.loads(line) for line in store.file("digits").read_text().splitlines()]
    keys = [(line["cell"], line["seed"]) for line in lines]
    assert keys == sorted(keys)
    assert len(set(keys)) == 6
    for line in lines:
        assert set(line["made"]) == {"commit", "dirty", "hardware", "versions"}
        assert {"torch", "feddwa", "python", "numpy"} <= set(line["made"]["versions"])
        assert "out" not in line["config"]
    assert not list((store.folder / ".work").glob("*.json"))


def test_published_runs_read_like_their_directories(store, runs):
    """Curves, gains, costs, groups and the kept weights are those of the run directories."""
    published, own = by_method(read([store.file("digits")])), by_method(read([runs]))
    assert [method.name for method in published] == [method.name for method in own]
    for left, right in zip(published, own, strict=True):
        for one, two in zip(left.runs, right.runs, strict=True):
            assert one.seed == two.seed
            assert np.array_equal(one.curve, two.curve)
            assert np.array_equal(one.scores[-1], two.scores[-1])
            assert one.spent("bytes")[-1] == pytest.approx(two.spent("bytes")[-1])
            assert one.spent("flops")[-1] == pytest.approx(two.spent("flops")[-1], rel=1e-6)
            assert one.findings == two.findings
            assert np.array_equal(one.groups, two.groups)
            assert [each.round for each in one.weights] == ([1, ROUNDS] if two.weights else [])
            for each, whole in zip(one.weights, [two.weights[0], two.weights[-1]], strict=True):
                assert np.allclose(each.matrix, whole.matrix, atol=5e-4)
    local = {run.seed: run for method in own if method.name == "Local" for run in method.runs}
    alone = {run.seed: run for method in published if method.name == "Local" for run in method.runs}
    assert gain_over(published[0].runs, alone).mean == gain_over(own[0].runs, local).mean


def test_a_result_is_found_by_what_was_run(store, runs):
    config = read([runs / "0" / "feddwa"])[0].config
    assert store.find(config, 0).last == read([runs / "0" / "feddwa"])[0].last
    assert store.find(dataclasses.replace(config, device="cuda", backend="sequential", chunk=3), 1) is not None
    assert store.find(config, 2) is None
    assert store.missing(config, (0, 1, 2)) == (2,)
    assert sorted(store.all(config)) == [0, 1]
    for change in ({"lr": 0.2}, {"participation": 0.5}, {"algorithm": "fedavgm"}, {"rounds": 7}):
        other = dataclasses.replace(config, param=(), **change)
        assert store.find(other, 0) is None


def test_what_was_saved_counts_before_it_is_merged_and_replaces_older(runs, tmp_path):
    (record,) = read([runs / "0" / "fedavg"])
    store = publish(tmp_path, [record])
    assert not store.file("digits").exists()
    assert store.find(record.config, 0).last == record.last
    store.merge()
    changed = content.published(record.content, record.config)
    changed["clients"] = [1.0] * 8
    store.save(changed)
    assert store.find(record.config, 0).scores[-1].tolist() == [1.0] * 8
    assert store.merge() == [tmp_path / "digits.jsonl"]
    assert Store(tmp_path).find(record.config, 0).scores[-1].tolist() == [1.0] * 8
    assert len(store.file("digits").read_text().splitlines()) == 1


def _merge(folder: Path, record: Record) -> None:
    publish(folder, [record]).merge()


def test_two_processes_lose_no_line(runs, tmp_path):
    context = multiprocessing.get_context("fork")
    records = read([runs])
    workers = [context.Process(target=_merge, args=(tmp_path, record)) for record in records]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(read([tmp_path / "digits.jsonl"])) == len(records)


def test_the_commands_read_published_results(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = str(store.file("digits"))
    assert cli.main(["report", file]) == 0
    assert "FedDWA leads with" in Path("report.html").read_text()
    assert cli.main(["leaderboard", file]) == 0
    assert "FedAvg" in capsys.readouterr().out
    for kind in ("curves", "weights", "gain", "pareto"):
        assert cli.main(["figure", kind, file]) == 0
    assert cli.main(["figure", "partition", file]) == 2
    assert "does not tell who has which data" in capsys.readouterr().err


def test_several_settings_are_several_pages(store, tmp_path, monkeypatch, capsys):
    """Another number of clients, and another option of the partition, are other data."""
    monkeypatch.chdir(tmp_path)
    lines = store.file("digits").read_text()
    other = [json.loads(line) for line in lines.splitlines()]
    for line in other:
        line["config"]["param"] = [entry.replace("groups=2", "groups=4") for entry in line["config"]["param"]]
    Path("both.jsonl").write_text(lines + "".join(json.dumps(line) + "\n" for line in other))
    assert len(by_setting(read(["both.jsonl"]))) == 2
    assert cli.main(["report", "both.jsonl"]) == 0
    assert sorted(path.name for path in Path().glob("*.html")) == [
        "report-digits-rotations-8-clients.html", "report-digits-rotations-groups-2-8-clients.html", "report.html"
    ]  # fmt: skip
    assert 'href="report-digits-rotations-8-clients.html"' in Path("report.html").read_text()  # the index
    assert cli.main(["leaderboard", "both.jsonl"]) == 0
    assert capsys.readouterr().out.count("Over Local:") == 2
    with pytest.raises(InputError, match=r"has param rotations\.groups=2, .* has rotations\.groups=4"):
        by_method(read(["both.jsonl"]))


DAMAGE = {
    "no record": lambda line: "[1, 2]",
    "no JSON": lambda line: line[:50],
    "another version": lambda line: line.replace('"version":1', '"version":9', 1),
    "an option that is none": lambda line: line.replace('"lr":0.1', '"lr":-1', 1),
    "an accuracy above 100": lambda line: line.replace('"clients":[', '"clients":[1000,', 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_line_is_named(name, store, tmp_path):
    first, *rest = store.file("digits").read_text().splitlines()
    (tmp_path / "bad.jsonl").write_text("\n".join([DAMAGE[name](first), *rest]) + "\n")
    with pytest.raises(InputError, match=r"bad\.jsonl: is damaged: ") as error:
        read([tmp_path / "bad.jsonl"])
    assert "\n" not in str(error.value)


def test_the_name_of_a_setting():
    assert setting_name(RunConfig().resolved()) == "digits, rotations, 20 clients"
    given = RunConfig(partition="dirichlet", clients=4, param=("alpha=0.3",)).resolved()
    assert setting_name(given) == "digits, dirichlet alpha=0.3, 4 clients"


def test_equal_cost_is_what_fits_into_the_budget(store):
    (run, *_) = read([store.file("digits")])
    spent = run.spent("bytes")
    assert within(run, "bytes", spent[3]) == (run.curve[3], 3)
    assert within(run, "bytes", spent[3] * 0.9995) == (run.curve[3], 3)  # a thousandth too few does not count
    assert within(run, "bytes", spent[3] * 0.99) == (run.curve[2], 2)
    assert within(run, "bytes", 0) is None or spent[-1] == 0


def test_gain_and_intervals():
    gain = Gain(np.array([-2.0, *[1.0] * 17, 0.04, 3.0]))
    assert (gain.worst_tenth, gain.losers, gain.winners) == (pytest.approx((-2 + 0.04) / 2), 5.0, 18)
    one, two = Spread({0: 1.0, 1: 2.0, 2: 4.0}), Spread({0: 0.0, 1: 1.5, 2: 1.0, 9: 50.0})
    apart = difference(one, two)
    assert apart.values == {0: 1.0, 1: 0.5, 2: 3.0}
    assert tie(one, two) == interval(apart).includes_zero
    assert interval(Spread({0: 1.0})) is None
    assert difference(one, Spread({7: 1.0})) is None
