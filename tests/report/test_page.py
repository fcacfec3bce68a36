"""The report as a file: whole by itself, small, made again by the commands that it shows."""

import base64
import gzip
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from feddwa import cli
from feddwa.cli import parser
from feddwa.config import RunConfig
from feddwa.report import facts
from feddwa.report.collect import collect
from feddwa.report.page import page, write_report
from feddwa.report.setup import command
from feddwa.results.methods import Method, by_method
from feddwa.results.record import Record, read
from feddwa.results.weights import Weights

LIMIT = 5_000_000  # bytes, for 20 clients, 100 rounds and all methods


@pytest.fixture(scope="module")
def text(runs):
    return page(by_method(read([runs])))


def test_it_needs_nothing_from_elsewhere(text):
    own = text.replace(re.search(r"<script>(?s:(?!</script>).)*echarts(?s:.)*?</script>", text)[0], "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)|@import|url\(|https?://""", own)
    assert "default-src 'none'" in own  # and the browser is told to fetch nothing
    assert text.count("</script>") == 3


def test_the_numbers_inside_are_those_of_the_runs(text, runs):
    payload = re.search(r'type="application/octet-stream">([^<]+)<', text)[1]
    numbers = json.loads(gzip.decompress(base64.b64decode(payload)))
    summary = json.loads((runs / "0" / "feddwa" / "record.json").read_text())["summary"]
    run = next(
        run for run in numbers["runs"] if run["seed"] == 0 and numbers["methods"][run["method"]]["name"] == "FedDWA"
    )
    last = [clients[-1] for clients in run["scores"]]
    assert np.mean(last) == pytest.approx(summary["accuracy"]["last"], abs=0.05)
    assert list(numbers["partitions"]) == ["0", "1"]


def test_the_tables_say_what_was_measured(text, runs):
    table = re.search(r"<tbody>(.*?)</tbody>", text, re.DOTALL)[1]
    rows = {row[0]: row for row in (re.findall(r"<td>(.*?)</td>", line) for line in table.split("</tr>")[:-1])}
    assert set(rows) == {"FedDWA", "Local", "FedAvg"}
    last = [
        json.loads((runs / str(s) / "feddwa" / "record.json").read_text())["summary"]["accuracy"]["last"]
        for s in (0, 1)
    ]
    assert rows["FedDWA"][1] == f"{np.mean(last):.2f} ± {np.std(last, ddof=1):.2f}"
    head = re.findall(r"<th scope=\"col\">(.*?)</th>", re.search(r"<thead>(.*?)</thead>", text)[1])
    told = {name: dict(zip(head, cells, strict=True)) for name, cells in rows.items()}
    traffic, lead = "up + down<br>a client, a round", next(name for name in head if "Local" in name)
    assert told["FedDWA"][traffic] == "56.4 KiB"
    assert [told["Local"][name] for name in (lead, "n", "clients<br>that gained", traffic)] == ["", "2", "", "0 B"]


def test_two_reports_of_the_same_runs_are_equal(text, runs):
    assert page(by_method(read([runs]))) == text


def test_its_commands_make_the_same_configuration(runs, absent):
    records = read([runs, absent])
    for record in records:
        words = shlex.split(command(record.config))
        assert words[:2] == ["feddwa", "run"]
        again = parser.parse("run", cli.COMMANDS["run"].options, words[2:]).run_config().resolved()
        assert again == record.config


def test_commands_are_short_where_all_is_usual():
    assert command(RunConfig(algorithm="local").resolved()) == "feddwa run --algorithm local"
    own = RunConfig(dataset="my data.csv", partition="iid", model="linear", param=("top_k=2",)).resolved()
    assert command(own) == (
        "feddwa run --algorithm feddwa --dataset 'my data.csv' --model linear --partition iid --param feddwa.top_k=2"
    )


def test_names_from_outside_are_harmless(runs, tmp_path):
    strange = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(runs / "0" / "local", strange)
    text = page(by_method(read([strange])))
    assert "<img" not in text.split("<script")[0]
    assert "&lt;img src=x" in text


def test_a_run_that_goes_on_is_reported_as_such(runs, tmp_path):
    run = shutil.copytree(runs / "0" / "feddwa", tmp_path / "run")
    (run / "record.json").unlink()
    for name in ("metrics.jsonl", "clients.jsonl"):
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(lines[:4]))
    text = page(by_method(read([run])))
    assert "FedDWA (stopped after round 3 of 6): " in text
    assert "FedDWA, seed 0: all options (stopped after round 3 of 6)" in text
    assert '<small class="mark">stopped after round 3 of 6</small>' in text
    assert re.search(r'<p class="setting">[^<]*, 3 of 6 rounds, 1 method, seed 0', text)


def test_a_run_that_was_stopped_does_not_lead(runs, tmp_path):
    for name in ("feddwa", "local", "fedavg"):
        shutil.copytree(runs / "0" / name, tmp_path / name)
    best = by_method(read([tmp_path]))[0]
    run = best.runs[0].path
    (run / "record.json").unlink()
    for name in ("metrics.jsonl", "clients.jsonl"):  # its accuracies of then are higher than all others in the end
        lines = (run / name).read_text().splitlines()[:4]
        higher = [re.sub(r'"before": {"all": [0-9.]+', '"before": {"all": 99.0', line) for line in lines]
        (run / name).write_text("\n".join([*higher, ""]))
    methods = by_method(read([tmp_path]))
    assert methods[-1].name == best.name
    assert methods[-1].last == 99
    assert f"{best.name} leads" not in facts.headline(methods)
    assert f"{best.name} (stopped after round 3 of 6) 99.0 %" in facts.story(methods)[0]
    assert facts.warnings(methods)[0].startswith(f"{best.name}: stopped after round 3 of 6; ")
    numbers = collect(methods)
    assert [method["compared"] for method in numbers["methods"]] == [True, True, False]
    assert numbers["methods"][-1]["mark"] == "stopped after round 3 of 6"
    assert all(run["gain"] is None for run in numbers["runs"] if run["method"] == 2)  # Local has gone on since then


def _big(seed: int, algorithm: str) -> Record:
    """A run of 20 clients and 100 rounds whose weights no compression makes small: all of them random."""
    rng = np.random.default_rng(seed)
    series = dict.fromkeys(("all", "all_weighted", "participants", "participants_weighted"), 50.0)
    costs = {"participants": 20, "bytes_up": 10, "bytes_down": 10, "flops": 10, "seconds": {"train": 0.1}}
    lines = [{"round": i, "before": series, "loss_before": 1.0, **costs} for i in range(1, 101)]
    weights = [Weights(i, np.arange(20), rng.dirichlet(np.ones(20), 20)) for i in range(1, 101)]
    config = RunConfig(algorithm=algorithm, seed=seed).resolved()
    path = Path(__file__).parent
    return Record(path, config, lines, rng.uniform(0, 100, (100, 20)).round(2), weights, None, True)


@pytest.mark.slow
def test_twenty_clients_a_hundred_rounds_and_all_methods_are_under_five_megabytes():
    from feddwa.algorithms import ALGORITHMS

    methods = [Method(ALGORITHMS[name].title, [_big(0, name)]) for name in ALGORITHMS]
    assert len(methods) >= 14
    size = len(page(methods).encode())
    assert size < LIMIT
    seeds = [Method(ALGORITHMS[name].title, [_big(seed, name) for seed in range(3)]) for name in ALGORITHMS]
    assert len(page(seeds).encode()) < LIMIT  # and even with three seeds of each


def test_nothing_half_is_left_behind(runs, tmp_path):
    size = write_report(read([runs]), tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").stat().st_size == size
