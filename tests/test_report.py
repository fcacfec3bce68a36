"""What people see: the table, the progress, the pictures of the weights."""

import contextlib
import io
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from feddwa import cli
from feddwa.config import RunConfig
from feddwa.report import progress as progress_module
from feddwa.report.progress import jobs, progress
from feddwa.report.tables import show_results, show_weights
from feddwa.report.terminal import make_console, show_finding
from feddwa.results.findings import Finding
from feddwa.results.plot import Panel, draw_weights, terminal_weights
from feddwa.results.record import Record
from feddwa.results.units import human_bytes, human_flops, human_seconds
from feddwa.results.weights import Weights

SERIES = ("all", "all_weighted", "participants", "participants_weighted")


def a_run(last=80.0, rounds=6, clients=4, loss=1.0, path="runs/x", dataset="digits", algorithm="feddwa") -> Record:
    """A run that has happened."""
    lines = [{"round": number, "before": {"all": last}, "loss_before": loss} for number in range(1, rounds + 2)]
    for line in lines[:-1]:
        line["before"] = line["after"] = dict.fromkeys(SERIES, last)
        line |= {"participants": clients, "bytes_up": 1024, "bytes_down": 512, "seconds": {"train": 1.25 / rounds}}
    config = RunConfig(algorithm=algorithm, clients=clients, rounds=rounds, seed=7).resolved()
    config = replace(config, dataset=dataset)
    weights = [Weights(number, np.arange(clients), np.full((clients, clients), 0.02) + np.eye(clients) * 0.92)
               for number in range(1, rounds + 1)]  # fmt: skip
    content = {"groups": (np.arange(clients) // 2).tolist()}
    accuracy = np.full((rounds + 1, clients), last)
    return Record(Path(path), config, lines, accuracy, weights, None, True, content)


def broken(run: Record) -> Record:
    """The same, diverged."""
    return replace(run, lines=[{**line, "loss_before": None} for line in run.lines])


def printed(show, *arguments, **options) -> str:
    file = io.StringIO()
    show(Console(file=file, width=80, **options), *arguments)
    return file.getvalue()


def test_the_table_compares_with_local():
    text = printed(
        show_results, {"feddwa": a_run(90.0), "local": a_run(80.0, algorithm="local"), "fedavg": a_run(70.5)}
    )
    lines = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("│")}
    assert "digits, rotations, 4 clients, 6 rounds, seed 7" in text
    assert lines["feddwa"][3:] == ["90.00", "│", "90.00", "(0)", "│", "+10.00", "│", "1.5", "KiB", "│", "1.2", "s", "│"]
    assert "-9.50" in lines["fedavg"]
    assert not any(cell.startswith("+") for cell in lines["local"])
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_by_itself_has_nothing_to_compare_with():
    assert "+0" not in printed(show_results, {"feddwa": a_run(90.0)})


def test_pictures_and_paths(tmp_path):
    text = printed(show_weights, {"local": a_run(70.0), "feddwa": a_run(80.0)}, tmp_path)
    assert "Mixing weights (feddwa, round 6" in text
    assert "    0 ██░░░░░░\n    1 ░░██░░░░\n" in text
    assert text.count("runs/x/") == 2
    assert "weights.png" in text
    with Image.open(tmp_path / "weights.png") as picture:
        assert picture.width > 1500  # rounds 1, 5 and 6 of FedDWA beside Local's last


def test_the_weights_are_those_of_the_best(tmp_path):
    results = {"feddwa": a_run(70.0), "fedavg": a_run(80.0), "local": a_run(75.0)}
    assert "Mixing weights (fedavg, round 6" in printed(show_weights, results, tmp_path)
    failed = {**results, "fedavg": broken(results["fedavg"])}
    assert "Mixing weights (local, round 6" in printed(show_weights, failed, tmp_path)


def test_what_went_wrong_leads_and_is_not_praised():
    results = {"feddwa": a_run(90.0), "local": a_run(80.0), "fedavg": a_run(85.0)}
    text = printed(show_results, {**results, "feddwa": broken(results["feddwa"])})
    assert text.startswith("  bad  feddwa: the loss is no finite number from round 1 on")
    assert "+10.00" not in text
    assert "+5.00" in text
    text = printed(show_results, {**results, "local": broken(results["local"])})
    assert not re.search(r"[+-]\d", text)  # nothing is measured against a Local that has diverged


@pytest.mark.parametrize("name", ["[/x]", "[bold]x", ":smile:"])
def test_a_users_text_is_no_markup(name, tmp_path, capsys):
    run = a_run(path=name, dataset=name)
    console = make_console()
    show_finding(console, Finding("note", name))
    show_results(console, {"feddwa": run})
    show_weights(console, {"feddwa": run}, tmp_path)
    assert capsys.readouterr().out.count(name) == (2 if "/" in name else 3)  # of a path the title has the last part
    with jobs(make_console(), 2) as job, job(name, 1) as observe:
        observe(a_line(1, 50.0))
        observe({"round": 2, "before": {"all": 75.0}, "loss_before": 1.0})
    assert capsys.readouterr().out.startswith(f"{name}: done")
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with jobs(terminal, 1) as job, job(name, 1) as observe:
        observe(a_line(1, 50.0))
    assert name in terminal.file.getvalue()


def test_algorithms_that_weigh_nobody(tmp_path):
    silent = replace(a_run(), weights=[])
    text = printed(show_weights, {"feddwa": silent}, tmp_path)
    assert text.split() == ["Written:", "runs/x/"]
    assert list(tmp_path.iterdir()) == []
    assert "Mixing weights" not in printed(show_weights, {"feddwa": silent, "local": a_run()}, tmp_path)
    assert Path(tmp_path, "weights.png").exists()


@pytest.mark.parametrize("rounds", [1, 2, 5, 6])
def test_short_runs_are_drawn(tmp_path, rounds):
    printed(show_weights, {"feddwa": a_run(rounds=rounds)}, tmp_path)
    assert (tmp_path / "weights.png").exists()


def test_many_panels_and_cohorts(tmp_path):
    rng = np.random.default_rng(0)
    panels = [Panel(f"round {i}", rng.dirichlet(np.ones(6), 6), np.sort(rng.permutation(12)[:6])) for i in range(7)]
    for groups in (None, np.arange(12) // 4):
        draw_weights(panels, tmp_path / "p.png", groups)
        with Image.open(tmp_path / "p.png") as picture:
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 50


def test_clients_of_one_group_stand_beside_each_other():
    """Each weight names its row and column, and stays between the same two clients."""
    cohort, groups = np.array([1, 2, 4, 5]), np.array([9, 1, 0, 9, 1, 0])
    panel = Panel("", 10 * cohort[:, None] + cohort, cohort).by_group(groups)
    assert panel.cohort.tolist() == [2, 5, 1, 4]
    assert np.array_equal(panel.weights, 10 * panel.cohort[:, None] + panel.cohort)
    assert panel.by_group(None) is panel


def test_the_terminal_shows_what_its_encoding_has():
    panel = Panel("", np.array([[1.0, 0.0], [0.3, 0.7]]), np.array([3, 12]))
    assert str(terminal_weights(panel)) == (
        "    3 ██··\n   12 ▒▒▓▓\n      · 0, ░ to 0.25, ▒ to 0.50, ▓ to 0.75, █ to 1.00"
    )
    assert str(terminal_weights(panel, "ascii")).splitlines()[:2] == ["    3 ##..", "   12 ++**"]
    assert terminal_weights(Panel("", np.eye(41), np.arange(41))) is None


def test_axes_bear_the_clients_numbers():
    cohort = np.array([3, 7, 12])
    assert [Panel("", np.eye(3), cohort).client_at(place) for place in (-1.0, 0.0, 2.0, 3.0)] == ["", "3", "12", ""]


def a_line(number, accuracy, participants=4):
    series = dict.fromkeys(SERIES, accuracy)
    costs = {
        "participants": participants,
        "bytes_up": 1024,
        "bytes_down": 512,
        "seconds": {"train": 2.0, "server": 0.5},
    }
    return {"round": number, "before": series, "loss_before": 1.0, **costs}


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


def test_plain_progress_is_short(clock):
    file = io.StringIO()
    with progress(Console(file=file), "feddwa", 6) as observe:
        for number, accuracy in enumerate((10, 40, 30, 50, 80, 70), 1):
            clock[0] += 4.0
            observe(a_line(number, accuracy))
        observe({"round": 7, "before": {"all": 75.0}, "loss_before": 1.0})
    early, late = "best 40.00 % after round 1, traffic 18.0 KiB", "best 80.00 % after round 4, traffic 36.0 KiB"
    assert file.getvalue() == (
        f"feddwa: round 3/6, accuracy 30.00 %, {early}, 1.6 clients/s, 12.0 s left\n"
        f"feddwa: round 6/6, accuracy 70.00 %, {late}, 1.6 clients/s, 0.0 s left\n"
        f"feddwa: done, accuracy 75.00 %, {late}, 1.6 clients/s, took 15.0 s\n"
    )


def test_plain_progress_without_classes(clock):
    file = io.StringIO()
    with progress(Console(file=file), "feddwa", 6) as observe:
        first, second = a_run(None, loss=0.5).lines[:2]
        observe(first)
        clock[0] += 11.0
        observe(second)
    assert file.getvalue() == "feddwa: round 2/6, loss 0.5000, traffic 12.0 KiB, 19 clients/s, 22.0 s left\n"


def test_of_several_jobs_it_is_said_which(clock):
    file = io.StringIO()
    with jobs(Console(file=file), 2) as job:
        for name in ("feddwa", "local"):
            with job(name, 3) as observe:
                clock[0] += 11.0
                observe(a_line(1, 50.0))
    assert [line.split(",")[0] for line in file.getvalue().splitlines()] == [
        "feddwa (1 of 2): round 1/3", "local (2 of 2): round 1/3"
    ]  # fmt: skip


def test_a_bar_in_a_terminal():
    file = io.StringIO()
    with progress(Console(file=file, force_terminal=True, width=100), "feddwa", 6) as observe:
        for line in a_run().lines:
            observe(line)
    assert "6/6" in file.getvalue()
    assert "accuracy 80.00 %" in file.getvalue()
    with progress(Console(file=file, force_terminal=True, width=100), "feddwa", 6) as observe:
        observe(a_run(None, loss=None).lines[0])
    assert "diverged" in file.getvalue()


def test_bars_are_nested_and_fit_a_terminal():
    file = io.StringIO()
    with jobs(Console(file=file, force_terminal=True, width=80, color_system=None), 3) as job:
        for name in ("feddwa", "local"):
            with job(name, 2) as observe:
                for number in (1, 2):
                    observe(a_line(number, 40.0 + number))
                    time.sleep(0.15)  # for a picture to be drawn
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue())
    assert re.search(r"all +━+.* 2/3 +runs", text)
    assert re.search(r"✓ feddwa +━+.* 2/2 +rounds +took 5\.0 s +accuracy 42.00 %", text)
    assert "best 42.00 % after round 1, traffic 12.0 KiB, " in text
    assert max(map(len, text.replace("\r", "\n").splitlines())) <= 80


def test_a_resumed_run_says_so_and_counts_its_own_rounds_alone(clock):
    file = io.StringIO()
    with progress(Console(file=file), "feddwa", 6) as observe:
        clock[0] += 11.0
        observe(a_line(5, 50.0))
    assert file.getvalue().startswith("feddwa: round 5/6, accuracy 50.00 %, resumed after round 4, ")
    assert file.getvalue().endswith(" 11.0 s left\n")  # one round took 11 s, and one is left


def test_a_run_that_is_stopped_is_not_ticked():
    """Even if all its rounds are over: the models that it delivers are not evaluated yet."""
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, width=80, color_system=None)
    with pytest.raises(KeyboardInterrupt), jobs(terminal, 2) as job, job("feddwa", 2) as observe:  # noqa: PT012
        observe(a_line(1, 41.0))
        observe(a_line(2, 42.0))
        raise KeyboardInterrupt
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue()).replace("\r", "\n")
    assert "✓" not in text
    assert re.search(r"✗ all +━+.* 1/2 +runs|✗ all +━+.* 0/2 +runs", text)
    assert re.search(r"✗ feddwa +━+.* 2/2 +rounds +took 5\.0 s +stopped after round 2", text)
    assert max(map(len, text.splitlines())) <= 80


def test_quiet_is_silent():
    file = io.StringIO()
    for terminal in (True, False):
        with progress(Console(file=file, force_terminal=terminal), "feddwa", 6, quiet=True) as observe:
            observe(a_line(1, 50.0))
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (75, "1 min 15 s"), (7260, "2 h 01 min")]
)
def test_seconds_for_people(seconds, text):
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0.0 FLOP"), (2.34e9, "2.3 GFLOP"), (1e21, "1000.0 EFLOP")])
def test_flops_for_people(count, text):
    assert human_flops(count) == text


def test_of_many_jobs_the_last_stay_on_the_screen_and_a_failure_does_not_stop_the_count():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=40, color_system=None)
    with jobs(console, 12, "cells") as job:
        for number in range(12):
            with contextlib.suppress(ValueError), job(f"cell {number:02d}", 1) as observe:
                observe(a_line(1, 50.0))
                if number == 5:
                    raise ValueError
    last = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue()).split("all ")[-1]
    assert "12/12" in last
    assert re.findall(r"cell \d\d", last) == [f"cell {number:02d}" for number in range(4, 12)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [("0",), ("0", "1")])
def test_a_run_has_one_time_in_progress_table_and_report(seeds, tmp_path, capsys):
    """Several seeds share a stack: each has its share of the time, everywhere."""
    small = ("--rounds", "3", "--clients", "4", "--algorithms", "feddwa", "local", "--out", str(tmp_path / "two"))
    assert cli.main(["compare", *small, "--seeds", *seeds]) == 0
    shown = capsys.readouterr().out
    progressed = dict(re.findall(r"^(\w+): done.* took (\d+\.\d s)", shown, re.MULTILINE))
    tabled = dict(re.findall(r"^│ (\w+).* (\d+\.\d s) │$", shown, re.MULTILINE))
    page = (tmp_path / "two/report.html").read_text()
    times = re.findall(r"<td>(\d+\.\d s)</td>", page)
    assert set(progressed) == {"feddwa", "local"}
    assert progressed == tabled
    assert set(times) == set(tabled.values())
