"""Clients whose data name them are called by their names, wherever a run speaks of a client."""

import json
import re

import numpy as np
import pytest

from feddwa import cli
from feddwa.results.record import read

NAMES = ["ash", "birch", "cedar", "fir", "oak", "pine"]
NUMBERED = re.compile(r"\bclients? \(?\d|\(\d+(, \d+)*(, \.\.\.)?\)|client \d")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Six owners; one has five samples, one a single class."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("own") / "own.npz"
    owner = np.array([*np.repeat(NAMES[:5], 60), *["pine"] * 5])
    y = rng.integers(0, 3, len(owner))
    y[owner == "oak"] = 1
    x = (rng.normal(size=(len(owner), 6)) + np.eye(3, 6)[y] * 2).astype(np.float32)
    np.savez(path, x=x, y=y, client=owner)
    return str(path)


@pytest.fixture(scope="module")
def compared(own, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "out"
    options = ["--dataset", own, "--rounds", "2", "--fault", "nan=0.3", "--algorithms", "feddwa", "local"]
    assert cli.main(["compare", *options, "--out", str(out), "--quiet"]) == 0
    return out


def plain(text):
    return re.sub(r"\s+", " ", text)


def test_partition_and_doctor_name_clients(own, capsys):
    assert cli.main(["partition", "--dataset", own]) == 0
    assert all(name in capsys.readouterr().out for name in NAMES[:1])
    cli.main(["doctor", "--dataset", own, "--rounds", "1"])
    out = plain(capsys.readouterr().out)
    assert "6 owners: ash, birch, cedar, fir, ..." in out
    assert "1 client (pine) has fewer training samples than a batch" in out
    assert "1 client (oak) has samples of one class alone" in out
    assert not NUMBERED.search(out.split("This configuration")[1].replace("features (6,)", ""))


def test_findings_tables_and_the_report_name_clients(compared, capsys):
    (record, _) = read([compared])
    assert any("client" in finding.text for finding in record.findings)
    for finding in record.findings:
        assert not NUMBERED.search(finding.text)
    cli.main(["doctor", str(compared / "feddwa")])
    assert "1 client (oak) has samples of one class alone" in plain(capsys.readouterr().out)
    page = (compared / "report.html").read_text()
    assert "1 client (cedar) never counted" in page


def test_the_files_of_a_run_name_clients(compared):
    lines = [json.loads(line) for line in (compared / "feddwa" / "clients.jsonl").read_text().splitlines()]
    assert lines[-1]["names"] == NAMES
    assert len(lines[-1]["before"]) == len(NAMES)
    assert all("names" not in line for line in lines[:-1])
    assert json.loads((compared / "feddwa" / "partition.json").read_text())["client_names"] == NAMES


@pytest.mark.parametrize("figure", ["partition", "weights"])
def test_figures_name_clients(compared, tmp_path, figure):
    out = tmp_path / f"{figure}.svg"
    assert cli.main(["figure", figure, str(compared / "feddwa"), "--out", str(out)]) == 0
    assert "ash" in out.read_text()
