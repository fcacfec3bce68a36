"""benchmarks/field.py: data in other libraries' forms are ours, sample for sample, and our side runs."""

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from feddwa.data.federated import federate

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]  # a runner finds what it imports beside it

import field  # noqa: E402
from peers import clock, forms, meter, recipes, record, run_ours  # noqa: E402

del sys.path[:2]


@pytest.fixture
def task_of(monkeypatch):
    """The task of a recipe on random images, and what our networks are given of a client's samples."""
    monkeypatch.setenv(recipes.CHOSEN, "")

    def make(name):
        recipe = recipes.RECIPES[name].sized(recipes.MADE, None)
        task = recipes.load(name, recipes.MADE, recipe.config(3, "cpu", False, 0))
        data = federate(task.dataset, task.partition, torch.device("cpu"))

        def inputs(part, client):
            split = data.splits[part]
            batch = data.batch(split.index[client][: split.sizes[client]], torch.float32)
            return batch.x.numpy(), batch.y.numpy()

        return recipe, task, inputs

    return make


def test_pfllibs_files_hold_what_our_clients_train_on(task_of, tmp_path):
    recipe, task, inputs = task_of("pfllib")
    forms.write_pfllib(task, tmp_path)
    for part in ("train", "test"):
        files = sorted((tmp_path / "dataset" / forms.PFLLIB / part).iterdir())
        assert len(files) == recipe.clients
        for client in range(recipe.clients):
            with open(tmp_path / "dataset" / forms.PFLLIB / part / f"{client}.npz", "rb") as file:
                data = np.load(file, allow_pickle=True)["data"].tolist()  # as PFLlib reads it
            x, y = inputs(part, client)
            assert data["x"].dtype == np.float32
            np.testing.assert_allclose(data["x"], x, atol=1e-6)
            np.testing.assert_array_equal(data["y"], y)


def test_pfls_files_cut_into_equal_clients_and_normalised_are_what_our_clients_train_on(task_of, tmp_path):
    recipe, task, inputs = task_of("pfl-cifar10")
    forms.write_pfl(task, tmp_path)
    images, labels = pickle.loads((tmp_path / "cifar10_train.p").read_bytes())
    assert (images.dtype, images.shape[1:], labels.shape[1:]) == (np.uint8, (32, 32, 3), (1,))
    pixels = images.astype(np.float32)  # as its loader normalises
    pixels = (pixels - pixels.mean((0, 1, 2), dtype="float64")) / pixels.std((0, 1, 2), dtype="float64")
    each = task.dataset.train_count // recipe.clients
    for client in range(recipe.clients):
        x, y = inputs("train", client)
        np.testing.assert_allclose(pixels[client * each :][:each].transpose(0, 3, 1, 2), x, atol=1e-5)
        np.testing.assert_array_equal(labels[client * each :][:each, 0], y)
    test = pickle.loads((tmp_path / "cifar10_test.p").read_bytes())[0]
    assert len(test) == sum(map(len, task.partition.test))


def test_arrays_hold_every_clients_samples(task_of, tmp_path):
    recipe, task, inputs = task_of("blazefl")
    forms.write_arrays(task, tmp_path)
    x, y, rows = np.load(tmp_path / "x.npy"), np.load(tmp_path / "y.npy"), np.load(tmp_path / "rows.npz")
    for client in range(recipe.clients):
        own = rows[f"train_{client}"]
        expected = inputs("train", client)
        np.testing.assert_allclose((x[own] / 255 - 0.5) / 0.5, expected[0], atol=1e-6)
        np.testing.assert_array_equal(y[own], expected[1])
    assert sorted(rows["test"]) == sorted(np.concatenate(task.partition.test))


def test_the_work_of_a_round_is_that_of_a_plain_count(task_of):
    recipe, task, _ = task_of("pfllib")
    sizes = [len(rows) for rows in task.partition.train]
    assert recipes.work(recipe, task) == (sum(size // 10 for size in sizes), sum(size // 10 * 10 for size in sizes))
    recipe, task, _ = task_of("blazefl")  # 240 samples each, batches of 50, short ones kept, 5 epochs
    assert recipes.work(recipe, task) == (5 * 5 * 5, 5 * 5 * 240)


def test_short_batches_count_as_steps_of_ours():
    flops = 7.0 * torch.tensor([240.0, 200.0, 10.0]) * 5  # of clients with so many samples, in 5 epochs
    assert run_ours.steps_in(flops, 7.0, width=50, epochs=5) == (5 + 4 + 1) * 5


def test_recipes_are_as_large_as_published():
    network = recipes.TutorialCNN()
    assert sum(value.numel() for value in network.parameters()) == 62_006
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    half = recipes.RECIPES["pfl-cifar10"].sized("0.5", None)
    assert (half.clients, half.per_round) == (500, 50)
    assert recipes.RECIPES["pfllib"].sized("0.5", None).clients == 20
    assert recipes.RECIPES["pfl-cifar10"].sized("1", 30).per_round == 30


def test_the_clock_counts_local_steps_and_takes_evaluation_off(monkeypatch, tmp_path):
    monkeypatch.setenv(clock.START, str(time.time()))
    value = torch.zeros(1, requires_grad=True)
    local, server = torch.optim.SGD([value], 0.1), torch.optim.SGD([value], 1.0)
    watch = clock.Clock(skip=lambda optimizer: optimizer is server)
    for steps in (2, 3):
        watch.begin()
        for _ in range(steps):
            local.step()
        server.step()
        with watch.evaluation():
            time.sleep(0.2)
        watch.end()
    watch.write(tmp_path, 12.5, ["torch", "no-such-package"])
    found = json.loads((tmp_path / clock.RESULT).read_text())
    assert (found["steps"], found["accuracy"]) == ([2, 3], 12.5)
    assert max(found["rounds"]) < 0.2 <= min(found["evaluations"])
    assert "no-such-package" not in found["versions"]


def test_a_missing_package_can_be_imported_from_but_not_used():
    assert clock.replace_missing(["json", "no_such_package", "no_such_package.inner"]) == [
        "no_such_package",
        "no_such_package.inner",
    ]
    from no_such_package.inner import function

    with pytest.raises(ImportError, match=r"no_such_package\.inner is not installed"):
        function()


@pytest.mark.parametrize("counted", [[10.0, 10.0], [10.0, 10.0, 11.0]], ids=["too few rounds", "too many steps"])
def test_other_work_than_the_tasks_stops_the_benchmark(counted):
    job = field.Job("pfl", 1, None, {"name": "pfl-cifar10", "rounds": 3}, 10.0, 100.0)
    field.check_steps(job, [10.0, 10.0, 10.0 + 1e-7])
    with pytest.raises(SystemExit, match=r"pfl on pfl-cifar10: .* not 3 rounds of 10"):
        field.check_steps(job, counted)


def run(*words, folder):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "field.py"), *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pfl"], "no task pfl; valid: pfllib, pfl-cifar10, blazefl"),
        (["pfllib", "--rounds", "2"], "--rounds 2: the first 2 do not count; take at least 3"),
        (["pfllib", "--pfllib", "."], "--pfllib .: has no folder system"),
        ([], "name a task"),
    ],
)
def test_wrong_words_are_refused(words, told, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["field.py", *words])
    with pytest.raises(SystemExit):
        field.parse()
    assert told in capsys.readouterr().err


def test_our_side_runs_and_is_recorded(tmp_path):
    done = run("pfllib", "--quick", "--threads", "1", "--device", "cpu", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    case = json.loads((tmp_path / "field.jsonl").read_text())
    assert (case["library"], case["rounds"], case["clients"], case["steps"]) == ("ours", 3, 5, 106)
    assert case["steps_per_second"] == pytest.approx(106 / case["seconds"])
    assert case["host_mib"] > 100
    assert case["setup"] + 3 * case["fastest"] < case["total"]
    assert record.table([case]) in done.stdout


def test_a_benchmark_that_is_ended_ends_what_it_runs(tmp_path):
    words = ["pfllib", "--quick", "--device", "cpu", "--rounds", "1000"]
    with subprocess.Popen([sys.executable, str(BENCHMARKS / "field.py"), *words], cwd=tmp_path) as process:
        while len(pids := list(meter.tree(process.pid))) < 2:
            time.sleep(0.1)
        process.terminate()
        assert process.wait(60) == 143
    assert not Path("/proc", str(pids[1]), "exe").exists()


@pytest.mark.parametrize("library", ["ours", "pfllib", "pfl", "blazefl", "flower"])
def test_every_library_has_a_runner_that_is_told_its_copy(library, tmp_path):
    (tmp_path / "commit.txt").write_text("abc\n")
    copies = dict.fromkeys(field.FOLDERS, tmp_path)
    options = field.argparse.Namespace(flower=True, **copies)
    job = field.Job(library, 3, options, {}, 1.0, 1.0)
    copied = library in copies
    assert job.commit == ("abc" if copied else None)
    runner, folder, *rest = job.command(Path("work"))[1:]
    assert Path(runner).is_file()
    inside = [str(tmp_path / field.FOLDERS[library])] if copied else []
    assert (folder, rest) == ("work", [*inside, *(["3"] if library in ("blazefl", "flower") else [])])
    assert library in forms.WRITERS
