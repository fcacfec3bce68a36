"""Extension from outside the package, as a user does it: one file each, run, reported, resumed, compared."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa import cli, plugins
from feddwa.algorithms import ALGORITHMS, Local
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.results import runs
from feddwa.results.methods import by_method
from feddwa.results.record import read

EXTEND = Path(__file__).parents[1] / "examples" / "extend"
DITTO, FEDPER = f"{EXTEND}/ditto.py:Ditto", f"{EXTEND}/fedper.py:FedPer"
SKEW, SPIRALS = f"{EXTEND}/quantity_skew.py:quantity_skew", f"{EXTEND}/spirals.py:load"
SMALL = ["--clients", "4", "--quiet"]
NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 8), nn.Tanh())
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.layers(x))

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def number():
    return 3
"""


class Wide(nn.Module):
    """A network for run(model=Wide())."""

    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)


def metrics(path):
    """The lines of metrics.jsonl without times."""
    lines = [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def interrupted(arguments, rounds, out):
    """A run of which only the first rounds are there: somebody has stopped it."""
    keep = runs.RunDirectory.keep

    def stop(self, round, *rest, **more):
        keep(self, round, *rest, **more)
        if round == rounds:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.RunDirectory, "keep", stop)
        assert cli.main(["run", *arguments, "--out", str(out)]) == 130
    assert len(metrics(out)) == rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    [
        ["--algorithm", DITTO, "--param", "strength=0.5"],
        ["--algorithm", FEDPER],
        ["--dataset", SPIRALS, "--partition", "iid", "--model", "mlp"],
        ["--partition", SKEW, "--param", "quantity_skew.exponent=0.5"],
    ],
    ids=["ditto", "fedper", "spirals", "quantity_skew"],
)
def test_an_example_runs_is_resumed_from_another_folder_and_reported(own, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(EXTEND)
    own = [word.removeprefix(f"{EXTEND}/") for word in own]
    assert cli.main(["run", *own, *SMALL, "--rounds", "3", "--out", str(tmp_path / "whole")]) == 0
    interrupted([*own, *SMALL, "--rounds", "3"], 1, tmp_path / "cut")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["resume", "cut"]) == 0
    assert metrics("cut") == metrics("whole")
    assert cli.main(["report", "whole", "-o", "report.html"]) == 0
    page = (tmp_path / "report.html").read_text()
    label = own[1].partition(":")[2]
    assert {"Ditto": "Ditto", "FedPer": "FedPer"}.get(label, str(EXTEND)) in page
    assert str(EXTEND) in (tmp_path / "whole" / "config.toml").read_text()


@pytest.mark.slow
def test_references_are_compared_with_built_in_methods_and_the_comparison_is_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["--algorithms", DITTO, "local", "--param", "strength=0.0"]
    assert cli.main(["compare", *names, *SMALL, "--rounds", "2", "--out", "both"]) == 0
    assert [method.name for method in by_method(read([Path("both")]))] in (["Ditto", "Local"], ["Local", "Ditto"])
    ditto, local = metrics("both/Ditto"), metrics("both/local")
    assert [line["before"] for line in ditto] == [line["before"] for line in local]  # without a pull it is Local
    shutil.rmtree("both/Ditto")
    monkeypatch.chdir("/")
    assert cli.main(["resume", str(tmp_path / "both")]) == 0
    assert metrics(tmp_path / "both" / "Ditto") == ditto


def test_fedper_sends_the_body_alone_and_ditto_one_model(tmp_path):
    options = {"clients": 4, "rounds": 1, "model": "digits-mlp"}
    fedper = feddwa.run(algorithm=FEDPER, out=str(tmp_path / "fedper"), **options).summary
    ditto = feddwa.run(algorithm=DITTO, out=str(tmp_path / "ditto"), **options).summary
    assert fedper["bytes_up_per_client_round"] == fedper["bytes_down_per_client_round"] == 4 * 64 * 65
    assert ditto["bytes_up_per_client_round"] == 4 * (64 * 65 + 10 * 65)


def test_objects_stand_for_references_in_python(tmp_path):
    ditto = plugins.resolve(DITTO)
    skew = plugins.resolve(SKEW)
    out = tmp_path / "objects"
    result = feddwa.run(algorithm=ditto(strength=0.3), partition=skew, model=Wide, clients=4, rounds=1, out=str(out))
    stored = from_toml(out / "config.toml", RunConfig)
    assert (stored.algorithm, stored.partition, stored.model) == (DITTO, SKEW, f"{__name__}:Wide")
    assert "Ditto.strength=0.3" in stored.param
    assert result.models["layers.1.weight"].shape == (4, 16, 64)
    named = feddwa.run(dataclasses.replace(stored, out=str(tmp_path / "named")))
    assert metrics(named.path) == metrics(out)
    builtin = feddwa.run(algorithm=Local(), clients=4, rounds=1, out=str(tmp_path / "local"))
    assert from_toml(Path(builtin.path) / "config.toml", RunConfig).algorithm == "local"


def test_a_module_is_everybodys_start_and_is_kept_for_a_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    module = Wide()
    result = feddwa.run(model=module, algorithm="local", clients=4, rounds=1, lr=0.0, out=str(tmp_path / "run"))
    for name, value in module.state_dict().items():
        assert torch.equal(result.models[name], value.expand(4, *value.shape))
    again = feddwa.resume(tmp_path / "run")
    assert all(torch.equal(again.models[name], value) for name, value in result.models.items())
    with pytest.raises(feddwa.InputError, match=r"--model .*Wide@.*the parameters do not fit what Wide makes"):
        feddwa.run(model=Wide(width=3), clients=4, rounds=1, out=str(tmp_path / "other"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Net", "plain"])
def test_a_network_of_another_file_is_trained(name, tmp_path, monkeypatch):
    (tmp_path / "mynetworks.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "--algorithm", "fedavg", "--model", f"mynetworks:{name}", *SMALL, "--rounds", "1"]
    assert cli.main([*arguments, "--out", "run"]) == 0
    interrupted([*arguments[1:], "--checkpoint-every", "1"], 1, tmp_path / "cut")
    assert cli.main(["resume", "cut"]) == 0
    assert metrics("cut") == metrics("run")


BROKEN = """
from dataclasses import dataclass
from feddwa import Algorithm
from feddwa.algorithms import FedAvg

class Bare(FedAvg):
    strength: float = 1.0

@dataclass(frozen=True)
class Needy(FedAvg):
    strength: float

@dataclass(frozen=True)
class Short(FedAvg):
    def client(self, trainer, download):
        return {}, {}

def function():
    return 1

def few(labels):
    return labels

def untyped(labels, train_count, clients, rng, exponent):
    return labels

def nothing(labels, train_count, clients, rng):
    return None

def needs(path):
    return path
"""


@pytest.mark.parametrize(
    ("option", "name", "wrong"),
    [
        ("algorithm", "nowhere.at_all:Ditto", "there is no module nowhere on Python's path or in "),
        ("algorithm", "nowhere.py:Ditto", "there is no file "),
        ("algorithm", "raises.py:Ditto", "importing it failed: ZeroDivisionError: division by zero ("),
        ("algorithm", "imports.py:Ditto", "importing it failed: ModuleNotFoundError: No module named 'nowhere'"),
        ("algorithm", "broken.py:Dito", "broken.py has no Dito; it has Bare, Needy, Short, function"),
        ("algorithm", "broken.py:function", "is a function, must be a subclass of feddwa.Algorithm"),
        ("algorithm", "broken.py:Bare", "has fields but is no dataclass; write @dataclass(frozen=True)"),
        ("algorithm", "broken.py:Needy", "its field strength has no default"),
        ("algorithm", "broken.py:Short", "client(self, trainer, download) must take (self, trainer, download, memory)"),
        ("model", "broken.py:needs", "needs the argument path; give --model-arg path=..."),
        ("model", "broken.py:function", "its function returned a int, must return an nn.Module"),
        ("partition", "broken.py:few", "few(labels) must take (labels, train_count, clients, rng)"),
        ("partition", "broken.py:untyped", "must take (labels, train_count, clients, rng)"),
        ("partition", "broken.py:nothing", "must be a function that returns a Partition of 20 clients"),
        ("partition", "broken.py:Short", "has no `reads`"),
        ("dataset", "broken.py:needs", "needs the argument path; without a default it may have: data_dir"),
        ("dataset", "broken.py:function", "must be a function that returns a Dataset"),
        ("dataset", "broken.py:Bare", "must be a function that returns a feddwa.data.dataset.Dataset"),
        ("algorithm", "magic", "unknown name 'magic'; valid: local, fedavg"),
    ],
)
def test_a_wrong_reference_is_told_in_one_line_before_any_work(option, name, wrong, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "imports.py").write_text("import nowhere\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", f"--{option}", name, "--rounds", "1", "--out", "run"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"feddwa: --{option}")
    assert wrong in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_has_no_place_in_a_module_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Inner(Local):
        pass

    with pytest.raises(feddwa.InputError, match=r"algorithm: .*Inner must be a class or a function at the top level"):
        feddwa.run(algorithm=Inner(), rounds=1)


def test_seeds_of_a_referenced_algorithm_run_in_lockstep(tmp_path):
    from feddwa.build import load_task
    from feddwa.experiment import run_tasks

    config = RunConfig(algorithm=DITTO, model="mlp", clients=4, rounds=2)
    configs = [dataclasses.replace(config, seed=seed, out=str(tmp_path / f"s{seed}")).resolved() for seed in (0, 1)]
    in_lockstep = run_tasks(configs, [load_task(each) for each in configs])
    alone = feddwa.run(dataclasses.replace(config, seed=1, out=str(tmp_path / "alone")))
    assert in_lockstep[1].summary["lockstep"] == 2
    for name, value in alone.models.items():
        np.testing.assert_allclose(in_lockstep[1].models[name], value, atol=1e-5)


def test_installed_plug_ins_have_names(tmp_path, monkeypatch, capsys):
    (tmp_path / "ditto_plugin.py").write_text((EXTEND / "ditto.py").read_text())
    folder = tmp_path / "ditto_plugin-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ditto-plugin\nVersion: 1.0\n")
    entries = "[feddwa.algorithms]\npulled = ditto_plugin:Ditto\nlocal = ditto_plugin:Ditto\n"
    (folder / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["list", "algorithms"]) == 0
    listed = capsys.readouterr().out
    assert [line.split() for line in listed.splitlines()][-1] == ["pulled", "plug-in", "ditto_plugin:Ditto"]
    assert list(plugins.ALGORITHMS)[-1] == "pulled"
    assert plugins.ALGORITHMS.find("local") is Local  # names of the package are its own
    out = str(tmp_path / "run")
    assert (
        cli.main(["run", "--algorithm", "pulled", "--param", "strength=2", *SMALL, "--rounds", "1", "--out", out]) == 0
    )
    assert "pulled.strength=2.0" in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.slow
def test_a_table_of_ones_own_is_run_once_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spec = str(EXTEND / "table.toml")
    assert cli.main(["reproduce", "--spec", spec, "--list"]) == 0
    assert "4 cells, 8 runs" in capsys.readouterr().out
    assert cli.main(["reproduce", "--spec", spec, "spirals"]) == 0
    first = capsys.readouterr().out
    assert all(name in first for name in ("Local", "FedAvg", "FedPer", "Ditto strength=0.1"))
    file = tmp_path / "runs/table/load.jsonl"
    lines = file.read_text()
    assert len(lines.splitlines()) == 8
    assert cli.main(["reproduce", "--spec", spec, "spirals"]) == 0
    assert file.read_text() == lines  # what is there is not run again
    assert cli.main(["reproduce", "--spec", spec, "table1"]) == 2
    assert "unknown name 'table1'; valid: spirals" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True)
class Fails(Local):
    """Goes wrong in the second round."""

    def client(self, trainer, download, memory):
        if trainer.round == 2:
            raise RuntimeError("the matrix is singular")
        return super().client(trainer, download, memory)


@pytest.mark.parametrize(
    ("backend", "who"), [("vectorised", "clients 0, 1, 2 and 1 others"), ("sequential", "client 0")]
)
def test_an_error_in_a_clients_step_names_algorithm_round_and_client(backend, who, tmp_path, capsys):
    own = ["--algorithm", f"{__name__}:Fails", "--backend", backend, "--out", str(tmp_path / "run")]
    assert cli.main(["run", *own, *SMALL, "--rounds", "3"]) == 1
    told = capsys.readouterr().err
    assert f"failed: the matrix is singular; in algorithm Fails, round 2, {who}" in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_the_skeleton_of_an_algorithm_passes_its_test_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "algorithm", "Mine", "--out", "methods"]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path / "methods", capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout
    assert cli.main(["run", "--algorithm", "methods/mine.py:Mine", "--param", "keep=0.1", *SMALL, "--rounds", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["new", "algorithm", "Mine", "--out", "methods"]) == 2
    assert "is there already" in capsys.readouterr().err
    for name in ("2fast", "class", "a b"):
        assert cli.main(["new", "algorithm", name]) == 2
        assert f"NAME: got {name!r}" in capsys.readouterr().err


def test_a_federation_over_flower_runs_code_that_its_nodes_admit(tmp_path):
    pytest.importorskip("flwr")
    from feddwa.flower import server
    from feddwa.flower.settings import FlowerConfig
    from tests.flower.grid import LocalGrid, blocks

    options = {"algorithm": DITTO, "partition": SKEW, "model": f"{__name__}:Wide", "clients": 4, "rounds": 2}
    simulated = feddwa.run(**options, out=str(tmp_path / "simulated"))
    config = FlowerConfig(**options, min_nodes=2, out=str(tmp_path / "federated")).resolved()
    admitted = {"references": f"{DITTO}, {SKEW},{__name__}:Wide"}
    grid = LocalGrid(config, blocks(2, str(tmp_path / "nodes"), **admitted), True)
    server.run(grid, config, simulated=False)
    wanted = [line["before"] for line in simulated.metrics]
    assert [line["before"] for line in metrics(tmp_path / "federated")] == wanted


def test_a_node_imports_nothing_that_its_own_config_does_not_name(tmp_path):
    pytest.importorskip("flwr")
    from feddwa.flower.settings import FlowerConfig
    from feddwa.flower.site import Refusal, admit

    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'proof')!r}, 'w')\n")
    name = f"{tmp_path}/hostile.py:X"
    for option in ("algorithm", "model", "partition", "dataset"):
        config = FlowerConfig(**{option: name})
        with pytest.raises(Refusal, match=f"{option}: a reference that the node config does not name"):
            admit(config, (("references", DITTO),))
        admit(config, (("references", f"{DITTO},{name}"),))
    with pytest.raises(Refusal, match="model: "):
        admit(FlowerConfig(model="mlp@/etc/weights.safetensors"), ())
    assert not (tmp_path / "proof").exists()


@pytest.mark.slow
def test_inside_the_package_an_algorithm_is_one_file(tmp_path):
    package = tmp_path / "feddwa"
    shutil.copytree(Path(feddwa.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (EXTEND / "ditto.py").read_text().replace("class Ditto", "class ZPulled")
    (package / "algorithms" / "zpulled.py").write_text(source)
    code = (
        "from feddwa.algorithms import ALGORITHMS, ZPulled; import feddwa; print(*ALGORITHMS)\n"
        "feddwa.run(algorithm='zpulled', clients=4, rounds=1)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert done.stdout.split() == [*ALGORITHMS, "zpulled"], done.stderr
    assert done.returncode == 0


def test_the_registry_has_the_papers_order():
    from feddwa_reproduction import specs

    paper = list(specs.methods())
    assert [name for name in ALGORITHMS if name in paper] == paper
    assert list(ALGORITHMS)[len(paper) :] == sorted(set(ALGORITHMS) - set(paper))
