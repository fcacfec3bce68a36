"""Several seeds in one command: trained in lockstep, one directory, means, spreads and paired intervals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import feddwa
from feddwa import cli
from feddwa.errors import InputError
from feddwa.results.compare import Spread
from feddwa.results.record import read
from feddwa.results.runs import read_config
from feddwa.seeds import members

TINY = {"clients": 4, "rounds": 3, "batch_size": 60, "param": ("groups=2",)}
SMALL = ("--clients", "4", "--batch-size", "60", "--param", "groups=2")
QUICK = (*SMALL, "--rounds", "3")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    def run(*arguments):
        status = cli.main([*arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def timeless(path) -> list[dict]:
    return [{**json.loads(line), "seconds": None} for line in Path(path, "metrics.jsonl").read_text().splitlines()]


def close(left: feddwa.Result, right: feddwa.Result) -> None:
    for name, value in left.models.items():
        torch.testing.assert_close(value, right.models[name], rtol=1e-5, atol=1e-6)


def test_seeds_are_the_runs_one_by_one():
    found = feddwa.run(seeds=[2, 0], out="several", **TINY)
    assert (list(found), len(found), found.path) == ([2, 0], 2, "several")
    assert sorted(os.listdir("several")) == ["seed-0", "seed-2", "seeds.toml"]
    for seed in (0, 2):
        alone = feddwa.run(seed=seed, out=f"alone-{seed}", **TINY)
        close(found[seed], alone)
        assert found[seed].summary["lockstep"] == 2
        config = Path(f"several/seed-{seed}/config.toml").read_text()
        assert config == Path(f"alone-{seed}/config.toml").read_text()  # which makes this run alone again
    unwritten = feddwa.run(seeds=(2, 0), out=False, **TINY)
    assert unwritten.path is None
    close(unwritten[0], found[0])
    assert len(os.listdir()) == 3


def test_a_summary_of_seeds_has_means_and_spreads():
    found = feddwa.run(seeds=range(3), out=False, **TINY)
    last = [found[seed].summary["accuracy"]["last"] for seed in range(3)]
    told = found.summary["accuracy"]["last"]
    assert (told.mean, told.std) == (pytest.approx(np.mean(last)), pytest.approx(np.std(last, ddof=1)))
    assert f"{told:.1f}" == f"{np.mean(last):.1f} ± {np.std(last, ddof=1):.1f}"
    assert (found.summary["seeds"], found.summary["clients"], found.summary["algorithm"]) == ([0, 1, 2], 4, "feddwa")
    assert found.summary["accuracy"]["series"]["after.all"]["best"].values.keys() == {0, 1, 2}
    assert "seed" not in found.summary


def test_the_samples_are_in_memory_once():
    found = feddwa.run(seeds=[0, 1], out=False, **{**TINY, "partition": "iid", "param": ()})
    tasks = {id(result.partition) for result in found.values()}
    assert len(tasks) == 2
    from feddwa.build import load_dataset, tasks_of

    config = feddwa.RunConfig(partition="iid", clients=4).resolved()
    one, two = tasks_of(config, [0, 1], load_dataset(config)).values()
    assert one.dataset is two.dataset
    assert one.keep("samples", object) is two.keep("samples", object)
    assert any(not np.array_equal(a, b) for a, b in zip(one.partition.train, two.partition.train, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "0", "1", "--seed", "0"), "--seeds replaces seed; give one of them"),
        (("--seeds", "0", "1", "0"), "--seeds: got 0, must be given once"),
        (("--seeds",), "--seeds: got 'none', must be one seed or more"),
        (("--seeds", "-1"), "--seeds: got -1, must be from 0"),
        (("--seeds", "0", "x"), r"--seeds: got \['0', 'x'\]|--seeds: got .*must be a list of whole numbers"),
        (("--seeds", "0", str(2**63)), "--seeds: got 9223372036854775808, must be at most"),
        (("--seeds", "0", "1.0"), "must be a list of whole numbers"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare", "federate"])
def test_bad_seeds_are_one_line(call, command, arguments, message):
    status, _, err = call(command, *QUICK, *arguments, "--out", "never")
    assert (status, err.count("\n")) == (2, 1)
    assert re.search(message, err)
    assert not Path("never").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": [0, 1], "seed": 1}, "seeds replaces seed"),
        ({"seeds": []}, "--seeds: got 'none', must be one seed or more"),
        ({"seeds": [1, 1]}, "--seeds: got 1, must be given once"),
        ({"seeds": 3}, "--seeds: got 3, must be a list of whole numbers"),
        ({"seeds": ["0"]}, "must be a list of whole numbers"),
    ],
)
def test_bad_seeds_in_python(options, message):
    with pytest.raises(InputError, match=message):
        feddwa.run(out="never", **TINY, **options)
    assert not Path("never").exists()


def test_a_file_has_one_of_both_and_the_command_line_prevails(call):
    Path("both.toml").write_text("seed = 1\nseeds = [0, 1]\n")
    status, _, err = call("run", "--config", "both.toml")
    assert (status, "both.toml: seeds replaces seed" in err) == (2, True)
    assert call("run", *QUICK, "--seeds", "0", "1", "--quiet", "--out", "first")[0] == 0
    assert tomllib.loads(Path("first/seeds.toml").read_text())["seeds"] == [0, 1]
    assert "seed" not in tomllib.loads(Path("first/seeds.toml").read_text())
    again = call("run", "--config", "first/seeds.toml", "--quiet", "--out", "again")
    assert again == (0, "again\n", "")
    one = call("run", "--config", "first/seeds.toml", "--seed", "1", "--quiet", "--out", "one")
    assert one == (0, "one\n", "")
    more = call("run", "--config", "one/config.toml", "--seeds", "1", "0", "--quiet", "--out", "more")
    assert more == (0, "more\n", "")
    for path in ("again/seed-1", "more/seed-1"):
        assert timeless(path) == timeless("first/seed-1")
    assert [line["before"] for line in timeless("one")] == [line["before"] for line in timeless("first/seed-1")]


def test_a_comparison_of_seeds(call):
    status, shown, _ = call(
        "compare", *QUICK, "--algorithms", "fedavg", "local", "--seeds", "0", "1", "2", "--out", "c"
    )
    assert status == 0
    assert "4 clients, 3 rounds, 3 seeds" in shown
    assert [str(path) for path in members(Path("c"))][:2] == ["c/fedavg/seed-0", "c/fedavg/seed-1"]
    records = {(run.config.algorithm, run.seed): run for run in read(["c"])}
    assert len(records) == 6
    fedavg, local = ([records[name, seed].last for seed in range(3)] for name in ("fedavg", "local"))
    test = stats.ttest_rel(fedavg, local).confidence_interval(0.95)  # scipy's own
    told = f"{np.mean(fedavg) - np.mean(local):+.2f} ± {(test.high - test.low) / 2:.2f}"
    assert told in shown
    assert f"{np.mean(fedavg):.2f} ± {np.std(fedavg, ddof=1):.2f}" in shown
    report = Path("c/report.html").read_text()
    assert told in report
    assert f"95&nbsp;% CI {-test.high:+.2f} to {-test.low:+.2f}, n = 3" in report  # Local, which leads, over FedAvg
    assert (
        "feddwa run --algorithm fedavg --clients 4 --rounds 3 --batch-size 60 --param rotations.groups=2 --seeds 0 1 2"
        in report
    )
    status, shown, _ = call("leaderboard", "c")
    assert told in " ".join(shown.split())
    before = {path: path.read_bytes() for path in Path("c").rglob("*.jsonl")}
    assert call("resume", "c")[0] == 0  # nothing is left to be done
    assert before == {path: path.read_bytes() for path in Path("c").rglob("*.jsonl")}


def test_without_local_the_first_method_is_compared_with(call):
    _, shown, _ = call("compare", *QUICK, "--algorithms", "fedavg", "feddwa", "--seeds", "0", "1", "--out", "c")
    assert "over fedavg" in shown
    assert "Over fedavg: seed by seed" in shown


def test_unequal_seeds_are_marked_everywhere(call):
    """And differences are over common seeds."""
    common = {"out": "c/fedavg", "algorithm": "fedavg", **TINY}
    feddwa.run(seeds=[0, 1, 2], **common)
    feddwa.run(seeds=[0, 1], **{**common, "out": "c/local", "algorithm": "local"})
    records = {(run.config.algorithm, run.seed): run.last for run in read(["c"])}
    apart = [records["fedavg", seed] - records["local", seed] for seed in (0, 1)]
    sentence = "Unequal seeds (*): without seed 2: Local. Differences are over common seeds."
    assert call("report", "c", "-o", "r.html")[0] == 0
    page = Path("r.html").read_text()
    assert sentence in page
    assert "<td>2*</td>" in page
    assert f"{np.mean(apart):+.2f} ± " in page
    assert ", n = 2" in page
    _, shown, _ = call("leaderboard", "c")
    assert sentence in " ".join(shown.split())
    assert " 2* " in shown
    assert f"{np.mean(apart):+.2f}" in shown


def test_a_failure_that_all_seeds_share_is_told_once_with_the_seeds(call):
    feddwa.run(algorithm="fedavg", seeds=[0, 1], out="c/fedavg", lr=1e6, **TINY)
    feddwa.run(algorithm="local", seeds=[0, 1], out="c/local", **TINY)
    status, shown, _ = call("leaderboard", "c")
    assert status == 0
    assert shown.count("nothing was trained") == 1
    assert "FedAvg, seeds 0, 1: nothing was trained" in " ".join(shown.split())


def test_validation_has_a_table_of_its_own_and_nothing_wraps(capsys):
    from feddwa.report.tables import show_seeds
    from feddwa.report.terminal import make_console
    from feddwa.results.methods import Method

    for name in ("fedavg", "local"):
        feddwa.run(seeds=[0, 1], out=f"c/{name}", algorithm=name, validation=0.2, **TINY)
    methods = [Method(name, read([f"c/{name}"])) for name in ("fedavg", "local")]
    show_seeds(make_console(width=80), methods)
    shown = capsys.readouterr().out
    assert "Validation: on 20 %" in shown
    for method in methods:
        values = [run.metrics["validation accuracy"][-1] for run in method.runs]
        told = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
        assert any(re.search(rf"{method.name}\W+{told}", line) for line in shown.splitlines())


def test_the_terminal_marks_unequal_seeds_too(capsys):
    from feddwa.report.tables import show_seeds
    from feddwa.report.terminal import make_console
    from feddwa.results.methods import Method

    feddwa.run(seeds=[0, 1], out="c/fedavg", algorithm="fedavg", **TINY)
    feddwa.run(seeds=[0], out="c/local", algorithm="local", **TINY)
    show_seeds(make_console(width=100), [Method(name, read([f"c/{name}"])) for name in ("fedavg", "local")])
    shown = capsys.readouterr().out
    assert "1*" in shown
    assert "without seed 1: local" in shown
    assert "(one seed)" in shown


def test_what_is_left_of_several_seeds_goes_on():
    """One finished, one stopped, one not begun: the end is that of the runs that nothing stopped."""
    whole = feddwa.run(seeds=[0, 1, 2], out="whole", **TINY)
    finished = []

    def stop(line, seed):
        finished.extend([seed] * (line["round"] == 4))
        if seed == 1 and line["round"] == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        feddwa.run(seeds=[0, 1, 2], out="cut", observe=stop, **TINY)
    with pytest.raises(InputError, match="--out cut: has an unfinished run; `feddwa resume cut` continues it"):
        feddwa.run(seeds=[0, 1, 2], out="cut", **TINY)
    with pytest.raises(InputError, match="holds several runs; `feddwa resume cut` continues all of them"):
        read_config(Path("cut"))
    os.rename("cut/seed-2", "away")
    feddwa.resume("cut/seed-0")
    found = feddwa.resume("cut")
    for seed in (0, 1, 2):
        assert (Path("cut") / f"seed-{seed}" / "record.json").exists()
        close(found[seed], whole[seed])
        mine, theirs = (timeless(f"{path}/seed-{seed}") for path in ("cut", "whole"))
        assert [line["before"] for line in mine] == [line["before"] for line in theirs]
    assert isinstance(found.summary["loss"]["last"], Spread)


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on(call):
    """SIGKILL while the second method trains."""
    words = ["compare", *SMALL, "--rounds", "60", "--algorithms", "local", "fedavg", "--seeds", "0", "1"]
    assert call(*words, "--quiet", "--out", "whole")[0] == 0
    work = subprocess.Popen([sys.executable, "-m", "feddwa", *words, "--quiet", "--out", "cut"])
    journal = Path("cut/fedavg/seed-1/metrics.jsonl")
    while work.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 3):
        time.sleep(0.005)
    work.send_signal(signal.SIGKILL)
    work.wait()
    assert (Path("cut/local/seed-1/record.json")).exists()
    assert not (Path("cut/fedavg/seed-1/record.json")).exists()
    assert call("resume", "cut")[0] == 0
    for path in members(Path("whole")):
        assert timeless(path) == timeless("cut" / path.relative_to("whole"))


def test_progress_shows_all_seeds(capsys):
    from feddwa.report.progress import progress
    from feddwa.report.terminal import make_console

    with progress(make_console(), "feddwa", 1) as observe:
        for round, after in ((1, 0.0), (2, 30.0)):
            for seed in range(2):
                line = {"round": round, "before": {"all": 50.0 + seed + after}, "loss_before": 1.0}
                observe({**line, "participants": 4, "seconds": {"train": 1.0}} if round == 1 else line, seed=seed)
    assert capsys.readouterr().out.startswith("feddwa: done, accuracy 80.00 %, 81.00 %")


def test_sequential_seeds_are_the_same(call):
    found = feddwa.run(seeds=[0, 1], out=False, backend="sequential", **TINY)
    for seed in (0, 1):
        alone = feddwa.run(seed=seed, out=False, **TINY)
        assert found[seed].summary["loss"]["last"] == pytest.approx(alone.summary["loss"]["last"], abs=1e-4)
        assert "lockstep" not in found[seed].summary
