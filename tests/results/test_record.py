"""Run directories read back: whole, half-finished, damaged."""

import json
import shutil

import numpy as np
import pytest

import feddwa
from feddwa.errors import InputError
from feddwa.report.page import page
from feddwa.results.methods import by_method
from feddwa.results.record import read
from tests.conftest import ROUNDS, SETTING


@pytest.fixture
def run(runs, tmp_path):
    """A copy of a run that a test may break."""
    return shutil.copytree(runs / "0" / "feddwa", tmp_path / "run")


def test_a_run_is_what_was_written(runs):
    (record,) = read([runs / "0" / "feddwa"])
    summary = json.loads((runs / "0" / "feddwa" / "record.json").read_text())["summary"]
    assert record.finished
    assert record.rounds.tolist() == list(range(ROUNDS + 1))
    assert record.scores.shape == (ROUNDS + 1, 8)
    assert record.curve[-1] == summary["accuracy"]["last"]
    assert record.scores[-1].mean() == pytest.approx(record.last, abs=0.01)  # clients' are rounded to 0.01
    traffic = summary["bytes_up_per_client_round"] + summary["bytes_down_per_client_round"]
    assert record.traffic == traffic
    assert record.spent("bytes")[-1] == traffic * 8 * ROUNDS
    assert record.spent("flops")[-1] == pytest.approx(summary["flops_per_client_round"] * 8 * ROUNDS, rel=1e-6)
    assert 0 < summary["seconds"] == round(record.seconds, 2)
    assert [each.round for each in record.weights] == list(range(1, ROUNDS + 1))
    assert record.partition is not None
    assert record.partition.groups.tolist() == [0] * 4 + [1] * 4


def test_a_folder_stands_for_the_runs_inside_and_none_counts_twice(runs):
    assert len(read([runs])) == 6
    assert len(read([runs, runs / "0", runs / "1" / "local"])) == 6


def test_seeds_of_one_method_are_one_method_and_the_best_comes_first(runs):
    methods = by_method(read([runs]))
    assert {method.name: len(method.runs) for method in methods} == {"FedDWA": 2, "Local": 2, "FedAvg": 2}
    assert [method.last for method in methods] == sorted((method.last for method in methods), reverse=True)


def test_variants_of_a_method_are_told_apart_by_what_differs(runs, tmp_path):
    for k in (2, 4):
        own = {**SETTING, "param": ["groups=2", f"top_k={k}"]}
        feddwa.run(out=str(tmp_path / f"k{k}"), batch_size=8 if k == 2 else None, **own)
    names = {method.name for method in by_method(read([tmp_path, runs / "0" / "local"]))}
    assert names == {"FedDWA batch_size=8 top_k=2", "FedDWA top_k=4", "Local"}


def test_a_run_that_was_killed_is_read_up_to_its_last_whole_line(run):
    (run / "record.json").unlink()
    lines = (run / "clients.jsonl").read_text().splitlines(keepends=True)
    (run / "clients.jsonl").write_text("".join(lines[:3]) + lines[3][: len(lines[3]) // 2])
    (record,) = read([run])
    assert not record.finished
    assert record.rounds.tolist() == [0, 1, 2]
    assert record.scores.shape == (3, 8)


def test_without_weights_or_partition_the_rest_is_read(run):
    (run / "weights.safetensors").unlink()
    (run / "partition.json").unlink()
    (record,) = read([run])
    assert list(record.weights) == []
    assert record.partition is None


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _first_line_broken(path):
    path.write_text("{half\n" + path.read_text())


BROKEN = {
    "metrics.jsonl": (_first_line_broken, r"metrics\.jsonl: is damaged: line 1 is not JSON"),
    "clients.jsonl": (lambda path: path.write_text('{"round": 1}\n'), r"clients\.jsonl: is damaged: line 1 lacks"),
    "weights.safetensors": (_cut, r"weights\.safetensors: is damaged"),
    "record.json": (_cut, r"record\.json: is damaged"),
    "partition.json": (_cut, r"partition\.json: is damaged"),
    "config.toml": (lambda path: path.write_text("rounds = = 3"), r"config\.toml: not a TOML file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_named_in_one_line(run, name):
    damage, message = BROKEN[name]
    damage(run / name)
    with pytest.raises(InputError, match=message) as error:
        read([run])
    assert "\n" not in str(error.value)


def test_what_is_no_run_is_refused(runs, run, tmp_path):
    with pytest.raises(InputError, match="nowhere: no such directory"):
        read([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no run in it"):
        read([tmp_path / "empty"])
    (run / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"metrics\.jsonl: is damaged: 0 lines of 6 rounds"):
        read([run])  # its summary says that it is finished
    (run / "record.json").unlink()
    with pytest.raises(InputError, match="run: no round has been finished yet"):
        read([run])
    with pytest.raises(InputError, match="no run has finished a round yet"):
        read([tmp_path])  # finds it inside
    assert len(read([tmp_path, runs])) == 6  # and does without it where there are others


def test_runs_of_different_settings_do_not_mix(runs, tmp_path):
    feddwa.run(out=str(tmp_path / "other"), **{**SETTING, "clients": 4})
    with pytest.raises(InputError, match=r"has clients 8, .*other has 4; give runs of one setting"):
        by_method(read([runs / "0", tmp_path]))


def test_the_same_run_twice_is_refused(run, runs):
    with pytest.raises(InputError, match="2 runs of FedDWA with seed 0; give one of them"):
        by_method(read([runs / "0", run]))


def test_absent_clients_have_a_cohort(absent):
    (record,) = read([absent])
    assert all(each.matrix.shape == (4, 4) for each in record.weights)
    assert len({tuple(each.cohort) for each in record.weights}) > 1
    assert np.isfinite(record.scores).all()


def test_runs_that_shared_their_seconds_have_a_share_of_them(run):
    alone = read([run])[0].seconds
    content = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps({**content, "summary": {**content["summary"], "lockstep": 4}}))
    assert read([run])[0].seconds == pytest.approx(alone / 4)


def test_a_federations_clients_may_come_late_and_not_answer(run):
    """Its lines grow as clients join, and have null for those who did not answer; elsewhere that is damage."""
    lines = [json.loads(line) for line in (run / "clients.jsonl").read_text().splitlines()]
    lines[0]["before"] = lines[0]["before"][:6]
    lines[3]["before"] = [None] * 8
    lines[-1]["before"][2] = None
    (run / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics[3]["before"]["all"] = None
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    with pytest.raises(InputError, match=r"clients\.jsonl: is damaged: a line is not one of 8 clients"):
        read([run])
    (run / "federation.json").write_text("{}")
    (record,) = read([run])
    assert record.scores.shape == (ROUNDS + 1, 8)
    assert np.isnan(record.scores[0, 6:]).all()
    assert np.isnan(record.scores[[3, -1], [0, 2]]).all()
    assert np.isnan(record.curve[3])
    assert record.last == metrics[-1]["before"]["all"]
    page(by_method([record]))
