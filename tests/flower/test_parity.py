"""A federation over Flower's messages gives the models and the numbers of the simulator, for every algorithm."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from feddwa import models, run
from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.flower import server
from feddwa.flower.samples import text_of
from feddwa.flower.settings import FlowerConfig
from tests.conftest import ANYWHERE
from tests.flower.grid import LocalGrid, blocks
from tests.test_frozen import frozen_body

SAME = (
    "round", "before", "after", "loss_before", "loss_after", "participants", "bytes_up", "bytes_down", "flops",
    "server_flops", "evaluated", "validation", "validation_after", "loss_validation", "loss_validation_after",
    "metrics_before", "metrics_after", "metrics_validation",
)  # fmt: skip


def federated(folder, parts, keys=True, node=None, **options):
    """A run in `parts` blocks: its lines, its personalised models (N, *shape), and the grid."""
    if "dataset" in options:  # as `feddwa federate` says it, which has the data
        options["samples"] = text_of(load_task(FlowerConfig(**options).resolved()).dataset)
    config = FlowerConfig(**options, min_nodes=parts, out=str(folder / "federated")).resolved()
    grid = LocalGrid(config, blocks(parts, str(folder / "nodes"), **(node or {})), keys)
    server.run(grid, config, simulated=not keys)
    return lines_of(folder / "federated"), models_of(folder / "nodes"), grid


def lines_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def models_of(folder):
    files = sorted(folder.rglob("client-*.safetensors"), key=lambda file: file.name)
    each = [load_file(file) for file in files]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def same_lines(lines, reference, places=3):
    assert len(lines) == len(reference)
    for line, other in zip(lines, reference, strict=True):
        for key in other:
            if key in SAME:
                assert _known(line[key]) == pytest.approx(_known(other[key]), rel=1e-5, abs=10**-places), key


def _known(value):
    """A number or a mapping of numbers, None as -1: rounds without evaluation have none."""
    numbers = {name: -1 if each is None else each for name, each in value.items()} if isinstance(value, dict) else value
    return -1 if numbers is None else numbers


def same_models(models, reference, error=1e-5):
    assert models.keys() == reference.keys()
    for name, value in models.items():
        assert torch.allclose(value.double(), reference[name].double(), rtol=error, atol=error), name


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_every_algorithm_is_the_simulators(tmp_path, algorithm):
    options = {"algorithm": algorithm, "clients": 6, "rounds": 3, "participation": 0.5, "seed": 3, "batch_size": 40}
    lines, models, _ = federated(tmp_path, 3, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers})
    assert not any("missing" in line for line in lines)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrod"])
def test_evaluation_of_some_rounds_and_clients_is_the_simulators(tmp_path, algorithm):
    """FedRoD's messages to train with are others than those to evaluate with."""
    options = {"algorithm": algorithm, "clients": 4, "rounds": 4, "participation": 0.5, "validation": 0.2}
    options |= {"eval_every": 2, "eval_clients": 2, "batch_size": 40, "metrics": ("per-class",)}
    lines, models, _ = federated(tmp_path, 2, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    assert [line.get("evaluated") for line in lines] == [2, 0, 2, 0, None]
    same_models(models, {**reference.models, **reference.buffers})


def test_held_out_samples_and_an_early_end_are_the_simulators(tmp_path):
    """Nodes hold the same samples out, the server weights by their number and stops after the same round."""
    options = {"algorithm": "local", "clients": 4, "rounds": 12, "lr": 1.0, "epochs": 3, "participation": 0.5}
    options |= {"validation": 0.25, "early_stop": 1}
    lines, models, _ = federated(tmp_path, 2, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    assert "validation_after" in lines[0]
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers})
    stopped = [
        json.loads((tmp_path / name / "record.json").read_text())["stopped"] for name in ("federated", "simulated")
    ]
    assert stopped[0] == stopped[1]
    assert stopped[0]["round"] < 12


@pytest.mark.parametrize("algorithm", ["feddwa", "fedrod"])
def test_a_recipe_of_training_is_the_simulators(tmp_path, algorithm):
    """Nodes keep their clients' optimiser states, and know round and schedule."""
    own = {"optimizer": "adam", "optimizer_state": "keep", "lr": 0.01, "lr_schedule": "cosine", "clip_grad": 1.0}
    batches = {"local_steps": 3, "drop_last": True, "augment": "flip,crop"}
    options = {"algorithm": algorithm, "clients": 6, "rounds": 3, "participation": 0.5, "dtype": "float64"}
    lines, models, _ = federated(tmp_path, 3, **options, **own, **batches)
    reference = run(**options, **own, **batches, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers}, 1e-9)


@pytest.mark.parametrize(
    ("algorithm", "defence"), [("fedavg", "clip,trimmed-mean"), ("feddwa_plus", "geometric-median")]
)
def test_a_defence_is_the_simulators(tmp_path, algorithm, defence):
    """It acts on the server side, which both have in common."""
    options = {"algorithm": algorithm, "clients": 6, "rounds": 2, "dtype": "float64", "defence": defence}
    lines, models, _ = federated(tmp_path, 3, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers}, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("batchnorm", ["local", "mean", "all-local"])
def test_a_network_with_batchnorm_on_own_images_in_float64(tmp_path, batchnorm):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    images = rng.integers(0, 60, (60, 8, 8, 3)) + 60 * labels[:, None, None, None]
    np.savez(tmp_path / "own.npz", x=images.astype(np.uint8), y=labels)
    path = str(tmp_path / "own.npz")
    options = {"dataset": path, "model": "resnet8", "dtype": "float64", "batchnorm": batchnorm, "clients": 4}
    options |= {"algorithm": "feddwa", "rounds": 2, "partition": "iid", "batch_size": 5, "param": ("top_k=2",)}
    lines, models, _ = federated(tmp_path, 2, node={"dataset": path}, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers}, 1e-10)


def test_token_ids_and_the_network_that_fits_them(tmp_path):
    """The server learns from the nodes what the network is given, and stores the network that it has chosen."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", tokens=rng.integers(0, 20, (48, 6)), y=np.arange(48) % 2)
    path = str(tmp_path / "own.npz")
    options = {"dataset": path, "dtype": "float64", "clients": 4, "algorithm": "fedavg", "rounds": 1}
    options |= {"partition": "iid", "model_arg": ("dim=8", "layers=1", "vocabulary=32")}
    lines, models, _ = federated(tmp_path, 2, node={"dataset": path}, **options | {"model": "transformer"})
    assert models["body.token.weight"].shape == (4, 32, 8)
    del options["model_arg"]
    lines, models, _ = federated(tmp_path / "chosen", 2, node={"dataset": path}, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers}, 1e-10)
    assert from_toml(tmp_path / "chosen" / "federated" / "config.toml", RunConfig).model == "transformer"


def test_a_token_at_every_position(tmp_path):
    """Means over clients are weighted by tokens, whose number nodes tell."""
    rng = np.random.default_rng(0)
    ids, lengths = rng.integers(0, 9, (48, 7)), rng.integers(1, 7, 48)
    y = np.where(np.arange(6) < lengths[:, None], ids[:, 1:], -100)
    np.savez(tmp_path / "own.npz", tokens=ids[:, :-1], y=y)
    path = str(tmp_path / "own.npz")
    options = {"dataset": path, "dtype": "float64", "clients": 4, "algorithm": "fedavg", "rounds": 2}
    options |= {"partition": "iid", "model": "char-lstm", "model_arg": ("every=true", "hidden=4"), "validation": 0.2}
    options |= {"metrics": ("perplexity",), "lr": 0.5}
    lines, models, _ = federated(tmp_path, 2, node={"dataset": path}, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers}, 1e-10)
    assert lines[0]["before"]["all"] != lines[0]["before"]["all_weighted"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["feddwa", "fedrod", "feddwa_plus"])
def test_frozen_parameters_neither_travel_nor_move(tmp_path, monkeypatch, algorithm):
    """A network whose body is frozen at values that the run's seed draws: its head has 650 parameters."""
    monkeypatch.setitem(models.MODELS, "mlp", dataclasses.replace(models.MODELS["mlp"], build=frozen_body))
    options = {"algorithm": algorithm, "model": "mlp", "clients": 4, "rounds": 2, "seed": 3}
    lines, own, _ = federated(tmp_path, 2, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(own, {**reference.models, **reference.buffers})
    assert lines[0]["bytes_down"] == 4 * 650
    assert (own["body.fc0.weight"] == own["body.fc0.weight"][0]).all()


def test_a_node_with_other_frozen_values_is_refused(tmp_path, monkeypatch):
    """Its versions of the packages may draw others: what the server mixes would not be one network."""
    values = itertools.count()

    def build(shape, classes):
        network = frozen_body(shape, classes)
        nn.init.constant_(network.body.fc0.weight, next(values))
        return network

    monkeypatch.setitem(models.MODELS, "mlp", dataclasses.replace(models.MODELS["mlp"], build=build))
    options = {"algorithm": "fedavg", "model": "mlp", "clients": 4, "rounds": 1, "min_nodes": 1}
    config = FlowerConfig(**options, out=str(tmp_path / "federated")).resolved()
    server.run(LocalGrid(config, blocks(1, str(tmp_path / "nodes"))), config, simulated=False)
    reasons = lines_of(tmp_path / "federated")[0]["missing"]
    assert any("initial model: differs from the server's" in reason for reason in reasons)


@pytest.mark.slow
def test_blocks_of_any_size_give_the_same_models(tmp_path):
    options = {"algorithm": "feddwa", "clients": 20, "rounds": 2}
    runs = {parts: federated(tmp_path / str(parts), parts, **options) for parts in (1, 4, 20)}
    for lines, own, _ in runs.values():
        same_lines(lines, runs[1][0])
        same_models(own, runs[1][1])


def test_one_exchange_a_round(tmp_path):
    lines, _, grid = federated(tmp_path, 2, algorithm="fedavg", clients=4, rounds=3, participation=0.5)
    kinds = [kind for _, kind in grid.kinds]
    assert kinds == ["query"] * 2 + ["train"] * 2 * 4  # three rounds, and the models that come out
    assert len(lines) == 4


def test_absent_clients_need_not_be_asked(tmp_path):
    options = {"algorithm": "fedavg", "clients": 6, "rounds": 2, "participation": 0.34}
    lines, _, grid = federated(tmp_path, 6, evaluate_absent=False, **options)
    assert len(grid.kinds) == 6 + 2 * 2 + 6
    assert [line["evaluated"] for line in lines[:2]] == [2, 2]
    reference = run(**options, out=str(tmp_path / "simulated"))
    assert lines[-1]["before"] == pytest.approx(reference.metrics[-1]["before"])
    for line, other in zip(lines[:2], reference.metrics, strict=False):
        assert line["after"]["participants"] == pytest.approx(other["after"]["participants"])


def test_what_all_clients_of_a_node_share_travels_once(tmp_path):
    """One node with all clients gets FedAvg's model once, and FedDWA's models one by one."""
    model = 4 * 4810  # bytes of the digits network
    for algorithm, factor in (("fedavg", 1), ("feddwa", 5)):
        lines, _, _ = federated(tmp_path / algorithm, 1, algorithm=algorithm, clients=5, rounds=2)
        assert lines[1]["bytes_down"] == model
        assert factor * model <= lines[1]["wire"]["down"] < 1.05 * factor * model


def test_in_a_simulation_the_partition_is_the_identity(tmp_path):
    """Nodes have no keys there, and other numbers every time."""
    options = {"algorithm": "fedrod", "clients": 4, "rounds": 2}
    lines, models, _ = federated(tmp_path, 2, keys=False, **options)
    reference = run(**options, out=str(tmp_path / "simulated"))
    same_lines(lines, reference.metrics)
    same_models(models, {**reference.models, **reference.buffers})
