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
from feddwa.cli.parser import parse
from feddwa.data.catalogue import DATASETS
from feddwa.data.partition import PARTITIONS
from feddwa.groups import by_kind
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
    libraries = ["torchvision:NAME", "timm:NAME", "hf:NAME"] if what == "models" else []
    listed = [line.split()[0] for line in out.splitlines() if line]
    if what == "algorithms":  # by kind, under headings
        assert listed == [word for kind, own in by_kind().items() for word in (f"@{kind}:", *own)]
        listed = sorted((word for word in listed if not word.startswith("@")), key=list(names).index)
    assert listed == [*names, *libraries]
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
    summary = json.loads(Path("run/record.json").read_text())["summary"]
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


@pytest.mark.slow
def test_compare_measures_clusterfls_tolerance_and_says_who_does_not_fit(call, tmp_path):
    """By default ClusterFL would be FedAvg on digits, to the digit, and FedAMP's self weights are negative."""
    options = ("--algorithms", "clusterfl", "fedavg", "fedamp", "--clients", "8", "--rounds", "24", "--out", "all")
    status, out, _ = call("compare", *options)
    assert status == 0
    text = re.sub(r"\s+", " ", out)
    (eps2,) = re.findall(r"clusterfl: eps2=([\d.]+), measured on these data by the rule", text)
    config = (tmp_path / "all/clusterfl/config.toml").read_text()
    assert f'"clusterfl.eps2={eps2}"' in config
    assert f'"clusterfl.eps2={eps2}"' in (tmp_path / "all/compare.toml").read_text()  # resume measures nothing
    lines = [json.loads(line) for line in (tmp_path / "all/clusterfl/metrics.jsonl").read_text().splitlines()]
    assert lines[-2]["method"]["cluster_count"] > 1
    assert re.search(r"warn fedamp: a client's own weight is negative in \d+ of 24 rounds", text)
    assert "warn clusterfl" not in text
    assert "own weight is negative in" in (tmp_path / "all/report.html").read_text()
    _, out, _ = call("compare", *options[:-1], "given", "--param", "eps2=1.6")
    text = re.sub(r"\s+", " ", out)
    assert "measured on these data" not in text
    assert re.search(r"warn clusterfl: no update was longer than [\d.]+ and eps2=1.6: nothing splits", text)
    assert "no update was longer than" in (tmp_path / "given/report.html").read_text()


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
    "list": "WHAT: missing; What to list: algorithms, datasets, .*, attacks or defences; see feddwa list --help",
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
    "run --model cifar-cnn": "--model cifar-cnn: takes .*models that fit: conv-dropout, digits-mlp",
    "run --partition fair": "--partition: unknown name 'fair'; valid: pathological",
    "run --device tpu": "--device: unknown name 'tpu'; valid: auto, cpu, cuda",
    "run --backend fast": "--backend: unknown name 'fast'; valid: vectorised, sequential, auto",
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
    f"run --clients {10**400}": r"--clients: got 10+\.\.\.0+ \(401 characters\), must be at most 1,000,000",
    "run --data-dir nowhere": "--data-dir: no folder 'nowhere'",
    "partition --dataset /": "--dataset /: ",
    "run --clients 5000": "--clients: 5000 are too many for 1797 samples: each needs",
    "run --rounds 0": "--rounds: got 0, must be at least 1",
    "run --epochs 0": "--epochs: got 0, must be at least 1",
    "run --batch-size 0": "--batch-size: got 0, must be at least 1",
    "run --chunk 0": "--chunk: got 0, must be at least 1",
    "run --seed -1": "--seed: got -1, must be from 0",
    "run --clients many": "--clients: got 'many', must be a whole number",
    "run --rounds=1.5": "--rounds: got '1.5', must be a whole number",
    "run --lr fast": "--lr: got 'fast', must be a number",
    "run --lr": "--lr: no value, must be a number",
    "run --quiet=yes": "--quiet: takes no value",
    "report runs -o": "--out: no value, must be a string",
    "new algorithm": "NAME: missing; Name of the class",
    "completion bash --speed 3": r"--speed: unknown option; valid: none, only SHELL; see",
    "resume runs --speed 3": r"--speed: unknown option; valid: --workers; see",
    "run --speed 3": "--speed: unknown option; valid: .*--algorithm, --dataset",
    "compare --algorithm local": "--algorithm: unknown option; valid: .*--dataset.*--algorithms",
    "run quickly": "quickly: unknown option; valid: .*--algorithm",
    "run --param k=3": "--param k: .*valid for feddwa: top_k, guidance.*; rotations: groups",
    "run --param fedavg.k=3": "--param fedavg.k=3: .*valid: feddwa, rotations",
    "run --param top_k": "--param: got 'top_k', must be of the form KEY=VALUE",
    "run --param top_k=few": "--param top_k: got 'few', must be a whole number",
    "run --param guidance=behind": "--param guidance: got 'behind', must be one of ahead, last",
    "run --config": "--config: no value, must be the path of a TOML file",
    "run --config --rounds 3": "--config: no value",
    "run --config no.toml": "--config no.toml: No such file",
    "run --config bad.toml": "--config bad.toml: not a TOML file",
    "run --config=odd.toml": "--config odd.toml: unknown name 'round'; valid: .*algorithm",
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
    "run --dataset mnist --data-dir none": "--data-dir: no folder 'none'",
    "run --clients 1000000000": "--clients: got 1000000000, must be at most 1,000,000",
    "run --clients 100000000000000000000": "--clients: got 100000000000000000000, must be at most 1,000,000",
    "partition --clients 1000000": "--clients: 1000000 are too many for 1797 samples: .*take at most 898",
    "run --rounds 1000000000": "--rounds: got 1000000000, must be at most 100,000",
    "run --epochs 1000000000": "--epochs: got 1000000000, must be at most 10,000",
    "run --batch-size 99999999999999999999": "--batch-size: got 9+, must be at most 1,000,000",
    "run --chunk 99999999999999999999": "--chunk: got 9+, must be at most 1,000,000",
    "run --checkpoint-every 99999999999999999999": "--checkpoint-every: got 9+, must be at most 1,000,000",
    "run --seed 9223372036854775808": "--seed: got 9+",
    "run --algorithm pfedme --param inner_steps=1000000000":
        "--param inner_steps: got 1000000000, must be at most 10,000",
    "run --param guidance_epochs=1000000000": "--param guidance_epochs: got 1000000000, must be at most 10,000",
    "reproduce table1 --seeds 1000000000": "--seeds: got 1000000000, must be at most 1,000",
    "reproduce table1 --jobs 1000000000": "--jobs: got 1000000000, must be at most 256",
    "reproduce table1 --time-limit nan": "--time-limit: got nan, must be a finite number",
    "federate --nodes 1000000000": "--nodes: got 1000000000, must be at most 1,000",
    "federate --deadline inf": "--deadline: got inf, must be a finite number above 0",
    "run --param top_k=3 --param top_k=4": "--param: got 'top_k=4', must be the only value of feddwa.top_k; it",
    "run --param top_k=3 --param feddwa.top_k=3": "--param: got 'feddwa.top_k=3', must be the only value of feddwa",
    "compare --param top_k=3 --param feddwa.top_k=4": "--param: got 'feddwa.top_k=4', must be the only value",
    "compare --algorithms local fedavg --param feddwa.top_k=3": "--param feddwa.top_k=3: no such hyper-parameter",
    "compare --algorithms local local": "--algorithms: got 'local', must be given once",
    "run --param top_k=1_0": "--param top_k: got '1_0', must be a whole number",
    "run --param top_k=\uff12": "--param top_k: got '\uff12', must be a whole number",
    "run --param guidance=last --param guidance_epochs=2":
        "--param guidance_epochs: got 2, must be 1 unless guidance=ahead",
    "run --algorithm perfedavg --param delta=0.1": "--param delta: got 0.1, must be 0.001 unless variant=hf",
    "run --attack sign-flip=0.01": "--attack sign-flip: got 0.01, must be 0, or above 0.025: it hits nobody of 20",
    "run --fault straggler=0.1 --participation 0.2": "--fault straggler: got 0.1, .* it hits nobody of 4",
    "run --fault dropout=nan": "--fault dropout: got nan, must be from 0 to 1",
    "run --fault dropout=1_0": "--fault dropout: got '1_0', must be a number",
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resume", "name\n"), r"DIR: got 'name\\n', must be text without control characters"),
        (("run", "--out", "a\nb"), r"--out: got 'a\\nb', must be text without control characters"),
        (("run", "--dataset", "\x1b[31m"), r"--dataset: got '\\x1b\[31m', must be text"),
        (("run", "--dataset", "\udcff"), r"--dataset: got '\\udcff', must be text"),
        (("report", "a\x00b"), r"RUN ...: got 'a\\x00b', must be text"),
        (("a\nb",), r"a\\nb: unknown command"),
        (("run", "--param", "top_k= 3"), r"--param top_k: got ' 3', must be a whole number"),
        (("run", "--fault", " "), r"--fault : no such fault; valid: dropout"),
        (("run", "--dataset", "d" * 5000), r"--dataset: unknown name 'd+\.\.\.d+' \(5002 characters\), and no"),
        (("run", "--dataset", f"{'d' * 300}.csv"), r"--dataset: unknown name 'd.* \(306 characters\), and no"),
        (("run", "--data-dir", "d/" * 5000), r"--data-dir: no folder 'd/.*' \(10002 characters\)"),
        (("run", "--out", "d" * 300), r"--out d+: cannot write there: File name too long"),
        (("run", "--config", "d" * 300), r"--config d+: File name too long"),
        (("run", "--model", f"{'d' * 300}.py:Net"), r"--model .*d+\.py:Net: there is no file "),
        (("run", "--model", f"linear@{'d' * 300}"), "--model linear"),
        (("resume", "d" * 300), r"'d+\.\.\.d+/tune\.toml' \(312 characters\): too long, no file or folder"),
        (("report", "d" * 5000), r"'d+\.\.\.d+' \(5002 characters\): too long, no file or folder can have this name"),
        (("run", "--rounds", "9" * 5000), r"--rounds: got '9+\.\.\.9+' \(5002 characters\), must be a whole number"),
    ],
)  # fmt: skip
def test_whatever_is_in_a_word_it_is_one_line(call, arguments, message):
    status, _, err = call(*arguments)
    assert status == 2
    assert re.fullmatch(r"feddwa: [^\n]+\n", err)
    assert err[:-1].isprintable()
    assert re.search(message, err)


def test_several_lines_of_a_failure_are_one(call, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of memory\n  tried to allocate\x1b[0m")

    monkeypatch.setattr("feddwa.experiment.run_task", fail)
    assert call("run", *QUICK)[::2] == (1, "feddwa: failed: out of memory\\n  tried to allocate\\x1b[0m\n")


@pytest.mark.slow
def test_square_brackets_are_no_markup(call):
    for out in ("[/x]", "[bold]", ":smile:"):
        status, shown, err = call("run", *QUICK, "--out", out)
        assert (status, err) == (0, "")
        assert f"  {out}/\n" in shown
        assert (Path(out) / "record.json").exists()
    status, shown, _ = call("partition", "--clients", "4", "--out", "[/x].png")
    assert (status, "wrote [/x].png" in shown) == (0, True)
    assert call("resume", "[/x]")[0] == 0
    assert call("compare", "--algorithms", "local", *QUICK, "--out", "[/y]")[0] == 0
    status, shown, _ = call("report", "[/x]", "[/y]", "-o", "[/z].html")
    assert (status, "wrote [/z].html" in shown) == (0, True)


@pytest.mark.slow
def test_the_command_line_prevails_over_the_files_hyper_parameters(call):
    assert call("run", *QUICK, "--param", "top_k=2", "--out", "first")[0] == 0
    for name, given in (("plain", "top_k=3"), ("named", "feddwa.top_k=3")):
        assert call("run", "--config", "first/config.toml", "--param", given, "--out", name)[0] == 0
        params = tomllib.loads(Path(name, "config.toml").read_text())["param"]
        assert [entry for entry in params if "top_k" in entry] == ["feddwa.top_k=3"]


def test_what_a_file_turns_on_the_command_line_turns_off():
    Path("c.toml").write_text("quiet = true\nrounds = 3\n")
    options = cli.COMMANDS["run"].options
    assert parse("run", options, ["--config", "c.toml"]).quiet
    assert not parse("run", options, ["--config", "c.toml", "--no-quiet"]).quiet
    assert parse("federate", cli.COMMANDS["federate"].options, ["--no-evaluate-absent"]).evaluate_absent is False


@pytest.mark.parametrize(
    "words", ["curves a b -o p.png", "curves -o p.png a b", "-o p.png curves a b", "curves a --out=p.png b"]
)
def test_words_and_options_come_in_any_order(words):
    found = parse("figure", cli.COMMANDS["figure"].options, words.split())
    assert (found.kind, found.runs, found.out) == ("curves", ("a", "b"), "p.png")


def test_none_is_a_name_and_no_number():
    found = parse("run", cli.COMMANDS["run"].options, ["--out", "none", "--clients", "none", "--lr", "1e-3"])
    assert (found.out, found.clients, found.lr) == ("none", None, 0.001)


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


@pytest.mark.slow
def test_a_process_succeeds_and_a_plain_terminal_is_enough():
    done = process("run", *QUICK, "--out", "run", PYTHONIOENCODING="ascii", LANG="C", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "| feddwa " in done.stdout
    assert (Path("run") / "weights.png").exists()


@pytest.mark.slow
def test_a_path_that_the_terminal_cannot_show():
    done = process("run", *QUICK, "--out", "名", "--quiet", PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u540d\n", "")


def test_a_process_refuses():
    done = process("run", "--rounds", "soon", PYTHONIOENCODING="ascii", LANG="C", PYTHONUTF8="0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "feddwa: --rounds: got 'soon', must be a whole number; see feddwa run --help\n"
