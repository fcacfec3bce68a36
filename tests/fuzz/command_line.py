"""Whole command lines of every command: options that people mistype, in either spelling, now and then twice."""

import random
import re
import shutil
from pathlib import Path

from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.cli.parser import Argument, arguments_of
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.data.partition import PARTITIONS
from feddwa.errors import InputError
from feddwa.params import LARGEST, fields_of
from tests.fuzz import oracle, place
from tests.fuzz.case import NUMBERS, TEXTS, Case, Target

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
NAMES = {
    "--algorithm": [*ALGORITHMS], "--algorithms": [*ALGORITHMS], "--partition": [*PARTITIONS],
    "--model": ["mlp", "linear", "cifar-cnn"], "--device": ["cpu", "cuda", "tpu"], "--fault": FAULTS,
    "--attack": ATTACKS, "--defence": DEFENCES, "--backend": ["vectorised", "sequential"],
    "--dtype": ["float64", "bfloat16"], "--scale": ["smoke", "paper"], "--batchnorm": ["local", "mean", "all-local"],
    "--dataset": ["tiny.npz", "digits"],
}  # fmt: skip
WORK = ("epochs", "guidance_epochs", "inner_steps", "mixing_steps", "tune_epochs", "adapt_steps", "rounds",
        "local_steps", "trials", "seeds_final", "steps")  # fmt: skip  # of which one may well ask for much
PARAMS = sorted(
    {key for kind in (*ALGORITHMS.values(), *PARTITIONS.values()) for key in fields_of(kind) if key not in WORK}
    | {"feddwa.top_k", "iid.", "", "magic", ".top_k", "feddwa.", "fedavg.top_k", "a.b.c", "[/x]", "a\nb"}
)
PLACES = ("run", "cut", "nowhere", "tiny.npz", "full", "[/x]", "a\nb", "")
TRAINS = ("run", "compare", "tune", "federate", "doctor", "partition")


def value_of(rng: random.Random, option: str) -> str:
    """Something for an option: mostly what it takes, or nearly."""
    if option == "--param" and rng.random() < 0.9:
        return f"{rng.choice(PARAMS)}={rng.choice((*NUMBERS, 'true', 'none', 'classes', 'last'))}"
    if option in NAMES and rng.random() < 0.7:
        return rng.choice(NAMES[option])
    text = rng.choice(NUMBERS if rng.random() < 0.6 else TEXTS)
    much = option[2:].replace("-", "_") in WORK and re.fullmatch(r"[0-9]{1,30}", text) and int(text) <= LARGEST
    return "2" if much else text


def words_of(rng: random.Random, name: str) -> list[str]:
    """One of a command's lines."""
    options = [option for option in arguments_of(cli.COMMANDS[name].options) if option.field != "rounds"]
    line = [name]
    for option in rng.sample(options, min(len(options), rng.randint(0, 3))):
        flag, value = option.label, value_of(rng, option.label)
        if not option.mark.positional:
            line += [flag] if option.plain is bool else rng.choice([[f"{flag}={value}"], [flag, value], [flag]])
            line += [f"{flag}={value_of(rng, flag)}"] * (rng.random() < 0.05)
    for word in options:
        if word.mark.positional:
            line.append(rng.choice(word.choices or PLACES) if rng.random() < 0.8 else rng.choice(TEXTS))
    given = " ".join(line)
    usual = {"dataset": "tiny.npz", "partition": "iid", "clients": "3", "device": "cpu", "out": "new"}
    usual |= {"rounds": "1"} if name != "partition" else {"out": "new.png"}
    usual |= {"trials": "2", "seeds-final": "0"} if name == "tune" else {}
    if name in TRAINS:
        line += [f"--{key}={value}" for key, value in usual.items() if f"--{key}" not in given]
    if name == "reproduce":
        line.append("--dry-run")  # what it would train are the paper's experiments
    if name == "watch":
        line.append("--port=99999")  # refused: a server does not end by itself
    if name == "federate":
        line.append("--fault=dropout=1")  # refused: real processes are other tests' business
    return line


class CommandLine(Target):
    """Any words behind `feddwa`."""

    name = "command-line"

    def prepare(self, folder: Path) -> None:
        """Runs to speak of, and a folder that is not empty."""
        super().prepare(folder)
        place.tiny(Path("tiny.npz"))
        place.finished(Path("run"))
        place.cut(Path("cut"))
        for name in ("run", "cut", "tiny.npz"):
            shutil.copytree(name, f"kept/{name}") if Path(name).is_dir() else shutil.copy(name, f"kept/{name}")
        Path("full").mkdir()
        Path("full/old").write_text("kept")

    def draw(self, rng: random.Random) -> Case:
        """A command with a few options."""
        name = rng.choice(["run"] * 6 + ["compare", "partition", "doctor"] * 2 + sorted(cli.COMMANDS))
        return {"words": words_of(rng, name)}

    def check(self, case: Case) -> str:
        """A result whose numbers are finite, from the options that were given."""
        words = case["words"]
        try:
            status, refusal, out = oracle.answer(words)
            if refusal:
                assert not list(Path("new").rglob("metrics.jsonl")), (words, refusal, "was refused after it had begun")
                return refusal
            if words[0] not in ("list", "completion", "new") and "--help" not in words:
                oracle.finite_text(out)
            for record in Path("new").rglob("record.json"):
                oracle.sound_run(record.parent, failed=status == 1)
            if words[0] == "run" and Path("new/config.toml").is_file():
                _as_given(words, Path("new/config.toml"))
            return ""
        finally:
            self._tidy(words)

    def _tidy(self, words: list[str]) -> None:
        """As it was before: what a case wrote is gone, a run that it continued is interrupted again."""
        place.clear(Path("."), {"tiny.npz", "run", "cut", "full", "kept"})
        if words[0] in ("resume", "export", "adapt", "report", "figure", "predict", "new", "leaderboard", "partition"):
            for name in ("run", "cut"):
                shutil.rmtree(name, ignore_errors=True)
                shutil.copytree(f"kept/{name}", name)
            place.clear(Path("full"), {"old"})
            shutil.copy("kept/tiny.npz", "tiny.npz")


def _as_given(words: list[str], file: Path) -> None:
    """No option was ignored: its number stands in the configuration that was run."""
    ran = from_toml(file, RunConfig)
    known: dict[str, Argument] = {each.label: each for each in arguments_of(RunConfig)}
    for word in words:
        flag, equals, text = word.partition("=")
        option = known.get(flag)
        if option is None or not equals or option.plain not in (int, float) or option.mark.repeated:
            continue
        try:
            value = option.read(text)
        except InputError:
            continue  # a word that is no number, such as auto
        assert getattr(ran, option.field) == value, (words, flag, getattr(ran, option.field))
