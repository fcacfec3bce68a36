"""Exported models give the scores and the accuracy of the run, in the programs that they were exported for."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import feddwa
from feddwa import cli
from feddwa.errors import InputError
from feddwa.results import runs
from feddwa.trained import export
from tests.conftest import ANYWHERE
from tests.test_trained_models import COLOURS, TINY, test_samples


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def scores_of(path, x):
    """Scores of raw samples by an exported file, in the program that it is for."""
    if str(path).endswith(".pt2"):
        with torch.no_grad():
            return torch.export.load(path).module()(x)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["scores"], {"samples": x.numpy()})[0])


def check(run, client, path):
    """The file of a client's model gives the library's scores, for any number of samples, and the run's accuracy."""
    trained, (x, y) = runs.read_models(Path(run)), test_samples(run)[client]
    scores = scores_of(path, x)
    assert torch.allclose(scores, export.predict(trained, client, x), atol=1e-5)
    assert torch.allclose(scores_of(path, x[:1]), scores[:1], atol=1e-5)
    accuracy = 100 * (scores.argmax(1) == y).double().mean().item()
    assert accuracy == pytest.approx(trained.card.accuracy[client], abs=1e-9)


# An evaluated model of FedRoD is made of several parts.
SLOW = [pytest.param(name, marks=[] if name == "fedrod" else [pytest.mark.slow]) for name in ANYWHERE]


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_a_program_of_torch_gives_the_evaluated_accuracy(algorithm):
    feddwa.run(algorithm=algorithm, out="run", **TINY)
    export.export(runs.read_models(Path("run")), 1, Path("model.pt2"), "torch-export")
    check("run", 1, "model.pt2")


@pytest.mark.parametrize("algorithm", SLOW)
def test_a_program_in_onnx_gives_the_evaluated_accuracy(algorithm):
    feddwa.run(algorithm=algorithm, out="run", **TINY)
    export.export(runs.read_models(Path("run")), 1, Path("model.onnx"), "onnx")
    check("run", 1, "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch-export", "onnx"])
def test_normalisation_and_batchnorm_are_in_the_program(form, capsys):
    """Bytes of pixels go in as they are; BatchNorm has each client's own statistics."""
    feddwa.run(algorithm="feddwa", out="run", rounds=2, **COLOURS)
    file = f"west{export.SUFFIXES[form]}"
    assert cli.main(["export", "run", "--client", "west", "--format", form, "-o", file]) == 0
    assert "the model of west; " in capsys.readouterr().out
    check("run", 3, file)
    if form == "onnx":
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        card = json.loads(session.get_modelmeta().custom_metadata_map["feddwa"])
    else:
        told = {"feddwa.json": ""}
        torch.export.load(file, extra_files=told)
        card = json.loads(told["feddwa.json"])
    assert (card["clients"], card["class_names"]) == (["west"], ["red", "green", "blue"])
    assert card["mean"] == [0.5, 0.4, 0.3]


def test_parameters_are_a_start_for_another_run():
    result = feddwa.run(out="run", **TINY)
    assert cli.main(["export", "run", "--client", "2", "-o", "two.safetensors"]) == 0
    values = load_file("two.safetensors")
    assert torch.equal(values["head.weight"], result.models["head.weight"][2])
    with safe_open("two.safetensors", "pt") as file:
        card = json.loads(file.metadata()["feddwa"])
    assert (card["network"], card["classes"], card["clients"], card["run"]) == ("digits-mlp", 10, ["2"], {})
    again = feddwa.run(model="digits-mlp@two.safetensors", out="again", **{**TINY, "rounds": 1, "lr": 0.0})
    assert torch.equal(again.models["head.weight"][0], values["head.weight"])


def test_all_clients_at_once_without_the_data(tmp_path, capsys):
    """The directory alone is enough: the files of the data are gone."""
    rng = np.random.default_rng(0)
    names = ["../up", "Ward A", "ward-a", "", "ümlaut", "x" * 300]
    owner = np.repeat([name or "none" for name in names], 20)
    np.savez("own.npz", x=rng.normal(size=(120, 6)), y=np.arange(120) % 3, client=owner)
    result = feddwa.run(dataset="own.npz", out="run", rounds=1, batch_size=5, model="mlp", standardise=True)
    Path("own.npz").unlink()
    assert cli.main(["export", "run", "-o", "out"]) == 0
    assert "wrote 6 models and out/index.json" in capsys.readouterr().out
    index = json.loads(Path("out/index.json").read_text())
    files = [each["file"] for each in index["models"]]
    assert sorted(each.name for each in Path("out").iterdir()) == sorted([*files, "index.json"])
    assert len({name.lower() for name in files}) == 6
    assert all("/" not in name and len(name) < 100 and name.isascii() for name in files)
    for place, each in enumerate(index["models"]):
        client = result.trained.card.client(each["client"])
        assert client == place
        assert torch.equal(load_file(f"out/{each['file']}")["head.bias"], result.models["head.bias"][client])
        assert each["accuracy"] == result.trained.card.accuracy[client]
    assert index["classes"] == 3
    assert len(index["mean"]) == 6


def refused(capsys, *words):
    assert cli.main(["export", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_what_cannot_be_exported_is_said_in_one_line(capsys):
    feddwa.run(out="run", **TINY)
    feddwa.run(out="bare", save_models=False, **TINY)
    assert "--client 'x': no such client; there are 0, 1, 2, 3" in refused(capsys, "run", "--client", "x")
    assert "the run was made without them (--no-save-models)" in refused(capsys, "bare")
    assert "nowhere: no such directory" in refused(capsys, "nowhere")
    assert "--format" in refused(capsys, "run", "--format", "pickle")
    told = refused(capsys, "run", "--client", "0", "--format", "onnx", "-o", "m.pt2")
    assert "-o m.pt2: is the name of a torch-export file, and --format says onnx" in told
    told = refused(capsys, "run", "--client", "0", "-o", "m.h5")
    assert "-o m.h5: does not say what to write; must end in .safetensors or .pt2 or .onnx, or give --format" in told
    Path("file").write_text("")
    assert "-o file/x: cannot write there" in refused(capsys, "run", "--client", "0", "-o", "file/x")
    assert cli.main(["compare", "--algorithms", "local", "fedavg", "--out", "both", "--rounds", "1", "--quiet"]) == 0
    capsys.readouterr()
    assert "both: holds several runs; name one of them: fedavg, local" in refused(capsys, "both")


def test_the_name_of_the_file_tells_the_format():
    feddwa.run(out="run", **TINY)
    assert cli.main(["export", "run", "--client", "0", "-o", "m.pt2"]) == 0
    assert torch.export.load("m.pt2").module()(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_missing_packages_are_named(monkeypatch, capsys):
    feddwa.run(out="run", **TINY)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    err = refused(capsys, "run", "--client", "0", "--format", "onnx")
    assert "needs the packages onnx and onnxscript (missing: onnxscript); pip install 'feddwa[onnx]'" in err
    assert not list(Path().glob("*.onnx"))


class Strange(torch.nn.Module):
    """Branches on values, which no tracer can follow."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head = torch.nn.Linear(64, classes)

    def forward(self, x):
        scores = self.head(x.flatten(1))
        return scores if not self.training and scores.sum().item() > -1e9 else scores * 1.0


def test_a_network_that_torch_cannot_trace_says_so_and_leaves_no_file():
    feddwa.run(model=Strange, out="run", backend="sequential", **TINY)
    trained = runs.read_models(Path("run"))
    with pytest.raises(
        InputError, match=r"torch cannot export this network: .*--format safetensors always works"
    ) as told:
        export.export(trained, 0, Path("m.pt2"), "torch-export")
    assert "\n" not in str(told.value)
    assert not Path("m.pt2").exists()
    export.export(trained, 0, Path("m.safetensors"))


def test_samples_of_another_kind_are_refused():
    result = feddwa.run(out="run", rounds=1, **COLOURS)
    for x, told in (
        (np.zeros((2, 3, 8, 9), np.uint8), r"got \(2, 3, 8, 9\), must be of shape \(n, 3, 8, 8\)"),
        (np.zeros((0, 3, 8, 8), np.uint8), "must be of shape"),
        (np.zeros((2, 3, 8, 8), np.float32), "got 'float32', must be uint8 as in the training data"),
    ):
        with pytest.raises(InputError, match=told):
            result.predict("north", x)


@pytest.mark.slow
def test_the_command_is_a_process_that_needs_nothing_but_the_directory(tmp_path):
    feddwa.run(out="run", **TINY)
    words = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "feddwa",
        "export",
        "run",
        "--client",
        "0",
        "--format",
        "torch-export",
    ]
    done = subprocess.run([*words, "-o", "m.pt2"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("wrote m.pt2 (")
