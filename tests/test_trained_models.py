"""A finished run holds its models as they were evaluated, whatever the algorithm, and enough to use them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import feddwa
from feddwa.build import load_task
from feddwa.data.dataset import Dataset
from feddwa.data.federated import to_device
from feddwa.errors import InputError
from feddwa.results import runs
from feddwa.trained import store
from tests.conftest import ANYWHERE, no_models

TINY = {"clients": 4, "rounds": 2, "batch_size": 60, "device": "cpu", "param": ("groups=2",)}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_samples(path):
    """Client -> raw test samples and labels, of the run in a directory."""
    task = load_task(runs.read_config(Path(path)).resolved())
    x, y = to_device(task.dataset, task.partition, torch.device("cpu"))
    return [(x[rows], y[rows]) for rows in task.partition.test]


test_samples.__test__ = False


def check_accuracy(trained, client, scores, y):
    """Outputs (n, C) on a client's test samples have the accuracy that was evaluated."""
    found = 100 * (scores.argmax(1) == y).double().mean().item()
    assert found == pytest.approx(trained.card.accuracy[client], abs=1e-9)


def colours() -> Dataset:
    """Colour images of four owners whose normalisation is not the identity; learnable."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 160)
    x = (rng.integers(0, 120, (160, 3, 8, 8)) + 60 * y[:, None, None, None]).astype(np.uint8)
    owner = np.tile(np.arange(4), 40)
    names = {"class_names": ("red", "green", "blue"), "client_names": ("north", "south", "east", "west")}
    return Dataset("colours", x, y, 120, 3, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), client=owner, **names)


COLOURS = {"dataset": f"{__file__}:colours", "model": "resnet8-gkt", "batch_size": 10, "lr": 0.05, "device": "cpu"}


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_the_models_read_from_the_directory_give_the_evaluated_accuracy_and_loss(algorithm):
    """FedRoD's two heads, FedDWA+'s prior and running mean, and adapted copies among them."""
    result = feddwa.run(algorithm=algorithm, out="run", chunk=3, **TINY)
    trained = runs.read_models(Path("run"))
    for client, (x, y) in enumerate(test_samples("run")):
        with torch.no_grad():
            scores = trained.model(client)(x)
        assert torch.equal(result.model(client)(x), scores)
        check_accuracy(trained, client, scores, y)
        assert nn.functional.cross_entropy(scores, y).item() == pytest.approx(trained.card.loss[client], rel=1e-5)
    last = json.loads(Path("run/clients.jsonl").read_text().splitlines()[-1])["before"]
    assert last == pytest.approx(trained.card.accuracy, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"batchnorm": "all-local"}, {"batchnorm": "mean"}, {"backend": "sequential"}])
def test_batchnorm_statistics_and_normalisation_come_along(options):
    feddwa.run(out="run", algorithm="fedavg", rounds=2, **COLOURS, **options)
    result = feddwa.resume("run")
    for client, (x, y) in zip(("north", "south", "east", "west"), test_samples("run"), strict=True):
        accuracy = 100 * (result.predict(client, x).argmax(1) == y).double().mean().item()
        place = result.trained.card.client(client)
        assert accuracy == pytest.approx(result.trained.card.accuracy[place], abs=1e-9)
        assert torch.equal(result.predict(place, x), result.predict(client, x.numpy()))
    assert result.buffers


def test_a_model_that_all_clients_share_is_stored_once():
    for algorithm in ("fedavg", "feddwa"):
        feddwa.run(algorithm=algorithm, out=algorithm, chunk=3, **TINY)
    with safe_open("fedavg/models.safetensors", "pt") as one, safe_open("feddwa/models.safetensors", "pt") as all_:
        assert {one.get_tensor(name).shape[0] for name in one.keys()} == {1}  # noqa: SIM118
        assert {all_.get_tensor(name).shape[0] for name in all_.keys()} == {4}  # noqa: SIM118
    assert feddwa.resume("fedavg").models["head.bias"].shape == (4, 10)
    shared = feddwa.resume("fedavg").models["head.weight"]
    assert shared.stride(0) == 0


class Half(nn.Module):
    """Its first layer is frozen."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first = nn.Linear(64, 8).requires_grad_(False)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(torch.relu(self.first(x.flatten(1))))


def test_frozen_parameters_are_stored_once_and_a_module_comes_back_as_it_was():
    torch.manual_seed(3)
    module = Half((1, 8, 8), 10)
    result = feddwa.run(model=module, out="run", **TINY)
    with safe_open("run/models.safetensors", "pt") as file:
        assert file.get_tensor("first.weight").shape == (1, 8, 64)
        assert file.get_tensor("head.weight").shape == (4, 10, 8)
    again = runs.read_models(Path("run")).model(1)
    assert isinstance(again, Half)
    assert torch.equal(again.first.weight, module.first.weight)
    assert torch.equal(again.head.weight, result.models["head.weight"][1])
    assert not again.training
    assert not again.first.weight.requires_grad


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_models_keep_their_type(dtype):
    feddwa.run(out="run", dtype=dtype, **TINY)
    assert feddwa.resume("run").model(0).head.weight.dtype == getattr(torch, dtype)


def test_simulated_models_are_there_without_a_directory():
    x = torch.randn(40, 5)
    clients = {name: (x, (x[:, 0] > 0).long()) for name in ("a", "b")}
    result = feddwa.run(model=nn.Linear(5, 2), dataset=clients, rounds=2, out=False)
    model = result.model("b")
    assert torch.equal(model.weight, result.models["weight"][1])
    assert torch.equal(result.predict("b", x), model(x).detach())


def test_names_and_numbers_of_clients():
    card = no_models().card
    assert card.client("3") == card.client(3) == 3
    other = store.dataclasses.replace(card, clients=("2", "1", "x", *map(str, range(3, 8))))
    assert (other.client("1"), other.client(1), other.client("x")) == (1, 1, 2)
    assert (other.client("2"), other.client(2)) == (0, 2)  # a text is a name first, a number is a place
    for wrong in ("y", 8, -1, "-1"):
        with pytest.raises(InputError, match=r"--client .*: no such client; there are 2, 1, x, 3"):
            other.client(wrong)


def test_models_may_be_left_out():
    feddwa.run(out="run", save_models=False, **TINY)
    assert not Path("run/models.safetensors").exists()
    why = r"run: has no models: the run was made without them \(--no-save-models\)"
    with pytest.raises(InputError, match=why):
        runs.read_models(Path("run"))
    with pytest.raises(InputError, match=why):
        feddwa.resume("run").model(0)
    assert "save_models = false" in Path("run/config.toml").read_text()


def test_what_is_left_out_does_not_change_a_results_name():
    with_models, without = (
        json.loads(Path(feddwa.run(out=out, save_models=keep, **TINY).path, "record.json").read_text())
        for out, keep in (("a", True), ("b", False))
    )
    assert with_models["cell"] == without["cell"]
    assert with_models["series"] == without["series"]


@pytest.mark.parametrize("name", ["model.json", "models.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damage_is_named_in_one_line(name, damage):
    feddwa.run(out="run", **TINY)
    path = Path("run") / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if damage == "cut" else content[:-9] + b"\0" + content[-8:])
    for read in (runs.read_models, feddwa.resume):
        with pytest.raises(
            InputError, match=f"run/({name}|SHA256SUMS): (is not what was written|cannot be checked)"
        ) as told:
            read(Path("run"))
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda card: "[]", "is not a model card of version 3"),
        (lambda card: "{", "is damaged: it is not JSON"),
        (lambda card: card.replace('"clients": [', '"clients": [1, '), "is damaged: clients is missing or of another"),
        (lambda card: card.replace('"clients": [', '"clients": ["9", '), "its lists are not of the same clients"),
        (lambda card: card.replace('"version": 3', '"version": 1'), "is not a model card of version 3"),
        (lambda card: card.replace("digits-mlp", "digits-cnn"), "does not hold 4 models of the network digits-cnn"),
        (lambda card: card.replace("digits-mlp", "nothing"), "unknown name 'nothing'"),
    ],
)
def test_a_card_that_does_not_fit_is_refused(change, told):
    feddwa.run(out="run", **TINY)
    path = Path("run/model.json")
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=told) as error:
        store.read(Path("run"))
    assert "\n" not in str(error.value)


def test_a_run_that_has_no_models_yet_says_so():
    with pytest.raises(InputError, match="nowhere: no such directory"):
        runs.read_models(Path("nowhere"))
    Path("empty").mkdir()
    with pytest.raises(InputError, match=r"empty: has no trained models: model\.json: No such file"):
        runs.read_models(Path("empty"))

    def stop(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out="cut", observe=stop, **TINY)
    with pytest.raises(InputError, match="cut: the run is not finished; `feddwa resume cut` continues it"):
        runs.read_models(Path("cut"))


def test_a_finished_run_takes_the_room_of_its_models_once():
    """Models of a FedDWA run: 4 of 4,810 float32 parameters; the checkpoint of the same size is gone."""
    feddwa.run(out="run", **TINY)
    size = sum(path.stat().st_size for path in Path("run").rglob("*safetensors"))
    assert 4 * 4810 * 4 < size < 1.2 * 4 * 4810 * 4
