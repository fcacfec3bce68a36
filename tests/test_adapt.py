"""A model for a newcomer, by every method, and what it gained on data that no training has seen."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa import cli
from feddwa.algorithms import ALGORITHMS, FedAvg
from feddwa.data import sources
from feddwa.errors import InputError
from feddwa.results import runs
from feddwa.trained import adapt as adaptation
from feddwa.trained.samples import Samples
from tests.conftest import ANYWHERE
from tests.test_trained_models import COLOURS

GROUPED = {"clients": 8, "batch_size": 20, "lr": 0.1, "device": "cpu", "param": ("rotations.groups=2",)}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def newcomer(turns, count=30, skip=0):
    """A few digits, turned as those of one group are."""
    digits = sources.load("digits", None)
    x = np.rot90(digits.x[skip : skip + count], turns, axes=(-2, -1))
    return Samples(np.ascontiguousarray(x), digits.y[skip : skip + count], tuple(map(str, range(count))))


def adapted(path, samples, epochs=5, **options):
    config = runs.read_config(Path(path)).resolved()
    return adaptation.adapt(config, runs.read_models(Path(path)), samples, "new", epochs, **options)


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_every_method_makes_a_model_for_a_newcomer(algorithm):
    feddwa.run(algorithm=algorithm, out="run", rounds=2, **GROUPED)
    found = adapted("run", newcomer(0), epochs=3)
    facts = found.facts()
    assert set(facts["results"]) == {"alone", "mean", "adapted"}
    assert facts["train_samples"] + facts["held_out"] == 30
    assert sum(found.weights.values()) == pytest.approx(1)
    assert found.how
    model = found.trained.model("new")
    assert all(value.isfinite().all() for value in model.parameters())
    tuned = "fine-tuned" in found.how
    of_the_server = getattr(ALGORITHMS[algorithm], "newcomer", None) is FedAvg.newcomer
    assert tuned == (not of_the_server and algorithm not in ("clusterfl", "ifca", "fedem"))


def test_feddwa_draws_on_the_clients_that_see_what_the_newcomer_sees():
    """In two groups, whose images are turned differently, it finds its own group from 48 samples, and gains by it."""
    result = feddwa.run(out="run", rounds=12, **GROUPED)
    turns = result.partition.turns
    for turn in sorted(set(turns.tolist())):
        found = adapted("run", newcomer(turn, count=60, skip=500), epochs=6)
        inside = sum(found.weights.get(str(client), 0.0) for client in np.flatnonzero(turns == turn))
        assert inside > 0.8  # K = 5, and there are four of its group
        scores = found.facts()["results"]
        assert scores["adapted"]["accuracy"] > scores["alone"]["accuracy"] + 10
        assert scores["adapted"]["accuracy"] > scores["mean"]["accuracy"] + 10


def test_the_held_out_samples_play_no_part_in_the_model():
    """Other labels for the held-out samples leave model and weights as they are, and change the accuracy alone."""
    feddwa.run(out="run", rounds=3, algorithm="local", **GROUPED)
    samples = newcomer(0)
    first = adapted("run", samples)
    config = runs.read_config(Path("run")).resolved()
    task = adaptation._task(runs.read_models(Path("run")), samples, "new", 0.2, config.in_time)
    held = task.dataset.x[task.dataset.train_count :]
    tested = np.array([any(np.array_equal(x, other) for other in held) for x in samples.x])
    assert tested.sum() == 6
    second = adapted("run", samples._replace(x=np.where(tested[:, None, None, None], 0, samples.x).astype(np.float32)))
    for name, value in first.trained.stack.items():
        assert torch.equal(value, second.trained.stack[name])
    assert first.weights == second.weights
    assert first.facts()["results"] != second.facts()["results"]


@pytest.mark.parametrize(("share", "held"), [(0.5, 15), (0.01, 1), (0.99, 29)])
def test_the_share_that_is_held_out_can_be_chosen(share, held):
    """At least one sample tests and at least one trains."""
    feddwa.run(out="run", rounds=1, algorithm="local", **GROUPED)
    found = adapted("run", newcomer(0), epochs=1, held_out=share)
    facts = found.facts()
    assert (facts["train_samples"], facts["held_out"]) == (30 - held, held)
    assert found.trained.card.evaluated.endswith(f"on {share:.0%} of its samples")


def test_clusters_give_their_model_as_it_is():
    """A newcomer gets the model of one of the clusters, and draws on all of its members."""
    options = {"eps1": 50, "eps2": 0.0, "warmup": 2}
    result = feddwa.run(
        algorithm="clusterfl", out="run", rounds=6,
        **{**GROUPED, "param": (*GROUPED["param"], *(f"clusterfl.{key}={value}" for key, value in options.items()))},
    )  # fmt: skip
    found = adapted("run", newcomer(0))
    members = [int(name) for name in found.weights]
    assert len(members) < 8
    for member in members:
        assert torch.equal(result.models["head.weight"][member], found.trained.stack["head.weight"][0])
    assert found.how == "the model of the cluster that fits its data best"


def test_the_global_model_is_fedavgs_own():
    result = feddwa.run(algorithm="fedavg", out="run", rounds=2, **GROUPED)
    found = adapted("run", newcomer(0))
    assert torch.allclose(found.trained.stack["head.weight"][0], result.models["head.weight"][0], atol=1e-6)
    assert found.facts()["results"]["adapted"] == found.facts()["results"]["mean"]


@pytest.mark.slow
def test_batchnorm_normalisation_and_names(capsys):
    """Statistics and normalisation are those of the newcomer's exported model; its directory works like a run's."""
    feddwa.run(out="run", rounds=2, **COLOURS)
    rng = np.random.default_rng(1)
    y = np.arange(40) % 3
    x = (rng.integers(0, 120, (40, 3, 8, 8)) + 60 * y[:, None, None, None]).astype(np.uint8)
    np.savez("clinic.npz", x=x, y=np.array(["red", "green", "blue"])[y])
    assert cli.main(["adapt", "run", "--data", "clinic.npz", "-o", "made", "--epochs", "4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("32 samples to train on, 8 held out, on which:\n  trained alone, 4 epochs ")
    assert "\n  mean of the 4 clients' models " in out
    assert "\ndraws on " in out
    assert any(name in out for name in ("north", "south", "east", "west"))
    assert sorted(path.name for path in Path("made").iterdir()) == [
        "adapt.json", "clinic.safetensors", "model.json", "models.safetensors",
    ]  # fmt: skip
    assert json.loads(Path("made/adapt.json").read_text())["held_out"] == 8
    assert cli.main(["predict", "made", "clinic.npz", "-o", "answers.csv"]) == 0
    assert cli.main(["export", "made", "--client", "clinic", "--format", "torch-export", "-o", "clinic.pt2"]) == 0
    trained = runs.read_models(Path("made"))
    program = torch.export.load("clinic.pt2").module()
    expected = feddwa.trained.export.predict(trained, "clinic", x)
    assert torch.allclose(program(torch.from_numpy(x)), expected, atol=1e-5)
    assert trained.card.mean == (0.5, 0.4, 0.3)


def test_a_table_of_a_newcomer(capsys):
    from tests.test_predict import wards

    Path("wards.csv").write_text("\n".join(wards(120)) + "\n")
    Path("new.csv").write_text("\n".join(wards(40, seed=5)) + "\n")
    options = {"label": "state", "client": "ward", "model": "mlp", "rounds": 3, "lr": 0.1, "batch_size": 8}
    feddwa.run(dataset="wards.csv", out="run", device="cpu", **options)
    assert cli.main(["adapt", "run", "--data", "new.csv"]) == 0
    assert "adapted: " in capsys.readouterr().out
    assert cli.main(["predict", "adapted", "new.csv"]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "--data: must be given: the path of the newcomer's data"),
        (["run", "--data", "gone.npz"], "gone.npz: no such file"),
        (["run", "--data", "bare.npz"], "samples with labels"),
        (["run", "--data", "few.npz"], "got '4 samples', must be at least 5"),
        (["run", "--data", "good.npz", "--epochs", "0"], "--epochs: got 0, must be at least 1"),
        (["run", "--data", "good.npz", "--held-out", "0"], "--held-out: got 0.0, must be above 0 and below 1"),
        (["run", "--data", "good.npz", "--held-out", "nan"], "--held-out: got nan, must be above 0 and below 1"),
        (["nowhere", "--data", "good.npz"], "nowhere: no such directory"),
        (["run", "--data", "good.npz", "-o", "file"], "--out file: cannot write there"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words, told, capsys):
    feddwa.run(out="run", rounds=1, **GROUPED)
    x, y = newcomer(0)[:2]
    np.savez("bare.npz", x=x)
    np.savez("few.npz", x=x[:4], y=y[:4])
    np.savez("good.npz", x=x, y=y)
    Path("file").write_text("")
    assert cli.main(["adapt", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert not Path("adapted").exists()


def test_nothing_that_is_there_is_written_over(capsys):
    """Not the run itself, nor the model of an earlier newcomer."""
    feddwa.run(out="run", rounds=1, **GROUPED)
    x, y = newcomer(0)[:2]
    np.savez("good.npz", x=x, y=y)
    before = Path("run/models.safetensors").read_bytes()
    assert cli.main(["adapt", "run", "--data", "good.npz", "-o", "run"]) == 2
    assert "--out run: is not empty" in capsys.readouterr().err
    assert Path("run/models.safetensors").read_bytes() == before


class Branching(torch.nn.Module):
    """Cannot be trained as a stack."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head = torch.nn.Linear(64, classes)

    def forward(self, x):
        return self.head(x.flatten(1)) * (1.0 if x.sum().item() > -1e9 else 2.0)


@pytest.mark.filterwarnings("ignore:model. Branching branches")
def test_a_network_that_is_trained_one_client_after_another_is_adapted_so():
    feddwa.run(out="run", rounds=1, model=Branching, backend="auto", **GROUPED)
    assert adapted("run", newcomer(0), epochs=2).facts()["results"]["adapted"]["accuracy"] is not None


def test_no_models_no_newcomer():
    feddwa.run(out="run", rounds=1, save_models=False, **GROUPED)
    with pytest.raises(InputError, match="--no-save-models"):
        runs.read_models(Path("run"))
