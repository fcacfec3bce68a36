"""Cells are run once, stored under stable names, and go on where they stopped; at smoke scale, on digits."""

import dataclasses
import json
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from feddwa.algorithms import FedDWA
from feddwa.build import make_engine
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.results.collaboration import partner_share, rank_matrix, top_partners
from feddwa.results.content import cell_name
from feddwa.results.store import Store
from feddwa_reproduction import run, specs
from feddwa_reproduction.cells import Cell, _stacks
from feddwa_reproduction.grid import Row
from feddwa_reproduction.reproduce import plan, reproduce
from feddwa_reproduction.summary import partner_series
from tests.algorithms.conftest import federation
from tests.conftest import NETWORKS, small_data

TRAINED = [name for name, each in specs.paper().items() if each.trains]
QUIET = {"scale": "smoke", "tell": lambda text: None}


def published(folder):
    """(cell, seed) -> the line of a store's file of digits; nothing is left beside it."""
    file = folder / "digits.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(line["cell"], line["seed"]): line for line in lines}


def untimed(line):
    return {**line, "costs": {**line["costs"], "seconds": 0, "jobs": 0}}


def left_over(folder):
    return [path.name for path in (folder / ".work").glob("*") if path.name != "lock"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two columns, three methods of Table 1 at smoke scale."""
    folder = tmp_path_factory.mktemp("results")
    chosen = {"columns": ["cifar10/pathological", "cifar10/practical1"], "methods": ["feddwa", "local", "fedavg"]}
    progress = reproduce("table1", **chosen, results=folder, seeds=2, **QUIET)
    return folder, chosen, progress


def test_a_result_says_everything(done):
    folder, _, progress = done
    assert (progress.found, progress.made, progress.left, progress.failed) == (0, 12, 0, [])
    lines = published(folder)
    assert len(lines) == 12
    assert list(lines) == sorted(lines)
    assert left_over(folder) == []
    for line in lines.values():
        assert len(json.dumps(line)) < 30_000
        config, costs, series = line["config"], line["costs"], line["series"]
        assert (config["dataset"], config["dtype"], costs["jobs"]) == ("digits", "float32", 1)
        assert line["made"].keys() == {"commit", "dirty", "hardware", "versions"}
        assert line["made"]["versions"]["torch"] == torch.__version__
        assert costs["seconds"] > 0
        rounds, clients = config["rounds"], config["clients"]
        assert {name: len(values) for name, values in series.items()} == {
            "before.all": rounds + 1, "before.participants_weighted": rounds, "after.participants_weighted": rounds
        }  # fmt: skip
        assert len(line["clients"]) == clients
        assert np.mean(line["clients"]) == pytest.approx(series["before.all"][-1], abs=0.01)
        assert (costs["bytes_up"] > 0) == (config["algorithm"] != "local")
        assert ("in_group" in line) == (config["partition"] == "groups")
        kept = config["partition"] == "groups" and config["algorithm"] == "feddwa"  # figure-similarity needs it
        assert list(line.get("weights", {})) == (["1", "2"] if kept else [])


def test_finished_cells_are_not_run_again(done, monkeypatch):
    folder, chosen, _ = done
    monkeypatch.setattr(run, "run_stack", None)
    progress = reproduce("table1", **chosen, results=folder, seeds=2, **QUIET)
    assert (progress.found, progress.made) == (12, 0)


def test_a_half_done_table_goes_on(done, tmp_path):
    """The seed that is lost is run again and comes out the same, times aside; nothing else is touched."""
    folder, chosen, _ = done
    first, *rest = (folder / "digits.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "digits.jsonl").write_text("".join(rest))
    progress = reproduce("table1", **chosen, results=tmp_path, seeds=2, **QUIET)
    assert (progress.found, progress.made) == (11, 1)
    again, *others = (tmp_path / "digits.jsonl").read_text().splitlines(keepends=True)
    assert untimed(json.loads(again)) == untimed(json.loads(first))
    assert others == rest


def test_what_a_killed_command_has_finished_is_not_lost(done, tmp_path):
    """A result that was saved and not merged counts, and is in the file after the next command."""
    folder, chosen, _ = done
    lines = list(published(folder).values())
    store = Store(tmp_path)
    for line in lines:
        store.save(line)
    assert len(left_over(tmp_path)) == 12
    progress = reproduce("table1", **chosen, results=tmp_path, seeds=2, **QUIET)
    assert (progress.found, progress.made) == (12, 0)
    assert (tmp_path / "digits.jsonl").read_bytes() == (folder / "digits.jsonl").read_bytes()
    assert left_over(tmp_path) == []


def test_an_interrupted_cell_goes_on(done, tmp_path, monkeypatch):
    """Stopped in the second of two rounds, it goes on from the checkpoint after the first and ends the same."""
    folder, _, _ = done
    monkeypatch.setitem(run.CHECKPOINT_EVERY, "cpu", 1)
    trained, one = [], {"columns": ["cifar10/practical1"], "methods": ["feddwa"], "seeds": 1, "results": tmp_path}

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("table1", **one, **QUIET, watch=lambda what, rounds: nullcontext(stop))
    assert published(tmp_path) == {}
    assert left_over(tmp_path)
    progress = reproduce("table1", **one, **QUIET, watch=lambda what, rounds: nullcontext(trained.append))
    assert progress.made == 1
    assert left_over(tmp_path) == []
    ((key, again),) = published(tmp_path).items()
    assert untimed(again) == untimed(published(folder)[key])


def test_no_cell_is_begun_when_time_is_up(tmp_path):
    progress = reproduce("figure-k", results=tmp_path, time_limit=0.0, **QUIET)
    assert (progress.made, progress.left) == (0, 10)


@pytest.mark.slow
def test_several_cells_at_once_come_out_the_same(done, tmp_path):
    """In processes of their own; a line says how many were at work, and seconds are a share of the device."""
    folder, chosen, _ = done
    told = []
    progress = reproduce("table1", **chosen, results=tmp_path, seeds=2, scale="smoke", jobs=2, tell=told.append)
    assert (progress.made, progress.left, progress.failed) == (12, 0, [])
    assert len(told) == 12
    both = [published(where) for where in (folder, tmp_path)]
    assert [{line["costs"]["jobs"] for line in each.values()} for each in both] == [{1}, {2}]
    one, other = ({key: untimed(line) for key, line in each.items()} for each in both)
    assert one == other


@pytest.mark.slow
def test_a_process_that_is_killed_loses_no_cell_but_its_own(tmp_path):
    """The others are made by those that are left, and a second try makes the one that failed."""
    wanted = {"columns": ["cifar10/practical1"], "methods": ["local", "fedavg", "feddwa"], "seeds": 1}
    with ThreadPoolExecutor(1) as thread:
        attempt = thread.submit(reproduce, "table1", **wanted, results=tmp_path, **QUIET, jobs=2)
        while not (workers := multiprocessing.active_children()):
            time.sleep(0.01)
        workers[0].kill()
        progress = attempt.result(timeout=100)
    assert (progress.made, progress.left, len(progress.failed)) == (2, 1, 1)
    assert progress.failed[0].endswith("failed: its process died")
    assert reproduce("table1", **wanted, results=tmp_path, **QUIET).made == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="who is whose child is read from /proc")
def test_processes_end_with_the_one_that_started_them(tmp_path):
    """SIGKILL leaves nobody at work."""
    command = [sys.executable, "-m", "feddwa", "reproduce", "table1", "--columns", "cifar10/practical1"]
    command += ["--scale", "smoke", "--jobs", "2", "--results", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as main:
        children = Path(f"/proc/{main.pid}/task/{main.pid}/children")
        while len(workers := [pid for pid in children.read_text().split() if at_work(pid)]) < 2:
            time.sleep(0.01)
        main.kill()
    ends = time.monotonic() + 30
    while any(at_work(pid) for pid in workers) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not any(at_work(pid) for pid in workers)


def at_work(pid):
    """A process of a pool that runs."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()  # empty once it has ended
    except OSError:
        return False


@pytest.mark.slow
def test_cells_that_train_alike_are_one_stack(tmp_path, monkeypatch):
    """Values of K: the same results, to the digit, as one by one."""
    stacks, whole = [], run.run_stack
    monkeypatch.setattr(run, "run_stack", lambda configs, *rest: stacks.append(len(configs)) or whole(configs, *rest))
    reproduce("figure-k", results=tmp_path / "together", seeds=2, **QUIET)
    monkeypatch.setattr(Cell, "kind", property(lambda cell: cell.config))
    reproduce("figure-k", results=tmp_path / "apart", seeds=2, **QUIET)
    assert stacks == [20, *[2] * 10]
    both = [published(tmp_path / folder) for folder in ("together", "apart")]
    one, other = ({key: untimed(line) for key, line in each.items()} for each in both)
    assert one == other != {}


def test_what_costs_something_is_no_stack():
    def stacks(name):
        cells = plan(specs.experiment(name).select(seeds=1), Store(Path("nowhere")))
        return [[cell.name for cell in stack] for stack in _stacks(cells)]

    assert stacks("figure-k")[0] == [f"cifar10/practical2 feddwa top_k={k}" for k in range(1, 11)]
    for name in ("table1", "guidance-choice", "figure-guidance-epochs"):
        assert all(len(stack) == 1 for stack in stacks(name))


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), OSError(28, "No space left on device")])
def test_a_failing_cell_does_not_stop_the_others(error, tmp_path, monkeypatch):
    whole = run.run_stack

    def failing(configs, *rest):
        if configs[0].algorithm == "feddwa":
            raise error
        return whole(configs, *rest)

    monkeypatch.setattr(run, "run_stack", failing)
    methods = ["feddwa", "local"]
    progress = reproduce("table1", columns=["cifar10/practical1"], methods=methods, results=tmp_path, **QUIET)
    assert (progress.made, progress.left, len(progress.failed)) == (1, 1, 1)
    assert str(error) in progress.failed[0]


def test_columns_without_data_are_left_out_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDDWA_DATA", raising=False)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    told = []
    run.dataset.cache_clear()
    progress = reproduce("figure-similarity", results=tmp_path, tell=told.append)
    assert (progress.made, progress.left) == (0, 12)
    assert told[0].startswith("cifar10: not at hand")
    with pytest.raises(InputError, match="--dataset cifar10: not found"):
        reproduce("figure-similarity", columns=["cifar10/practical1"], results=tmp_path, tell=told.append)


def test_clusterfl_is_not_run_with_a_tolerance_of_another_task(tmp_path, monkeypatch):
    """With its default it would be FedAvg under another name, without a word."""
    monkeypatch.delenv("FEDDWA_DATA", raising=False)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    run.dataset.cache_clear()
    command, told = "`feddwa reproduce clusterfl-norms --columns cifar100/practical1`", []
    column = {"columns": ["cifar100/practical1"], "results": tmp_path, "tell": told.append}
    with pytest.raises(InputError, match="--methods clusterfl: cifar100/practical1 has no eps2") as refused:
        reproduce("table1", methods=["clusterfl"], **column)
    assert command in str(refused.value)
    with pytest.raises(InputError, match="--dataset cifar100: not found"):  # the other methods need the data
        reproduce("table1", **column)
    assert [text for text in told if command in text] == told[:1] != []
    for name in ("table1", "table2"):
        each = specs.experiment(name)
        left_out = {column.name for column, row in each.cells() if each.untuned(column, row)}
        assert left_out == {column.name for column in each.columns if not column.tuned}
        assert not any(cell.untuned for cell in plan(each, Store(tmp_path), "smoke"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINED if name not in ("table1", "curves")])
def test_every_experiment_runs_at_smoke_scale(name, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "smoke"  # shared: the cells are
    progress = reproduce(name, results=folder, **QUIET)
    assert progress.left == 0
    assert not progress.failed
    each = specs.experiment(name)
    assert not any(cell.missing for cell in plan(each.select(scale="smoke"), Store(folder), "smoke"))


def test_names_of_cells_are_stable():
    """A name that is published must not change, or its result is lost."""
    table1, table2 = specs.experiment("table1"), specs.experiment("table2")
    names = {
        cell_name(table.config(column, row))
        for table in (table1, table2)
        for column, row in table.cells()
        if column.dataset == "cifar10" and row.name in ("feddwa", "fedavg")
    }
    assert names == NAMES


NAMES = {
    "cifar10-pathological-20-feddwa-aea8142e",
    "cifar10-groups-20-feddwa-598f3e08",
    "cifar10-pathological-20-fedavg-51705fc8",
    "cifar10-groups-20-fedavg-f7427d43",
    "cifar10-dirichlet-100-feddwa-3d6d74a5",
    "cifar10-dirichlet-100-feddwa-f0f0c170",
    "cifar10-dirichlet-100-fedavg-22618892",
    "cifar10-dirichlet-100-fedavg-457e042c",
}


def test_names_tell_settings_apart_and_nothing_else():
    config = RunConfig(dataset="cifar10", partition="groups")
    other = [{"rounds": 3}, {"clients": 5}, {"participation": 0.5}, {"lr": 0.1}, {"param": ("top_k=3",)}]
    other += [{"batchnorm": "mean"}, {"param": ("groups.groups=2",)}, {"epochs": 2}, {"algorithm": "fedavg"}]
    names = {cell_name(dataclasses.replace(config, **each)) for each in other}
    assert len(names | {cell_name(config)}) == len(other) + 1
    same = [{"seed": 7}, {"device": "cpu"}, {"data_dir": "x"}, {"out": "y"}, {"param": ("top_k=5",)}, {"rounds": 100}]
    assert {cell_name(dataclasses.replace(config, **each)) for each in same} == {cell_name(config)}


def test_fedfomos_partners_are_told_by_shares_and_by_affinity(tmp_path):
    """Both from one run: P of every round, as the server reports it, among all clients and not just those fetched."""
    reproduce("figure-similarity", methods=["fedfomo", "feddwa"], results=tmp_path, **QUIET)
    each = specs.experiment("figure-similarity").select(methods=["fedfomo"])
    shares, affinity = each.rows
    assert (shares.by_affinity, affinity.by_affinity) == (False, True)
    config = each.config(each.columns[0], affinity, "smoke").resolved()
    assert config == each.config(each.columns[0], shares, "smoke").resolved()
    record = Store(tmp_path).find(config, 0)
    again = Federation(config.make_algorithm(), make_engine(config, run.task(config)))
    for number in range(1, config.rounds + 1):
        info = again.step().info
        by_hand = partner_share(info["affinity"].numpy(), record.groups)
        assert record.content["in_group"]["partners_by_affinity"][number - 1] == pytest.approx(by_hand, abs=1e-4)
        assert torch.equal(info["affinity"], again.server["record"]["affinity"])
        kept = rank_matrix(record.content["preferred"][str(number)])
        assert np.array_equal(top_partners(kept), top_partners(info["affinity"].numpy()))
    assert partner_series([record], affinity) == [record.content["in_group"]["partners_by_affinity"]]
    other = Store(tmp_path).find(each.config(each.columns[0], Row("feddwa"), "smoke"), 0)
    assert partner_series([other], affinity) == []  # a method without an affinity, or a result without it


def test_chance_is_what_the_page_says():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 5)
    shares = [partner_share(rng.random((20, 20)), groups) for _ in range(300)]
    assert np.mean(shares) == pytest.approx(0.368, abs=0.01)


def test_testing_guidance_models_changes_no_model():
    """The same personalised models, and other scores after training: those of the models that look ahead."""
    plain, shown = (
        federation(FedDWA(top_k=3, tested=tested), NETWORKS["conv"], small_data()) for tested in ("local", "guidance")
    )
    rounds = [(plain.step(), shown.step()) for _ in range(2)]
    for one, two in rounds:
        assert torch.equal(one.before.loss, two.before.loss)
        assert not torch.equal(one.after.loss, two.after.loss)
    assert all(torch.equal(value, shown.server["model"][name]) for name, value in plain.server["model"].items())
    with pytest.raises(InputError, match="--param tested"):
        FedDWA(guidance="last", tested="guidance")
