"""Published results: found by what was run, readable by all commands; and what is told of groups, code and figures."""

import dataclasses
import importlib.util
import json
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from feddwa import cli
from feddwa.config import RunConfig
from feddwa.entry import run
from feddwa.errors import InputError
from feddwa.results import content, runs
from feddwa.results.collaboration import group_weight, partner_share
from feddwa.results.compare import local_runs
from feddwa.results.methods import by_method, by_setting
from feddwa.results.plot import saved_figure
from feddwa.results.record import read
from feddwa.results.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two methods in two settings, two seeds each, as real runs give them: a file with eight lines."""
    folder = tmp_path_factory.mktemp("published")
    found = Store(folder)
    for algorithm in ("feddwa", "local"):
        for partition in ("groups", "iid"):
            for seed in (0, 1):
                out = folder / f"{algorithm}-{partition}-{seed}"
                given = {"algorithm": algorithm, "partition": partition, "seed": seed, "out": str(out)}
                config = RunConfig(**given, clients=6, rounds=2).resolved()
                run(config)
                kept = list(read([out])[0].weights)
                found.save(content.published(runs.read_record(out), config, kept, runs.read_lines(out / runs.METRICS)))
    assert found.merge() == [folder / "digits.jsonl"]
    return found


def test_a_published_run_is_the_run_it_was(store):
    """Curve, clients, costs, groups and weights (to a thousandth) are those of the run directory."""
    for record in read([store.file("digits")]):
        config = record.config
        (whole,) = read([store.folder / f"{config.algorithm}-{config.partition}-{config.seed}"])
        assert np.array_equal(record.curve, whole.curve)
        assert np.array_equal(record.scores[-1], whole.scores[-1])
        assert record.traffic == pytest.approx(whole.traffic, abs=1)
        assert record.spent("bytes")[-1] == pytest.approx(whole.spent("bytes")[-1], rel=1e-6)
        assert (record.groups is None) == (config.partition == "iid")
        for kept, own in zip(record.weights, whole.weights, strict=True):
            np.testing.assert_allclose(kept.matrix, own.matrix, atol=5e-4)
        assert store.find(config, config.seed).content == record.content


def test_weights_of_a_round_without_some_clients_are_published(tmp_path):
    """Clients whose updates were refused have rows and columns of zeros, and are no part of the cohort that is read."""
    out = tmp_path / "run"
    given = {"algorithm": "feddwa", "partition": "groups", "out": str(out), "fault": "nan=0.3"}
    config = RunConfig(**given, clients=6, rounds=3).resolved()
    run(config)
    (whole,) = read([out])
    assert any(len(each.cohort) < 6 for each in whole.weights)
    found = Store(tmp_path / "results")
    found.save(content.published(runs.read_record(out), config, list(whole.weights)))
    found.merge()
    (record,) = read([found.file("digits")])
    for kept, own in zip(record.weights, whole.weights, strict=True):
        assert np.array_equal(kept.cohort, own.cohort)
        np.testing.assert_allclose(kept.matrix, own.matrix, atol=5e-4)


def test_all_commands_read_published_results(store, tmp_path, monkeypatch, capsys):
    """One page or figure per setting, the setting in its name."""
    monkeypatch.chdir(tmp_path)
    file = str(store.file("digits"))
    assert cli.main(["report", file]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.html", "report-digits-groups-6-clients.html", "report-digits-iid-6-clients.html"}
    assert cli.main(["figure", "curves", file, "-o", "curves.svg"]) == 0
    assert cli.main(["figure", "weights", file, "-o", "weights.svg"]) == 0
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        f"{kind}-digits-{partition}-6-clients.svg" for kind in ("curves", "weights") for partition in ("groups", "iid")
    }
    capsys.readouterr()
    assert cli.main(["leaderboard", file]) == 0
    out = capsys.readouterr().out
    assert "digits, groups, 6 clients" in out
    assert "digits, iid, 6 clients" in out


def test_the_published_files_are_read_in_seconds():
    """Of thousands of lines each would take milliseconds if its configuration were checked anew."""
    start = time.process_time()
    records = read(sorted((ROOT / "results").glob("*.jsonl")))
    settings = by_setting(records)
    assert time.process_time() - start < 20  # 3 s on a quiet machine
    assert len(records) > 1_900
    pathological = by_method(settings["cifar10, pathological, 20 clients"])
    assert len(local_runs(pathological)) >= 10
    assert all(method.sound for method in pathological)


def test_curves_of_many_methods_leave_room_for_their_names(tmp_path):
    """A warning, which is an error here, says that the legend has pushed the axes out."""
    assert cli.main(["figure", "curves", str(ROOT / "results/digits.jsonl"), "-o", str(tmp_path / "c.svg")]) == 0


def test_a_result_counts_only_while_its_settings_hold(store, tmp_path):
    line = json.loads(store.file("digits").read_text().splitlines()[0])
    (config,) = {read([store.file("digits")])[0].config}
    own, seed = Store(tmp_path), config.seed
    own.save(line)
    assert Store(tmp_path).find(config, seed).content == line
    older = {**line, "config": {**line["config"], "param": line["config"]["param"][1:]}}  # one was added since
    own.save(older)
    assert own.find(config, seed).content == older
    own.merge()
    assert Store(tmp_path).find(config, seed).content == older
    stale = {**line, "config": {**line["config"], "param": ["feddwa.top_k=4"]}}  # a default was changed since
    own.save(stale)
    assert Store(tmp_path).find(config, seed) is None
    assert Store(tmp_path).missing(config, (seed, seed + 1)) == (seed, seed + 1)
    assert Store(tmp_path).missing(dataclasses.replace(config, rounds=3), (seed,)) == (seed,)


def test_a_line_with_a_seed_that_no_run_has_is_damage(store, tmp_path):
    line = json.loads(store.file("digits").read_text().splitlines()[0])
    for wrong in (2**63, -1, 0.5):
        (tmp_path / "x.jsonl").write_text(json.dumps({**line, "seed": wrong}) + "\n")
        with pytest.raises(InputError, match="seed"):
            read([tmp_path / "x.jsonl"])


def test_partners_and_weight_inside_groups():
    """Two groups of three: itself and two others are looked at."""
    groups = np.array([0, 0, 0, 1, 1, 1])
    blocks = (groups[:, None] == groups) / 3
    assert partner_share(blocks, groups) == 1
    assert group_weight(blocks, groups) == pytest.approx(1)
    assert partner_share(np.eye(6), groups) == pytest.approx(1 / 3)  # each client weights itself alone
    wrong = (groups[:, None] != groups) / 3
    assert partner_share(wrong, groups) == pytest.approx(1 / 3)
    assert group_weight(wrong, groups) == 0
    half = np.array([[0.4, 0.3, 0, 0.3, 0, 0]] + [[0.0] * 6] * 5)
    assert partner_share(half, groups) == pytest.approx((2 / 3 + 5 / 3) / 6)
    negative = np.where(np.eye(6) > 0, -1.0, blocks)  # FedAMP's own weight may be
    assert partner_share(negative, groups) == 1


def test_the_last_bit_of_a_coordinate_changes_no_figure(tmp_path):
    """As it differs between processors, and Matplotlib makes names of it."""
    written = []
    for left in (0.1, np.nextafter(0.1, 1)):
        with saved_figure(tmp_path / "figure.svg", 6.4, 4.8) as figure:
            figure.set_layout_engine(None)
            for bottom in (0.1, 0.6):
                figure.add_axes((left, bottom, 0.8, 0.3)).plot([1, 2], [3, 4], marker="o")
        written.append((tmp_path / "figure.svg").read_text())
    assert written[0] == written[1]
    names = re.findall(r' id="(.*?)"', written[0])
    assert len(names) == len(set(names))
    used = set(re.findall(r'(?:url\(|href=")#(.*?)[)"]', written[0]))
    assert used <= set(names)
    assert sum(name.startswith("p") and name[1:].isdigit() for name in used) == 2  # a frame for each of the axes


def test_an_archive_names_its_commit(tmp_path):
    """On a machine without the repository results still say which code made them; nobody types it."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    git = ["git", "-C", str(ROOT)]
    archive = subprocess.run([*git, "archive", "HEAD", "src/feddwa"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "x"], cwd=tmp_path, input=archive, check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    path = tmp_path / "src/feddwa/results/provenance.py"
    spec = importlib.util.spec_from_file_location("archived_provenance", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module._commit() == (commit[:10], False)
