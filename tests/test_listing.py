"""What is known of names without importing them is what the code says, and `feddwa list` tells it."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from feddwa import cli, models, params, plugins
from feddwa.algorithms import ALGORITHMS
from feddwa.built_in import entries, entry_of, fields_text
from feddwa.cli import listing
from feddwa.data.catalogue import DATASETS
from feddwa.data.inputs import Inputs
from feddwa.data.partition import PARTITIONS

EXTEND = Path(__file__).parents[1] / "examples" / "extend"
KINDS = {**{f"algorithm {name}": kind for name, kind in ALGORITHMS.items()},
         **{f"partition {name}": kind for name, kind in PARTITIONS.items()}}  # fmt: skip
COSTS = ("models_down", "models_up", "numbers_down", "numbers_up", "passes", *listing.PASSES, "server_ops",
         "models_kept", "numbers_kept", "discloses", "evaluated", "kind", "year")  # fmt: skip


@pytest.fixture
def listed(capsys):
    """`listed("algorithms", "fedprox")` gives what is printed."""

    def listed(*words):
        assert cli.main(["list", *words]) == 0
        return capsys.readouterr().out

    return listed


@pytest.mark.parametrize(
    ("kind", "table"),
    [("algorithm", ALGORITHMS), ("dataset", DATASETS), ("model", models.MODELS), ("partition", PARTITIONS)],
)
def test_the_names_in_the_source_are_those_of_the_code(kind, table):
    assert list(entries(kind)) == list(table)


@pytest.mark.parametrize("name", KINDS)
def test_what_the_source_says_of_a_class_is_what_the_class_says(name):
    kind, word = KINDS[name], name.partition(" ")
    entry = entries(word[0])[word[2]]
    assert entry.attribute == kind.__name__
    assert {key: each.default for key, each in entry.parameters.items()} == {
        key: default for key, (_, default) in params.fields_of(kind).items()
    }
    for key, value in entry.facts.items():
        if key != "summary" or hasattr(kind, key):
            assert getattr(kind, key) == value
    imported = entry_of(kind)
    assert {key: each._replace(type="") for key, each in imported.parameters.items()} == {
        key: each._replace(type="") for key, each in entry.parameters.items()
    }
    assert {key: imported.facts.get(key) for key in COSTS} == {key: entry.facts.get(key) for key in COSTS}
    assert imported.doc == entry.doc


@pytest.mark.parametrize("name", KINDS)
def test_every_hyper_parameter_says_what_it_means(name):
    assert all(fields_text(KINDS[name]).values())


@pytest.mark.parametrize("name", entries("dataset"))
def test_a_datasets_facts_are_those_of_the_catalogue(name):
    facts = entries("dataset")[name].facts
    info = DATASETS[name]
    assert (facts["summary"], facts["shape"], facts["classes"]) == (info.summary, info.shape, info.classes)
    assert facts["default model"] == info.defaults.model


@pytest.mark.parametrize("name", entries("model"))
def test_the_samples_that_a_model_is_said_to_take_are_those_that_fit(name):
    model = models.MODELS[name]
    assert entries("model")[name].facts["summary"] == f"takes {model.takes}"
    for shape in ((3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 64, 64), (2, 50)):
        exact = f"samples of shape {shape}" == model.takes
        colour = model.takes.startswith("colour") and shape[0] == 3
        smallest = re.search(r"of at least (\d+)x", model.takes)
        large = smallest is None or min(shape[1:]) >= int(smallest[1])
        image = len(shape) == 3 and large and (model.takes.startswith("images") or colour)
        series = len(shape) == 2 and model.takes.startswith("series")
        assert model.fits(Inputs.of(shape)) == (
            exact or image or series or model.takes == "samples of any shape but ()"
        )
    assert model.fits(Inputs.of((5,), 9)) == model.takes.startswith("token ids")


@pytest.mark.parametrize("name", entries("model"))
def test_a_models_arguments_are_those_of_its_function_and_each_says_what_it_means(name):
    known, model = entries("model")[name].parameters, models.MODELS[name]
    assert list(known) == list(model.arguments)
    assert all(each.text for each in known.values())
    for key, each in known.items():
        assert each.default == (None if model.arguments[key].required else model.arguments[key].default)


def test_the_arguments_of_own_networks_are_listed(listed, tmp_path):
    (tmp_path / "nets.py").write_text("def net(classes, width: int, depth=2):\n    pass\n")
    text = listed("models", f"{tmp_path}/nets.py:net")
    assert "arguments, by --model-arg NAME=VALUE:" in text
    assert "width=None  int" in text
    assert "depth=2     int" in text


def test_one_algorithm(listed):
    assert listed("algorithms", "fedprox").splitlines() == [
        "FedProx: FedAvg with a pull towards the global model",
        "Li et al., MLSys 2020",
        "kind: global",
        "year: 2020",
        "",
        "hyper-parameters, by --param NAME=VALUE [what `feddwa tune` tries]:",
        "  mu=1.0  Strength of the pull. [0.001..10:log]",
        "",
        "traffic of a participating client in a round: down 1 model, up 1 model",
        "passes over its data, FedAvg's being 1: 1",
        "multiply-adds of the server per parameter: m",
        "kept by a client between rounds: 0 models",
        "what the server learns of a client: its trained model",
        "what is evaluated of a client: the global model",
        "  where m = clients in the round",
    ]
    text = listed("algorithms", "fedfomo")
    assert "down min(5, m - 1) models, up 1 model and min(6, m) numbers" in text
    assert "0.8, and 1.4 forward alone, to validate models" in text
    assert "fallback=own  Where to continue if no model helps. (own, base)" in text
    assert "FedAvg's being 1: 1, and 1 before evaluation" in listed("algorithms", "fedavg_ft")


@pytest.mark.parametrize("what", ["algorithms", "datasets", "models", "partitions", "losses", "metrics"])
def test_json_has_the_same_of_one_and_of_all(listed, what):
    everything = json.loads(listed(what, "--json"))
    for name, known in everything.items():
        assert json.loads(listed(what, name, "--json")) == {name: known}
        assert known["summary"] in listed(what, name)


def test_json_of_an_algorithm(listed):
    known = json.loads(listed("algorithms", "feddwa", "--json"))["feddwa"]
    assert (known["title"], known["reference"]) == ("FedDWA", "Liu et al., IJCAI 2023")
    assert known["parameters"]["top_k"] == {
        "type": "int", "default": 5, "text": "K: partners kept per client, itself included.",
        "search": "1..20",
    }  # fmt: skip
    assert known["traffic"] == {"models_down": 1, "models_up": 2, "numbers_down": 0, "numbers_up": 0}
    assert (known["cost"]["passes"], known["cost"]["server_ops"]) == (2, "2 * m**2")
    assert "reference" not in json.loads(listed("algorithms", "feddwa_plus", "--json"))["feddwa_plus"]


@dataclasses.dataclass(frozen=True)
class Plain(plugins.ALGORITHMS.find("local").__base__):
    """An algorithm that says little of itself."""

    rate: float = 0.5


def test_code_from_outside_the_package(listed):
    text = listed("algorithms", f"{EXTEND}/ditto.py:Ditto")
    assert text.startswith("Ditto: a personal model beside the global one, pulled towards it\nLi, Hu, Beirami")
    assert "strength=1.0  Strength of the pull, lambda in the paper" in text
    assert "FedAvg's being 1: 2" in text
    assert "down body models, up body models" in listed("algorithms", f"{EXTEND}/fedper.py:FedPer")
    assert "exponent=1.0" in listed("partitions", f"{EXTEND}/quantity_skew.py:quantity_skew")
    assert "900 points" in listed("datasets", f"{EXTEND}/spirals.py:load")


def test_what_an_algorithm_does_not_declare_is_said_so(listed):
    text = listed("algorithms", f"{__name__}:Plain")
    assert "An algorithm that says little of itself." in text
    assert "rate=0.5  float" in text
    assert text.count("not declared") == 4
    known = json.loads(listed("algorithms", f"{__name__}:Plain", "--json"))[f"{__name__}:Plain"]
    assert known["traffic"]["models_down"] is None


@dataclasses.dataclass(frozen=True)
class Heir(ALGORITHMS["fedprox"]):
    pass


def undocumented():
    pass


def test_a_name_and_a_summary_are_not_inherited_but_costs_are(listed):
    known = json.loads(listed("algorithms", f"{__name__}:Heir", "--json"))[f"{__name__}:Heir"]
    assert known["title"] == "Heir"
    assert "pull" not in known["summary"]
    assert known["parameters"]["mu"]["text"] == "Strength of the pull."
    assert known["traffic"]["models_up"] == 1
    assert listed("datasets", f"{__name__}:undocumented") == "undocumented: \n"


def test_an_unknown_name_is_one_line(capsys):
    assert cli.main(["list", "algorithms", "magic"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("feddwa: algorithms: unknown name 'magic'; valid: local, fedavg, ")
    assert told.count("\n") == 1


@pytest.mark.slow
def test_the_benchmark_prints_a_table():
    script = Path(__file__).parents[1] / "benchmarks" / "startup.py"
    done = subprocess.run([sys.executable, script, "1"], capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[0] == "| command | CPU | ratio | wall | ratio |"
    assert lines[2].startswith("| `python -c pass` | 0.0")
    assert any(line.startswith("| `feddwa run --algorithm magic` |") for line in lines)
