"""Generated command lines and configurations, run in this process: a result, or one clear line. Never a traceback.

Every command gets options and values from one corpus of what people and programs mistype: numbers that are too large,
too small, no numbers at all; text that is markup, a control character, half a character, a path. Runs are tiny. The
number of cases of each kind is FEDDWA_FUZZ.
"""

import contextlib
import io
import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.cli.parser import arguments_of
from feddwa.config import RunConfig
from feddwa.data.partition import PARTITIONS
from feddwa.errors import InputError
from feddwa.params import LARGEST, build, fields_of, in_words
from feddwa.params import check as check_values
from tests.conftest import FUZZED

CASES = int(os.environ.get("FEDDWA_FUZZ", "60"))
NUMBERS = (
    "0", "1", "2", "3", "-1", "0.5", "1e-300", "1e300", "nan", "inf", "-inf", "1e400", "10000000", "1000000000",
    str(2**63), str(2**64), "9" * 30, "9" * 5000, "1_0", " 2", "2 ", "\uff12", "+2", "0x10", "2.0", "1e1", "--1", "",
)  # fmt: skip
TEXTS = (
    "", " ", "[/x]", "[bold]", "[red]x[/red]", "a\nb", "a\tb", "\x1b[31m", "\x7f", "\x00", "\udcff", "\u2028", "é",
    "名", "a" * 300, "-", "--", "=", "a=b", "../..", "/proc/self/mem", "/dev/null", "~", "*", "None", "true", "{}",
    "%s", "$HOME", "'", '"', "\\",
)  # fmt: skip
FAULTS = (
    "dropout=0.5", "dropout=0", "nan=1", "straggler=0.5", "dropout", "x=1", "dropout=2", "dropout=nan", "dropout=-0.1",
    "nan=0.1,nan=0.1", ",", " ", "dropout=0.5,", "dropout=1_0", "=", "dropout==1",
)  # fmt: skip
ATTACKS = (
    "random=0.4,scaled=0.4", "sign-flip=0.34", "alie=0.3", "ipm=0.5", "min-max=0.4", "free-rider=0", "min-sum=0.3",
    "x=1", "random=0.7,scaled=0.7", "sign-flip=0.01", "alie", "alie=nan", "ipm=1", ",", "=", "alie==1", "a.py:B=0.2",
    "label-flip=0.34", "backdoor=0.4", "collusion=0.3",
)  # fmt: skip
DEFENCES = (
    "clip", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "centred-clipping", "nnm,median",
    "clip,geometric-median", "clip,clip", "wall", ",", " ", "a.py:B", "median=0.2",
)  # fmt: skip
REPEATED = ("epochs", "guidance_epochs", "inner_steps", "mixing_steps", "tune_epochs", "adapt_steps", "rounds")
PLACES = ("run", "cut", "nowhere", "tiny.npz", "full", "[/x]", "a\nb", "")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with data of sixty points, a finished run, an interrupted one, and a folder with something else."""
    folder, rng, y = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0), np.arange(60) % 3
    x = (rng.normal(size=(60, 6)) + y[:, None]).astype(np.float32)
    np.savez(folder / "tiny.npz", x=x, y=y, client=np.arange(60) // 20)
    (folder / "full").mkdir()
    (folder / "full" / "old").write_text("kept")
    common = {"dataset": str(folder / "tiny.npz"), "partition": "iid", "clients": 3, "rounds": 2, "device": "cpu"}
    feddwa.run(out=str(folder / "run"), **common)

    def stop(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out=str(folder / "cut"), observe=stop, **common)
    return folder


@pytest.fixture
def here(place, monkeypatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FEDDWA_CACHE", str(place / "cache"))
    monkeypatch.delenv("FEDDWA_DATA", raising=False)
    return place


def call(arguments: list[str]) -> tuple[int, str]:
    """Exit status and stderr. Both streams are UTF-8, as in a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(arguments)
        except SystemExit as leaving:  # --help
            status = int(leaving.code or 0)
    err.flush()
    return status, err.buffer.getvalue().decode()


def value_of(rng: random.Random, option: str) -> str:
    """Something for an option: mostly what it takes, or nearly."""
    names = {
        "--algorithm": [*ALGORITHMS], "--algorithms": [*ALGORITHMS], "--partition": [*PARTITIONS],
        "--model": ["mlp", "linear", "cifar-cnn"], "--device": ["cpu", "cuda", "tpu"], "--fault": FAULTS,
        "--attack": ATTACKS, "--defence": DEFENCES,
        "--backend": ["vectorised", "sequential"], "--dtype": ["float64", "bfloat16"], "--scale": ["smoke", "paper"],
        "--batchnorm": ["local", "mean", "all-local"], "--dataset": ["tiny.npz", "digits"], "--param": None,
    }  # fmt: skip
    if option == "--param" and rng.random() < 0.9:
        return f"{rng.choice(PARAMS)}={rng.choice((*NUMBERS, 'true', 'none', 'classes', 'last'))}"
    if names.get(option) and rng.random() < 0.7:
        return rng.choice(names[option])
    return rng.choice(NUMBERS if rng.random() < 0.6 else TEXTS)


PARAMS = sorted(
    {key for kind in (*ALGORITHMS.values(), *PARTITIONS.values()) for key in fields_of(kind) if key not in REPEATED}
    | {"feddwa.top_k", "iid.", "", "magic", ".top_k", "feddwa.", "fedavg.top_k", "a.b.c", "[/x]", "a\nb"}
)


def command_line(rng: random.Random, number: int) -> list[str]:
    """One of all commands with a few options, in either spelling, now and then twice or without a value."""
    name = rng.choice(["run"] * 6 + ["compare", "partition", "doctor"] * 2 + sorted(cli.COMMANDS))
    options = [option for option in arguments_of(cli.COMMANDS[name].options) if option.field != "rounds"]
    line = [name]
    for option in rng.sample(options, min(len(options), rng.randint(0, 3))):
        flag, value = option.label, value_of(rng, option.label)
        if option.mark.positional:
            continue
        if flag[2:].replace("-", "_") in REPEATED and re.fullmatch(r"[0-9]{1,30}", value):
            value = "2" if int(value) <= LARGEST else value
        line += rng.choice([[f"{flag}={value}"], [flag, value], [flag]] if option.plain is not bool else [[flag]])
    words = [option for option in options if option.mark.positional]
    for word in words:
        line.append(rng.choice(word.choices or PLACES) if rng.random() < 0.8 else rng.choice(TEXTS))
    given = " ".join(line)
    if name in ("run", "compare", "tune", "federate", "doctor", "partition"):
        usual = {"dataset": "tiny.npz", "partition": "iid", "clients": "3", "device": "cpu", "out": f"new/{number}"}
        usual |= {"rounds": "1"} if name != "partition" else {"out": f"p{number}.png"}
        usual |= {"trials": "2", "seeds-final": "0"} if name == "tune" else {}
        line += [f"--{key}={value}" for key, value in usual.items() if f"--{key}" not in given]
    if name == "reproduce":
        line.append("--dry-run")  # what it would train are the paper's experiments
    if name == "federate":
        line.append("--fault=dropout=1")  # refused: real processes are other tests' business
    return line


def check(number: int, arguments: list[str]) -> int:
    """Run a command line: its status, which is 0, 1 or 2, and with 2 there is exactly one line that can be shown."""
    try:
        status, errors = call(arguments)
    except Exception as error:
        raise AssertionError(f"case {number}: {arguments}") from error
    assert status in (0, 1, 2), (number, arguments, errors)
    if status == 2:
        assert re.fullmatch(r"feddwa: [^\n]+\n", errors), (number, arguments, errors)
        assert errors[:-1].isprintable(), (number, arguments, errors)
    return status


@pytest.mark.slow
def test_any_command_line_is_a_result_or_one_line(here):
    for number in range(CASES):
        FUZZED["whole command lines"] += 1
        check(number, command_line(random.Random(number), number))


def configuration(rng: random.Random) -> str:
    """A TOML file with a few options, of their type or of another."""
    lines = []
    for key in rng.sample([*fields_of(RunConfig), "version", "colour"], rng.randint(1, 4)):
        text = value_of(rng, f"--{key.replace('_', '-')}")
        if key in REPEATED and re.fullmatch(r"[0-9]{1,30}", text) and int(text) <= LARGEST:
            text = "2"
        quoted = json.dumps(text, ensure_ascii=rng.random() < 0.5)
        written = rng.choice([text, quoted, f"[{quoted}]", f"[{quoted}, {quoted}]", "true", "1979-05-27", "{ a = 1 }"])
        lines.append(f"{key} = {written}\n")
    return "".join(lines)


def test_any_configuration_file_is_a_result_or_one_line(here):
    usual = {"dataset": "tiny.npz", "partition": "iid", "clients": "3", "rounds": "1", "device": "cpu"}
    for number in range(CASES):
        FUZZED["runs from configuration files"] += 1
        text = configuration(random.Random(number))
        Path("fuzzed.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
        more = [f"--{key}={value}" for key, value in usual.items() if f"{key} =" not in text]
        check(number, ["run", "--config", "fuzzed.toml", f"--out=configured/{number}", *more])


def whole_numbers(kinds: dict[str, type]) -> list[tuple[str, str]]:
    """Owner and name of every hyper-parameter or option that is a whole number."""
    return [
        (owner, name)
        for owner, kind in kinds.items()
        for name, (type_, _) in fields_of(kind).items()
        if in_words(type_) == "a whole number"
    ]


@pytest.mark.parametrize("value", [10**9, 2**63, 2**64, 10**30])
def test_every_whole_number_is_bounded(value):
    """No count of a method or partition, and no option of a command, may be so large that nothing ends."""
    for owner, name in whole_numbers({**ALGORITHMS, **PARTITIONS}):
        kind = {**ALGORITHMS, **PARTITIONS}[owner]
        with pytest.raises(InputError, match=rf"^--param {name}: got {value}, must be at most [\d,]+$"):
            build(kind, {name: str(value)}, owner)
        with pytest.raises(InputError, match=rf"^--param {name}: got {value}, must be (at most|[\d.]+)"):
            check_values(kind(**{name: value}))
    commands = {name: command.options for name, command in cli.COMMANDS.items()}
    for command, name in whole_numbers(commands):
        if name == "seed" and value == 10**9:
            continue  # any number of 63 bits is a seed
        flag = f"--{name.replace('_', '-')}"
        status, errors = call([command, f"{flag}={value}"])
        assert status == 2, (command, name)
        assert re.match(rf"feddwa: {flag}: got {value}, must be at most", errors), errors


def test_an_instance_with_a_count_without_end_is_refused():
    data = [(np.ones((4, 2), np.float32), np.arange(4) % 2)] * 2
    with pytest.raises(InputError, match="--param inner_steps: got 1000000000, must be at most 10,000"):
        feddwa.run(
            model=torch.nn.Linear(2, 2),
            dataset=data,
            algorithm=ALGORITHMS["pfedme"](inner_steps=10**9),
            rounds=1,
            out=False,
        )
