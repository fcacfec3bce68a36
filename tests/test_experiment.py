"""The Python entry point `feddwa.run`: the demo's result, the same seed, own data and models."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feddwa
from feddwa import FedDWA, InputError
from feddwa.algorithms import ALGORITHMS
from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.data.own.clients import from_arrays
from feddwa.experiment import run_task, run_tasks
from tests.data.conftest import REAL_DATA

SMALL = {"clients": 6, "rounds": 3, "param": ("groups=2",)}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDWA_DATA", raising=False)


def timeless(path) -> str:
    """metrics.jsonl without its times, the bytes otherwise untouched."""
    lines = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    return "".join(json.dumps({k: v for k, v in line.items() if k != "seconds"}) + "\n" for line in lines)


# The demo.


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return {name: feddwa.run(algorithm=name, out=str(folder / name)) for name in ("feddwa", "local", "fedavg")}


def test_personalisation_pays_on_turned_digits(demo):
    last = {name: result.summary["accuracy"]["last"] for name, result in demo.items()}
    assert last["feddwa"] > 90
    assert last["feddwa"] > last["local"] + 5 > last["fedavg"] + 5


def test_all_partners_are_inside_the_own_group(demo):
    groups = demo["feddwa"].partition.groups
    foreign = groups[:, None] != groups
    for _, cohort, weights in demo["feddwa"].weights[-5:]:
        assert np.array_equal(cohort, np.arange(20))
        assert not weights[foreign].any()
        assert ((weights > 0).sum(1) == 5).all()


def test_the_demo_takes_seconds(demo):
    assert sum(result.summary["seconds"] for result in demo.values()) < 60


def test_local_sends_nothing_and_fedavg_two_models(demo):
    traffic = {
        name: (result.summary["bytes_down_per_client_round"], result.summary["bytes_up_per_client_round"])
        for name, result in demo.items()
    }
    assert traffic == {"local": (0, 0), "fedavg": (19240, 19240), "feddwa": (19240, 38480)}


# The same seed, the same run.


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes():
    for out, seed in (("a", 5), ("b", 5), ("c", 6)):
        feddwa.run(out=out, seed=seed, participation=0.5, model="digits-cnn", **SMALL)
    assert timeless("a") == timeless("b") != timeless("c")
    for file in ("clients.jsonl", "weights.safetensors", "config.toml"):
        assert Path("a", file).read_bytes() == Path("b", file).read_bytes()


@pytest.mark.slow
def test_another_process_gives_the_same_bytes():
    feddwa.run(out="here", **SMALL)
    command = [sys.executable, "-m", "feddwa", "run", "--clients", "6", "--rounds", "3", "--param", "groups=2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(feddwa.__file__).parents[1])}
    subprocess.run([*command, "--out", "there"], check=True, capture_output=True, timeout=120, env=environment)
    assert timeless("here") == timeless("there")


def test_the_written_configuration_makes_the_run_again():
    first = feddwa.run(out="first", seed=2, participation=0.5, algorithm="fedavg", lr=0.05, **SMALL)
    again = feddwa.run(from_toml("first/config.toml", feddwa.RunConfig), out="again")
    assert timeless("first") == timeless("again")
    assert Path("first/config.toml").read_text() == Path("again/config.toml").read_text()
    assert first.summary["accuracy"] == again.summary["accuracy"]


@pytest.mark.parametrize("other", [{"backend": "sequential"}, {"chunk": 2}, {"dtype": "float64"}])
def test_backend_and_chunk_change_nothing_but_rounding(other):
    reference = feddwa.run(out="a", participation=0.7, **SMALL)
    result = feddwa.run(out="b", participation=0.7, **SMALL, **other)
    for one, two in zip(reference.metrics, result.metrics, strict=True):
        assert one["before"] == pytest.approx(two["before"], abs=1.5)  # one of 60 test samples may turn
        assert one["loss_before"] == pytest.approx(two["loss_before"], abs=2e-4)
        assert one.get("flops") == two.get("flops")
    for (_, cohort, weights), (_, other_cohort, other_weights) in zip(reference.weights, result.weights, strict=True):
        assert np.array_equal(cohort, other_cohort)
        assert np.allclose(weights, other_weights, rtol=1e-3)


# run().


def test_a_run_does_not_depend_on_the_runs_before_it_on_its_data():
    """They share programs; each has its own module, which the run before has left in evaluation mode."""
    options = {**SMALL, "model": "tests.conftest:conv_net", "batch_size": 17}
    configs = [RunConfig(algorithm=name, out=name, **options).resolved() for name in ("local", "fedavg")]
    task = load_task(configs[0])
    for config in configs:
        after = run_task(config, task)
    alone = run_task(dataclasses.replace(configs[1], out="alone"), load_task(configs[1]))
    assert timeless("fedavg") == timeless("alone")
    assert all(torch.equal(value, alone.models[name]) for name, value in after.models.items())


def test_seeds_trained_as_one_stack_are_the_runs_one_by_one():
    configs = [RunConfig(clients=4, rounds=3, seed=seed, out=f"stack-{seed}").resolved() for seed in range(3)]
    tasks = [load_task(config) for config in configs]
    for config, found in zip(configs, run_tasks(configs, tasks), strict=True):
        alone = feddwa.run(config, out=f"alone-{config.seed}")
        assert found.summary["lockstep"] == 3
        for mine, theirs in zip(found.metrics, alone.metrics, strict=True):
            assert mine["before"] == pytest.approx(theirs["before"])
        for name, value in found.models.items():
            torch.testing.assert_close(value, alone.models[name], rtol=1e-5, atol=1e-6)
        assert sorted(os.listdir(f"stack-{config.seed}")) == sorted(os.listdir(f"alone-{config.seed}"))


def test_a_stack_is_found_again_for_its_own_samples_only(monkeypatch):
    """Rotated samples of one task beside those of two others: an address that is given again must not matter."""
    monkeypatch.setattr("feddwa.experiment.id", lambda value: 7, raising=False)
    options = {"clients": 4, "rounds": 2, "algorithm": "fedavg"}
    configs = [RunConfig(seed=seed, **options).resolved() for seed in range(3)]
    tasks = [load_task(config) for config in configs]
    for other in (1, 2):
        pair = [dataclasses.replace(configs[seed], out=f"stack-{other}-{seed}") for seed in (0, other)]
        found = run_tasks(pair, [tasks[0], tasks[other]])[1]
        alone = feddwa.run(configs[other], out=f"alone-{other}")
        for name, value in found.models.items():
            torch.testing.assert_close(value, alone.models[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name, kind in ALGORITHMS.items() if kind.stackable])
def test_hyper_parameters_that_training_costs_nothing_are_one_stack(algorithm):
    values = {"top_k": 2, "granularity": "model", "power": 1.0, "average": 0.5, "prior": 20.0, "freeze": 1}
    values |= {"alpha": 0.1, "since": "round"}
    params = [f"{algorithm}.{name}={values[name]}" for name in ALGORITHMS[algorithm].stackable]
    shared = {"algorithm": algorithm, "clients": 4, "rounds": 3, "partition": "dirichlet"}
    configs = [RunConfig(**shared, param=(value,), out=f"stack-{value}").resolved() for value in params]
    task = load_task(configs[0])
    for config, found in zip(configs, run_tasks(configs, [task] * len(configs)), strict=True):
        alone = feddwa.run(config, out=f"alone-{config.out}")
        for name, value in found.models.items():
            torch.testing.assert_close(value, alone.models[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_seeds_that_were_interrupted_go_on_as_one_stack():
    """Even where they stopped at different rounds, and one had not begun."""
    options = {"clients": 4, "rounds": 5, "checkpoint_every": 1}
    configs = [RunConfig(seed=seed, out=f"stack-{seed}", **options).resolved() for seed in range(3)]
    tasks = [load_task(config) for config in configs]

    def stop_after(round):
        def observe(line):
            if line["round"] == round:
                raise InterruptedError

        return observe

    for config, task, last in zip(configs[:2], tasks, (2, 3), strict=False):
        with pytest.raises(InterruptedError):
            run_task(config, task, stop_after(last))
    results = run_tasks(configs, tasks, begun=configs[:2])
    for config, found in zip(configs, results, strict=True):
        alone = feddwa.run(config, out=f"alone-{config.seed}")
        assert len(found.metrics) == len(alone.metrics) == 6
        for name, value in found.models.items():
            torch.testing.assert_close(value, alone.models[name], rtol=1e-5, atol=1e-6)


def test_options_over_a_configuration():
    config = feddwa.RunConfig(clients=4, rounds=9, algorithm="local")
    result = feddwa.run(config, rounds=1, out="run")
    assert (result.summary["rounds"], result.summary["clients"], result.summary["algorithm"]) == (1, 4, "local")


def test_every_round_is_shown():
    seen = []
    result = feddwa.run(observe=seen.append, out="run", **SMALL)
    assert seen == result.metrics


def test_personalised_models_come_back():
    result = feddwa.run(out="run", model="digits-mlp", **SMALL)
    assert result.models["head.weight"].shape == (6, 10, 64)
    assert result.buffers == {}


def test_unknown_options_list_the_known():
    with pytest.raises(InputError, match="run: unknown name 'round'; valid: label, client"):
        feddwa.run(round=3)


def test_refused_requests_leave_nothing_behind():
    requests = [
        {"dataset": "nothing"},
        {"model": "cifar-cnn"},
        {"clients": 2000},
        {"partition": "pathological", "param": ("variant=classes", "classes_per_client=11")},
        {"partition": "natural"},
        {"device": "cuda"} if not torch.cuda.is_available() else {"device": "tpu"},
    ]
    for request in requests:
        with pytest.raises(InputError):
            feddwa.run(out="deep/run", rounds=1, **request)
    assert list(Path().iterdir()) == []


# Clients of their own.


@pytest.fixture
def clinics(rng):
    labels = rng.integers(0, 2, 90)
    values = rng.normal(size=(90, 2)) + labels[:, None]
    rows = (f"{a:.3f},{b:.3f},{label},{i % 3}" for i, ((a, b), label) in enumerate(zip(values, labels, strict=True)))
    Path("clinics.csv").write_text("\n".join(["a,b,label,client", *rows]) + "\n")
    return {"dataset": "clinics.csv", "partition": "natural", "model": "linear", "rounds": 2}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_a_natural_partition_takes_the_datas_clients(clinics):
    result = feddwa.run(out="run", **clinics)
    assert result.summary["clients"] == 3
    assert "clients = 3\n" in Path("run/config.toml").read_text()
    feddwa.run(from_toml("run/config.toml", feddwa.RunConfig), out="again")
    assert timeless("run") == timeless("again")
    assert feddwa.run(out="two", clients=2, **clinics).summary["clients"] == 2
    assert "-clinics.csv" in feddwa.run(**clinics).path


def test_a_share_of_natural_clients_is_checked_when_they_are_known(clinics):
    with pytest.raises(InputError, match=r"--participation: got 0\.2, must be at least 1/3"):
        feddwa.run(out="run", participation=0.2, **clinics)
    assert not Path("run").exists()


# Own objects, nothing written.


def classified(rng, clients=4, size=30, shape=(6,), classes=3):
    """Clients whose samples lie around a point per class."""
    centres = rng.normal(size=(classes, *shape)) * 3
    labels = [rng.permutation(np.arange(size) % classes) for _ in range(clients)]
    return [((centres[y] + rng.normal(size=(size, *shape))).astype(np.float32), y) for y in labels]


def test_tables(rng):
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    start = {name: value.clone() for name, value in model.named_parameters()}
    result = feddwa.run(
        model=model, dataset=classified(rng), algorithm="feddwa", rounds=5, lr=0.1, batch_size=10, out=False
    )
    assert result.summary["accuracy"]["last"] > 80
    assert result.path is None
    assert list(Path().iterdir()) == []
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())  # the user's model is kept
    own = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    own.load_state_dict({name: value[2] for name, value in result.models.items()})


def test_images_with_batch_norm_and_dropout_as_tensors(rng):
    clients = [(torch.from_numpy(x.clip(-3, 3)), torch.from_numpy(y)) for x, y in classified(rng, shape=(1, 6, 6))]
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(64, 3)
    )
    result = feddwa.run(
        model=model, dataset=clients, algorithm=FedDWA(top_k=2), rounds=4, lr=0.1, batch_size=8, out=False
    )
    assert result.summary["accuracy"]["last"] > 70
    assert result.buffers["1.running_mean"].shape == (4, 4)
    assert [(weights > 0).sum(1).max() for _, _, weights in result.weights] == [2] * 4


def test_pixels_are_scaled(rng):
    clients = [(rng.integers(0, 256, (10, 2, 2), dtype=np.uint8), np.arange(10) % 2) for _ in range(2)]
    seen = []

    class Peek(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            if not torch._C._functorch.is_batchedtensor(x):
                seen.append(float(x.max()))
            return self.last(x.flatten(1))

    feddwa.run(model=Peek(), dataset=clients, rounds=1, out=False)
    assert 0 < max(seen) <= 1


def test_token_ids_through_an_embedding(rng):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(20, 8)
            self.last = nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.words(x).mean(1))

    labels = [np.arange(40) % 2 for _ in range(3)]
    clients = [(rng.integers(0, 10, (40, 5)) + 10 * y[:, None], y) for y in labels]  # each class has its own words
    result = feddwa.run(model=Bag(), dataset=clients, rounds=5, lr=1.0, batch_size=10, out=False)
    assert result.summary["accuracy"]["last"] > 90


@pytest.mark.parametrize("algorithm", ["feddwa", "fedavg", "local"])
def test_regression_with_the_users_loss(rng, algorithm):
    slope = rng.normal(size=5)
    xs = [rng.normal(size=(40, 5)) for _ in range(3)]
    seen = []
    model = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
    result = feddwa.run(
        model=model, dataset=[(x, x @ slope) for x in xs], algorithm=algorithm, rounds=5, lr=0.1, batch_size=10,
        loss=F.mse_loss, observe=seen.append, out=False,
    )  # fmt: skip
    accuracy, loss = result.summary["accuracy"], result.summary["loss"]
    assert accuracy["best"] is accuracy["last"] is None
    assert loss["last"] < 0.1 * result.metrics[0]["loss_before"]
    assert loss["best"] <= loss["last"]
    json.dumps([result.summary, result.metrics], allow_nan=False)
    assert seen == result.metrics


def test_own_test_data_are_used(rng):
    x, y = classified(rng, clients=1)[0]
    wrong = (y + 1) % 3  # a test that a good model must fail
    model = nn.Linear(6, 3)
    right = feddwa.run(model=model, dataset=[(x, y, x, y)] * 2, rounds=10, lr=0.1, out=False)
    fooled = feddwa.run(model=model, dataset=[(x, y, x, wrong)] * 2, rounds=10, lr=0.1, out=False)
    assert right.summary["accuracy"]["last"] > 90 > 20 > fooled.summary["accuracy"]["last"]


def test_the_held_out_fifth_has_every_class():
    """Labels that come in a cycle of five: every fifth sample would be one class only."""
    y = np.arange(50) % 5
    clients = [(np.eye(5, dtype=np.float32)[y], y)] * 2
    dataset = from_arrays(clients)
    assert np.bincount(dataset.client[: dataset.train_count]).tolist() == [40, 40]
    for client in (0, 1):
        held_out = dataset.y[dataset.train_count :][dataset.client[dataset.train_count :] == client]
        assert sorted(held_out) == sorted([0, 1, 2, 3, 4] * 2)


def test_clients_of_different_sizes_and_partial_participation(rng):
    clients = [(x[:size], y[:size]) for (x, y), size in zip(classified(rng, 5), (2, 9, 17, 30, 5), strict=True)]
    result = feddwa.run(model=nn.Linear(6, 3), dataset=clients, rounds=3, participation=0.4, seed=4, out=False)
    assert [len(rows) for rows in result.partition.train] == [1, 7, 14, 24, 4]
    assert all(len(cohort) == 2 for _, cohort, _ in result.weights)
    assert result.summary["seed"] == 4


def test_an_iterator_of_clients_and_an_own_algorithm(rng):
    class Selfish(FedDWA):
        def server(self, server, cohort, upload):
            new, info = super().server(server, cohort, upload)
            return new, {"weights": info["weights"]}

    result = feddwa.run(
        model=nn.Linear(6, 3), dataset=iter(classified(rng)), algorithm=Selfish(top_k=1), rounds=2, out=False
    )
    assert result.summary["algorithm"] == "Selfish"
    assert all(np.array_equal(np.sort(weights, axis=1), np.eye(4)[[3] * 4]) for _, _, weights in result.weights)


def test_double_precision_follows_the_model(rng):
    result = feddwa.run(model=nn.Linear(6, 3).double(), dataset=classified(rng), rounds=1, out=False)
    assert result.models["weight"].dtype == torch.float64


X, Y = np.zeros((6, 4), dtype=np.float32), np.arange(6) % 2
GOOD = [(X, Y), (X, Y)]


@pytest.mark.parametrize(
    ("model", "clients", "options", "message"),
    [
        (nn.Linear(4, 2), [], {}, "clients: got 0, must be a list with at least one"),
        (nn.Linear(4, 2), [(X, Y), (X,)], {}, r"clients\[1\]: got 'tuple of 1', must be \(x, y\) or \(x, y, x_test, "),
        (nn.Linear(4, 2), [3], {}, r"clients\[0\]: got 'int', must be \(x, y\)"),
        (nn.Linear(4, 2), [(X, Y[:5])], {}, r"clients\[0\]: got \[6, 5\], must be as many targets as samples"),
        (nn.Linear(4, 2), [(X[:1], Y[:1])], {}, r"clients\[0\]: got 1, must be at least 2 samples"),
        (nn.Linear(4, 2), [(X, Y, X[:0], Y[:0])], {}, r"clients\[0\]: .* at least one sample to train and one to test"),
        (nn.Linear(4, 2), [(X, Y), (X[:, :3], Y)], {}, "clients: .* must be samples of one shape"),
        (nn.Linear(4, 2), [(X, Y), (X, Y[:, None])], {}, "clients: .* must be targets of one shape"),
        (nn.Linear(4, 2), [(X * np.nan, Y)], {}, r"clients\[0\]: got 'NaN or infinity', must be finite"),
        (nn.Linear(4, 2), [(list("ababab"), Y)], {}, r"clients\[0\]: got '<U1 \(6,\)', must be arrays of numbers"),
        (nn.Linear(4, 2), [(X, Y), (X, list("ababab"))], {}, "got 'int64 and <U1', must be targets of one type"),
        (nn.Linear(4, 2), [(1.0, 2.0)], {}, r"clients\[0\]: .* arrays of numbers with a sample axis"),
        (nn.Linear(4, 2), [(X, Y - 1)], {}, r"clients\[0\]: got 'labels from -1', must be labels from 0"),
        (nn.Linear(5, 2), GOOD, {}, r"model: does not take torch.float32 samples \(4,\): mat1 and mat2"),
        (nn.Linear(4, 1), GOOD, {}, "model: gives 1 scores, must be at least 2, one per class"),
        (nn.Linear(4, 1), GOOD, {"loss": F.binary_cross_entropy}, r"loss: does not take outputs \(1, 1\)"),
        (nn.Linear(4, 2), GOOD, {"algorithm": "magic"}, "algorithm: unknown name 'magic'; valid: local"),
        (nn.Linear(4, 2), GOOD, {"rounds": 0}, "--rounds: got 0, must be at least 1"),
        (nn.Linear(4, 2), GOOD, {"participation": 0.3}, "--participation: got 0.3, must be at least 1/2"),
        (nn.Linear(4, 2), GOOD, {"lr": "fast"}, "--lr: got 'fast', must be a number"),
        (nn.Linear(4, 2), GOOD, {"batch_size": 0}, "--batch-size: got 0"),
        (nn.Linear(4, 2), GOOD, {"device": "tpu"}, "--device: unknown name 'tpu'"),
    ],
)  # fmt: skip
def test_bad_requests_say_what_is_wrong(model, clients, options, message):
    with pytest.raises(InputError, match=message) as refused:
        feddwa.run(model=model, dataset=clients, **{"rounds": 1, **options}, out=False)
    assert "\n" not in str(refused.value)


# Real data.


@pytest.mark.slow
@pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no real datasets at {REAL_DATA}; set FEDDWA_DATA to test on them")
def test_cifar_from_its_files(pytestconfig, monkeypatch):
    """Two clients in a hundred train a linear model, all are tested: the whole way at a fraction of the cost."""
    monkeypatch.setenv("FEDDWA_CACHE", str(pytestconfig.cache.mkdir("datasets")))
    monkeypatch.setenv("FEDDWA_DATA", str(REAL_DATA))
    result = feddwa.run(
        dataset="cifar10", partition="groups", clients=100, participation=0.02, rounds=1, model="linear", out="run"
    )
    assert result.summary["clients"] == 100
    assert {"groups.dominant_classes=3", "groups.variant=chunks"} <= set(
        from_toml("run/config.toml", feddwa.RunConfig).param
    )
