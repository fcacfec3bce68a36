"""The command line: every command and option, the exit status, and one line on stderr for every bad request."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import feddwa
from feddwa import cli, models
from feddwa.algorithms import ALGORITHMS
from feddwa.data.partition import PARTITIONS
from feddwa.data.sources import DATASETS
from feddwa.params import fields_of

QUICK = ("--clients", "4", "--rounds", "2")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDWA_DATA", raising=False)


@pytest.fixture
def call(capsys):
    """`call("run", ...)` gives the exit status and what went to stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = cli.main(list(arguments))
        except SystemExit as leaving:  # --help
            status = leaving.code or 0
        return status, *capsys.readouterr()

    return call


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "PYTHONPATH": str(Path(feddwa.__file__).parents[1]), **environment}
    command = [sys.executable, "-m", "feddwa", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=surroundings)


# What there is.


def test_usage_and_version(call):
    for arguments in ((), ("-h",), ("--help",)):
        status, out, err = call(*arguments)
        assert (status, err) == (0, "")
        assert all(command in out for command in cli.COMMANDS)
    assert call("--version") == (0, f"feddwa {feddwa.__version__}\n", "")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_its_options(call, command):
    status, out, err = call(command, "--help")
    assert (status, err) == (0, "")
    assert f"usage: feddwa {command}" in out
    if "dataset" in fields_of(cli.COMMANDS[command].options):  # about a run
        assert "--config FILE.toml" in out


def test_the_promised_options_are_there(call):
    out = call("run", "--help")[1]
    promised = (
        "--algorithm --dataset --model --partition --clients --participation --rounds --epochs --batch-size --lr "
        "--seed --device --backend --out --param --data-dir --chunk --dtype --batchnorm"
    )
    assert all(re.search(rf"{option}\b", out) for option in promised.split())
    assert "--algorithms" in call("compare", "--help")[1]


@pytest.mark.parametrize(
    ("what", "names"),
    [("algorithms", ALGORITHMS), ("datasets", DATASETS), ("models", models.MODELS), ("partitions", PARTITIONS)],
)
def test_lists(call, what, names):
    status, out, _ = call("list", what)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(names)
    status, out, _ = call("list", what, "--json")
    assert status == 0
    assert list(json.loads(out)) == list(names)
    assert all(json.loads(out).values())


# Runs.


def test_run_with_every_option(call):
    options = {
        "algorithm": "fedavg", "dataset": "digits", "model": "digits-cnn", "partition": "dirichlet", "clients": "5",
        "participation": "0.6", "rounds": "2", "epochs": "2", "batch-size": "16", "lr": "0.05", "seed": "9",
        "device": "cpu", "backend": "sequential", "dtype": "float64", "chunk": "3", "out": "run", "data-dir": ".",
        "batchnorm": "mean",
    }  # fmt: skip
    flags = [f"--{key}={value}" for key, value in options.items()]
    status, out, err = call("run", *flags, "--param", "alpha=0.9", "--param", "dirichlet.min_samples=10")
    assert (status, err) == (0, "")
    written = tomllib.loads(Path("run/config.toml").read_text())
    for key, value in {**options, "data-dir": str(Path.cwd())}.items():
        if key != "out":
            assert str(written[key.replace("-", "_")]) == value
    assert {"dirichlet.alpha=0.9", "dirichlet.min_samples=10", "dirichlet.balance=True"} <= set(written["param"])
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["algorithm"], summary["clients"], summary["seed"]) == ("fedavg", 5, 9)
    assert "fedavg: done, accuracy" in out
    assert "run/weights.png" in out


def test_run_goes_to_a_new_directory(call):
    for _ in range(2):
        assert call("run", *QUICK)[0] == 0
    assert len(list(Path("runs").iterdir())) == 2


def test_a_written_configuration_runs_again(call):
    assert call("run", *QUICK, "--seed", "3", "--param", "top_k=2", "--out", "first")[0] == 0
    assert call("run", "--config", "first/config.toml", "--out", "again")[0] == 0
    assert call("run", "--rounds", "1", "--config=first/config.toml", "--out", "shorter")[0] == 0
    text = Path("first/config.toml").read_text()
    assert Path("again/config.toml").read_text() == text
    assert Path("shorter/config.toml").read_text() == text.replace("rounds = 2", "rounds = 1")
    assert Path("first/clients.jsonl").read_bytes() == Path("again/clients.jsonl").read_bytes()
    assert Path("first/weights.safetensors").read_bytes() == Path("again/weights.safetensors").read_bytes()


def test_compare(call):
    status, out, err = call(
        "compare", "--algorithms", "feddwa", "local", "fedavg", *QUICK, "--out", "all", "--param", "top_k=2", "--param",
        "groups=2", "--param", "feddwa.guidance=last",
    )  # fmt: skip
    assert (status, err) == (0, "")
    written = {"compare.toml", "feddwa", "local", "fedavg", "weights.png", "report.html"}
    assert {path.name for path in Path("all").iterdir()} == written
    params = {
        name: tomllib.loads(Path("all", name, "config.toml").read_text())["param"]
        for name in ("feddwa", "local", "fedavg")
    }
    assert {"feddwa.top_k=2", "feddwa.guidance=last", "rotations.groups=2"} <= set(params["feddwa"])
    assert params["local"] == params["fedavg"] == ["rotations.groups=2"]
    assert all(f"│ {name} " in out for name in params)
    # What one algorithm does alone it does in company, too.
    assert call("run", "--config", "all/local/config.toml", "--out", "alone")[0] == 0
    assert Path("alone/clients.jsonl").read_bytes() == Path("all/local/clients.jsonl").read_bytes()


def test_compare_takes_a_runs_configuration(call):
    assert call("run", *QUICK, "--algorithm", "local", "--out", "run")[0] == 0
    status, out, _ = call("compare", "--config", "run/config.toml", "--algorithms", "local", "fedavg", "--out", "all")
    assert status == 0
    assert "│ fedavg " in out


def test_partition(call):
    status, out, err = call("partition", "--partition", "groups", "--clients", "8", "--out", "p.png", "--seed", "1")
    assert (status, err) == (0, "")
    assert "label distance mean: 0." in out
    assert "effective classes mean: " in out
    assert "wrote p.png" in out
    assert Path("p.png").stat().st_size > 10_000
    Path("c.toml").write_text("partition = 'iid'\nclients = 3\n")
    status, out, _ = call("partition", "--config", "c.toml")
    assert (status, "clients: 3\n" in out) == (0, True)


def test_natural_clients(call):
    rows = "\n".join(f"{i / 60},{i % 2},{i % 3}" for i in range(60))
    Path("sites.csv").write_text(f"a,label,client\n{rows}\n")
    own = ("--dataset", "sites.csv", "--partition", "natural")
    status, out, _ = call("partition", *own)
    assert (status, "clients: 3\n" in out) == (0, True)
    assert call("run", *own, "--model", "linear", "--rounds", "1", "--out", "run")[0] == 0
    assert tomllib.loads(Path("run/config.toml").read_text())["clients"] == 3


# Bad requests.

BAD = {
    "walk": "walk: unknown command; valid: run, compare, ",
    "list": "algorithms, datasets, models, partitions: missing; What to list; see feddwa list --help",
    "list colours": "got 'colours', must be one of algorithms, datasets, models, partitions",
    "figure": "curves, weights, .*: missing; Which figure",
    "figure pie runs": "got 'pie', must be one of curves, weights, similarity",
    "resume": "DIR: missing; The directory of the run",
    "completion tcsh": "got 'tcsh', must be one of bash, zsh, fish",
    "report": "RUN: got 'none', must be one run directory or more",
    "report nowhere": "nowhere: no such directory",
    "report full": "full: no run in it",
    "figure curves full -o p.gif": "-o: got 'p.gif', must be a file name that ends in .png, .svg, .pdf",
    "doctor nowhere": "nowhere: no such directory",
    "doctor --rounds soon": "--rounds: got 'soon', must be a whole number",
    "list models --xml": "--xml: unknown option; valid: --json",
    "run --algorithm magic": "--algorithm: unknown name 'magic'; valid: local, fedavg",
    "run --dataset nowhere": "--dataset: unknown name 'nowhere'.*valid: digits, .*or a path",
    "run --model huge": "--model: unknown name 'huge'; valid: cifar-cnn",
    "run --model cifar-cnn": "--model cifar-cnn: takes .*models that fit: digits-mlp",
    "run --partition fair": "--partition: unknown name 'fair'; valid: pathological",
    "run --device tpu": "--device: unknown name 'tpu'; valid: auto, cpu, cuda",
    "run --backend fast": "--backend: unknown name 'fast'; valid: vectorised, sequential",
    "run --batchnorm none": "--batchnorm: unknown name 'none'; valid: local, mean, all-local",
    "run --param top_k=0": "--param top_k: got 0, must be at least 1",
    "run --participation 0": "--participation: got 0.0, must be above 0 and at most 1",
    "run --participation 1.5": "--participation: got 1.5, must be above 0 and at most 1",
    "run --participation 0.01": "--participation: got 0.01, must be at least 1/20",
    "run --partition pathological --param variant=classes --param classes_per_client=11":
        "--param classes_per_client: got 11, must be at most 10",
    "run --partition pathological --param classes_per_client=11": "--param classes_per_client: only variant=classes",
    "run --partition dirichlet --param alpha=0": "--param alpha: got 0.0, must be .*above 0",
    "run --partition dirichlet --param alpha=-1": "--param alpha: got -1.0, must be",
    "run --lr -0.1": "--lr: got -0.1, must be a finite number, 0 or more",
    "run --algorithm fedavgm --param beta=-1": "--param beta: got -1.0, must be",
    "run --clients 0": "--clients: got 0, must be at least 1",
    "run --clients 1000000000": "--clients: got 1000000000, must be at most 10,000,000",
    f"run --clients {10**400}": "--clients: got 10{400}, must be at most 10,000,000",
    "run --data-dir nowhere": "--data-dir: no folder nowhere",
    "partition --dataset /": "--dataset /: ",
    "run --clients 5000": "--clients: got 5000, must be at most 898: each needs",
    "run --rounds 0": "--rounds: got 0, must be at least 1",
    "run --epochs 0": "--epochs: got 0, must be at least 1",
    "run --batch-size 0": "--batch-size: got 0, must be at least 1",
    "run --chunk 0": "--chunk: got 0, must be at least 1",
    "run --seed -1": "--seed: got -1, must be from 0",
    "run --clients many": "--clients: got 'many', must be a whole number",
    "run --rounds=1.5": "--rounds: got '1.5', must be a whole number",
    "run --lr fast": "--lr: got 'fast', must be a number",
    "run --lr": "--lr: no value, must be a number",
    "run --speed 3": "--speed: unknown option; valid: --algorithm, --dataset",
    "compare --algorithm local": "--algorithm: unknown option; valid: --dataset.*--algorithms",
    "run quickly": "quickly: unknown option; valid: --algorithm",
    "run --param k=3": "--param k: .*valid for feddwa: top_k, guidance.*; rotations: groups",
    "run --param fedavg.k=3": "--param fedavg.k=3: .*valid: feddwa, rotations",
    "run --param top_k": "--param: got 'top_k', must be of the form KEY=VALUE",
    "run --param top_k=few": "--param top_k: got 'few', must be a whole number",
    "run --param guidance=behind": "--param guidance: got 'behind', must be one of ahead, last",
    "run --config": "--config: no value, must be the path of a TOML file",
    "run --config --rounds 3": "--config: no value",
    "run --config no.toml": "--config no.toml: No such file",
    "run --config bad.toml": "--config bad.toml: not a TOML file",
    "run --config=odd.toml": "--config odd.toml: unknown name 'round'; valid: algorithm",
    "run --config type.toml": "--config type.toml: rounds: got '3', must be a whole",
    "run --out bad.toml/run": "--out bad.toml/run: cannot write there: Not a directory",
    "run --out bad.toml": "--out bad.toml: cannot write there: File exists",
    "run --out /proc/run": "--out /proc/run: cannot write there",
    "run --out full": "--out full: is not empty; give a new directory",
    "compare --out full": "--out full: is not empty",
    "compare --algorithms feddwa magic": "--algorithms: unknown name 'magic'; valid: local",
    "compare --algorithms": "--algorithms: .*must be one name or more",
    "compare --partition fair": "--partition: unknown name 'fair'",
    "compare --algorithms local feddwa --param k=3":
        "--param k=3: .*valid for local: none; feddwa: top_k.*; rotations: groups",
    "compare --param top_k=0": "--param top_k: got 0, must be at least 1",
    "partition --clients 0": "--clients: got 0, must be at least 1",
    "partition --param alpha=1": "--param alpha: .*valid for local: none; rotations: groups",
    "partition --out p.docx": "--out p.docx: cannot write the picture",
    "run --partition natural": "--partition natural: dataset digits has no client column",
    "run --dataset mnist --data-dir none": "--data-dir: no folder none",
}  # fmt: skip


@pytest.mark.parametrize("request_", BAD)
def test_a_bad_request_is_one_line(call, request_):
    Path("bad.toml").write_text("rounds = = 3\n")
    Path("odd.toml").write_text("round = 3\n")
    Path("type.toml").write_text("rounds = '3'\n")
    Path("full").mkdir()
    Path("full/old").write_text("kept")
    there = sorted(Path().rglob("*"))
    arguments = request_.split()
    if arguments[0] in ("run", "compare") and "--out" not in arguments:
        arguments[1:1] = ["--out", "new/run"]
    status, _, err = call(*arguments)
    assert status == 2
    assert err.startswith("feddwa: ")
    assert err.count("\n") == 1
    assert re.search(BAD[request_], err)
    assert sorted(Path().rglob("*")) == there  # nothing was written


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("out of memory")])
def test_a_failure_that_is_not_the_requests_fault(call, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("feddwa.experiment.run_task", fail)
    status, _, err = call("run", *QUICK)
    assert (status, err) == (1, f"feddwa: failed: {error}\n")


def test_stopped_by_hand(call, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("feddwa.experiment.run_task", stop)
    assert call("run", *QUICK)[0] == 130


# As a real process.


def test_a_process_succeeds_and_a_plain_terminal_is_enough():
    done = process("run", *QUICK, "--out", "run", PYTHONIOENCODING="ascii", LANG="C", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "| feddwa " in done.stdout
    assert (Path("run") / "weights.png").exists()


def test_a_process_refuses():
    done = process("run", "--rounds", "soon", PYTHONIOENCODING="ascii", LANG="C", PYTHONUTF8="0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "feddwa: --rounds: got 'soon', must be a whole number; see feddwa run --help\n"
