"""feddwa tune: spaces, budgets, trials as one stack, resume, and no look at test data."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

from feddwa.algorithms import ALGORITHMS
from feddwa.build import completed, load_task, make_engine
from feddwa.cli import main
from feddwa.config import RunConfig
from feddwa.data.federated import HELD_OUT
from feddwa.data.task import Task
from feddwa.params import Tunable, fields_of, tunable_of
from feddwa.tune import trials
from feddwa.tune.search import BEST, Budget, Search, run_search
from feddwa.tune.space import FOUND, Dimension, applied, check_space, grid, space_of
from feddwa.tune.study import Outcome, Study, Trial

pytest.importorskip("optuna")
SMALL = ["--clients", "4", "--rounds", "2", "--seeds-final", "0", "--validation", "0.3", "--quiet"]


def small(**options):
    options = {"dataset": "digits", "clients": 4, "rounds": 2, "seed": 1000, "validation": 0.3, **options}
    config = RunConfig(**options).resolved()
    task = load_task(config)
    return completed(config, task.dataset), task


@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_ends_of_every_declared_range_are_valid(name):
    config = RunConfig(algorithm=name)
    check_space([config], ())
    assert next(each.key for each in space_of(config)) == "lr"


def test_a_space_is_declared_with_the_hyper_parameters():
    space = {each.key: each for each in space_of(RunConfig(algorithm="fedprox", lr=0.2))}
    assert space["mu"] == Dimension("mu", tunable_of(fields_of(ALGORITHMS["fedprox"])["mu"][0]), False, 1.0)
    assert space["lr"].default == 0.2
    given = {
        each.key: each
        for each in space_of(RunConfig(algorithm="fedprox"), ["mu=0.5..2", "epochs=1,2", "feddwa.top_k=1..3"])
    }
    assert given["mu"].tried == Tunable(0.5, 2.0)
    assert given["epochs"].tried.choices == (1, 2)
    assert "top_k" not in given


def test_what_is_searched_is_told(capsys):
    assert main(["list", "algorithms", "fedprox"]) == 0
    assert "[0.001..10:log]" in capsys.readouterr().out
    assert main(["list", "algorithms", "fedprox", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fedprox"]["parameters"]["mu"]["search"] == "0.001..10:log"


def test_values_take_the_place_of_what_a_configuration_has():
    config = applied(
        RunConfig(algorithm="fedprox", param=("fedprox.mu=3", "rotations.groups=2")), {"mu": 0.5, "lr": 0.3}
    )
    assert config.param == ("rotations.groups=2", "fedprox.mu=0.5")
    assert config.lr == 0.3


def test_a_grid_has_at_most_so_many_points():
    space = (
        Dimension("a", Tunable(1, 100, log=True)),
        Dimension("b", Tunable(0, 1)),
        Dimension("k", Tunable(1, 3), True),
    )
    levels = grid(space, 12)
    assert math.prod(map(len, levels.values())) == 12
    assert (levels["a"][0], levels["a"][-1]) == (pytest.approx(1), pytest.approx(100))
    assert levels["k"] == [1, 3]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--space", "mu"], "of the form"),
        (["--space", "nu=1..2"], "no such hyper-parameter"),
        (["--space", "lr=1..x"], "must be a number"),
        (["--space", "lr=2..1"], "LOW below HIGH"),
        (["--space", "lr=0..1:log"], "above 0"),
        (["--space", "mu=-1..1"], "0 or more"),
        (["--space", "ditto.mu=1..2"], "of one of fedprox"),
        (["--budget", "1e6"], "gradients=NUMBER"),
        (["--budget", "gradients=-1"], "above 0"),
        (["--budget", "gradients=1e6", "--trials", "3"], "leave one out"),
        (["--trials", "0"], "at least 1"),
        (["--sampler", "best"], "one of tpe"),
        (["--validation", "0"], "above 0 and below 1"),
        (["--seeds-final", "0", "0"], "each once"),
        (["--seeds-final", "1000"], "which the search has seen"),
        (["--early-stop", "2"], "all trials train as long"),
        (["--metric", "nothing"], "nothing"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_any_work(words, told, tmp_path, capsys):
    assert main(["tune", "--algorithms", "fedprox", "--out", str(tmp_path / "out"), *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_the_extra_it_says_what_to_install(tmp_path):
    program = "import sys; sys.modules['optuna'] = None; from feddwa.cli import main; sys.exit(main(['tune']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    error = "feddwa: feddwa tune: needs Optuna, which is not installed; pip install 'feddwa[tune]'\n"
    assert (done.returncode, done.stderr) == (2, error)
    assert not any(tmp_path.iterdir())


def test_no_trial_has_test_samples():
    """In the place of the test samples are those that training data hold out; nothing else names the former."""
    config, task = small()
    engine = make_engine(config, task)
    held, tested = engine.data.splits[HELD_OUT], engine.data.splits["test"]
    data = trials.judged_on_validation(engine).data
    rows = {
        int(row)
        for split in data.splits.values()
        for own, size in zip(split.index, split.sizes.tolist(), strict=True)
        for row in own[:size]
    }
    assert rows == {int(row) for own in task.partition.train for row in own}
    assert not rows & {int(row) for own in task.partition.test for row in own}
    assert data.splits["test"] is held
    assert all(split is not tested for split in data.splits.values())


def test_the_search_does_not_depend_on_test_samples():
    """With other test images and labels it ends with the same scores, to the last bit."""
    config, task = small(algorithm="fedavg")
    before = trials.train([config], task, [2])[0].curve
    y, x = task.dataset.y.copy(), task.dataset.x.copy()
    for own in task.partition.test:
        y[own], x[own] = (y[own] + 1) % 10, 0
    other = Task(dataclasses.replace(task.dataset, x=x, y=y), task.partition)
    assert trials.train([config], other, [2])[0].curve == before


@pytest.mark.parametrize("name", ["fedprox", "feddwa", "pfedme"])
def test_trials_of_a_stack_score_as_alone(name):
    config, task = small(algorithm=name, dtype="float64")
    space = [each for each in space_of(config) if not each.tried.choices]
    configs = [applied(config, {each.key: each.levels(3)[place] for each in space}).resolved() for place in range(3)]
    together = trials.train(configs, task, [2])
    for own, expected in zip(together, [trials.train([each], task, [2])[0] for each in configs], strict=True):
        assert own.curve == pytest.approx(expected.curve, abs=1e-9)
        assert own.gradients == expected.gradients


def test_a_diverged_trial_counts_as_the_worst():
    config, task = small(algorithm="fedavg")
    configs = [applied(config, {"lr": lr}).resolved() for lr in (0.1, 1e30)]
    sound, wild = trials.train(configs, task, [2])
    assert not sound.failed
    assert wild.failed or wild.curve[2] < sound.curve[2]


def test_halving_keeps_a_third():
    config, task = small(algorithm="local", rounds=9)
    configs = [applied(config, {"lr": 0.01 * 1.5**place}).resolved() for place in range(7)]
    found = trials.train(configs, task, trials.rungs_of("halving", 9))
    assert trials.rungs_of("halving", 9) == [1, 3, 9]
    assert sorted(len(each.curve) for each in found) == [1, 1, 1, 1, 2, 2, 3]
    first = sorted((each.curve[1] for each in found), reverse=True)
    assert {each.curve[1] for each in found if 3 in each.curve} <= set(first[:3])
    whole = max(found, key=lambda each: each.gradients)
    assert sum(each.gradients for each in found) == pytest.approx(whole.gradients * (4 * 1 + 2 * 3 + 9) / 9)
    last = found.index(whole)
    worst = min((place for place in range(7) if place != last), key=lambda place: found[place].curve[1])
    again = trials.train(configs, task, trials.rungs_of("halving", 9), protected=[worst])
    assert sorted(len(each.curve) for each in again) == [1, 1, 1, 1, 2, 3, 3]
    assert again[worst].curve.keys() == {1, 3, 9}
    assert not again[worst].stopped


def study(folder, **options):
    folder.mkdir(exist_ok=True)
    space = Dimension("lr", Tunable(0.01, 1, log=True), False, 0.1), Dimension("k", Tunable(1, 5), True, None)
    return Study(folder, space, **{"sampler": "tpe", "trials": 12, "seed": 3, **options})


def told(trial):
    """A score that is best at lr = 0.3 and k = 4."""
    score = 90 - 30 * abs(math.log10(trial.values.get("lr", 0.1) / 0.3)) - abs(trial.values.get("k", 1) - 4)
    return Trial(trial.number, trial.values, Outcome({1: score}, 10.0))


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid", "halving"])
def test_trials_are_the_same_whether_or_not_a_search_was_interrupted(sampler, tmp_path):
    whole = study(tmp_path / "a", sampler=sampler)
    for _ in range(3):
        whole.tell([told(each) for each in whole.batch(4)])
    assert whole.finished()[0].values == {"lr": 0.1}  # the defaults, where they are in the range
    broken = study(_twin(tmp_path), sampler=sampler)
    broken.tell([told(each) for each in broken.batch(4)])
    broken.batch(2)  # killed while a batch was asked for
    again = study(_twin(tmp_path), sampler=sampler)
    again.tell([told(each) for each in again.batch(4)])
    last = again.batch(4)
    again._study.set_user_attr(
        "outcomes", {**again._done(), **{str(each.number): vars(told(each).outcome) for each in last}}
    )
    again = study(_twin(tmp_path), sampler=sampler)  # killed after the outcomes were kept, before Optuna was told
    again.batch(0)
    assert [each.values for each in again.finished()] == [each.values for each in whole.finished()]
    assert again.importance() == whole.importance()


def _twin(tmp_path):
    """A folder of the same name: the name of a study is a part of its seed."""
    (tmp_path / "twin").mkdir(exist_ok=True)
    return tmp_path / "twin" / "a"


def test_a_budget_of_gradients_is_spent_and_not_exceeded(tmp_path):
    config, task = small(algorithm="local")
    alone = trials.train([config], task, [2])[0].gradients
    found = run_search(Search(config, tmp_path / "local", Budget(trials=None, gradients=5.5 * alone, batch=2)), task)
    assert len(found["trials"]) == 5
    assert sum(each["gradients"] for each in found["trials"]) <= 5.5 * alone


def test_gradients_are_those_that_methods_compute():
    """FedDWA looks ahead, which costs a second pass; epochs count."""
    (local, task), (ahead, _) = small(algorithm="local"), small(algorithm="feddwa")
    samples = sum(len(own) for own in task.partition.train)
    held = int(make_engine(local, task).data.splits[HELD_OUT].sizes.sum())
    assert trials.train([local], task, [2])[0].gradients == pytest.approx(2 * (samples - held))
    assert trials.train([ahead], task, [2])[0].gradients == pytest.approx(4 * (samples - held))


def test_a_tuning_states_validation_and_test_and_its_winner_can_be_run(tmp_path, capsys):
    out = tmp_path / "tuned"
    words = ["tune", "--algorithms", "fedprox", "local", "--trials", "3", *SMALL[:-1], "--out", str(out)]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert "FedProx" in table
    page = (out / "search.html").read_text()
    assert "Validation: of the search" in page
    assert page.count("<svg") == 3
    best = tomllib.loads((out / "fedprox" / BEST).read_text())
    found = json.loads((out / "fedprox" / FOUND).read_text())
    assert best["lr"] == found["best"]["values"]["lr"]
    assert best["validation"] == 0.0
    assert (
        main(["run", "--config", str(out / "fedprox" / BEST), "--seed", "0", "--out", str(tmp_path / "run"), "--quiet"])
        == 0
    )
    one, other = (
        json.loads((path / "record.json").read_text())
        for path in (tmp_path / "run", out / "fedprox" / "tuned" / "seed-0")
    )
    np.testing.assert_allclose(one["series"]["before.all"], other["series"]["before.all"], atol=0.5)
    both = tmp_path / "both"
    tuned = ["compare", "--algorithms", "fedprox", "local", "--tuned", str(out), "--seed", "0", "--clients", "4"]
    assert main([*tuned, "--rounds", "2", "--out", str(both), "--quiet"]) == 0
    compared = tomllib.loads((both / "fedprox" / "config.toml").read_text())
    assert (compared["lr"], compared["param"]) == (best["lr"], best["param"])
    assert main([*tuned[:2], "feddwa", *tuned[4:], "--out", str(tmp_path / "no")]) == 2
    assert "has no finished search of feddwa" in capsys.readouterr().err
    assert main(words) == 0  # all of it is there
    assert main(["resume", str(out)]) == 0
    assert main([*words, "--seed", "7"]) == 2
    assert "must be 1000" in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_that_is_killed_resumes_and_ends_with_the_same_best_trial(tmp_path):
    command = [
        sys.executable,
        "-m",
        "feddwa",
        "tune",
        "--algorithms",
        "fedprox",
        "--trials",
        "9",
        "--batch",
        "3",
        *SMALL,
    ]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    database = tmp_path / "killed" / "fedprox" / "trials.db"
    process = subprocess.Popen([*command, "--jobs", "2", "--out", str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
    while not (database.exists() and b"outcomes" in database.read_bytes()):
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "fedprox" / FOUND).exists()
    subprocess.run(
        [sys.executable, "-m", "feddwa", "resume", str(tmp_path / "killed")], check=True, capture_output=True
    )
    whole, killed = (json.loads((tmp_path / name / "fedprox" / FOUND).read_text()) for name in ("whole", "killed"))
    assert killed["best"] == whole["best"]
    assert killed["trials"] == whole["trials"]
