"""TOML files with options of their type or of another, and files that are none."""

import json
import math
import random
from pathlib import Path
from typing import Any

from feddwa.cli.train import CompareConfig
from feddwa.config import RunConfig
from feddwa.errors import InputError
from feddwa.params import fields_of
from tests.fuzz import oracle, place
from tests.fuzz.case import NUMBERS, TEXTS, Case, Target, damaged, packed, unpacked
from tests.fuzz.command_line import value_of

USUAL = {"dataset": "tiny.npz", "partition": "iid", "clients": "3", "rounds": "1", "device": "cpu"}
DEFAULTS = {name: default for name, (_, default) in fields_of(CompareConfig).items()}
VALUES = (
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    10**9,
    2**63,
    0.5,
    1e400,
    -0.0,
    "",
    "x",
    "a\nb",
    [],
    ["a=1"],
    [1],
    {},
    "2",
    *TEXTS[:8],
)
KINDS = {"run": RunConfig, "compare": CompareConfig, "doctor": RunConfig, "partition": RunConfig}


class Configuration(Target):
    """`feddwa COMMAND --config FILE`, and values given from Python."""

    name = "configuration"

    def prepare(self, folder: Path) -> None:
        """Data to run on."""
        super().prepare(folder)
        place.tiny(Path("tiny.npz"))

    def draw(self, rng: random.Random) -> Case:
        """A file with one to four options."""
        if rng.random() < 0.3:
            names = rng.sample([*fields_of(RunConfig)], rng.randint(1, 3))
            return {"command": "python", "values": {name: rng.choice(VALUES) for name in names}}
        command = rng.choice(["run", *KINDS])
        keys = rng.sample([*fields_of(KINDS[command]), "version", "colour"], rng.choice([1, 1, 2, 3]))
        text = "".join(f"{key} = {_value(rng, key)}\n" for key in keys)
        content = text.encode("utf-8", "surrogatepass")
        return {"command": command, "file": packed(damaged(rng, content) if rng.random() < 0.2 else content)}

    def check(self, case: Case) -> str:
        """A result with finite numbers, or one line."""
        return _resolved(case["values"]) if case["command"] == "python" else self._ran(case)

    def _ran(self, case: Case) -> str:
        content = unpacked(case["file"])
        Path("own.toml").write_bytes(content)
        more = [f"--{key}={value}" for key, value in USUAL.items() if f"{key} =".encode() not in content]
        if case["command"] == "partition":
            more = [word for word in more if not word.startswith(("--rounds", "--device"))]
        out = "new.png" if case["command"] == "partition" else "new"
        more += [f"--out={out}"] * (case["command"] != "doctor")
        try:
            status, refusal, text = oracle.answer([case["command"], "--config", "own.toml", *more])
            if not refusal:
                oracle.finite_text(text)
                for record in Path("new").rglob("record.json"):
                    oracle.sound_run(record.parent, failed=status == 1)
            return refusal
        finally:
            place.clear(Path("."), {"tiny.npz"})


def _resolved(values: dict[str, Any]) -> str:
    """Values as `feddwa.run` takes them; a configuration that comes of them has the finite numbers that were given."""
    try:
        found = RunConfig(**values).resolved()
    except InputError as error:
        refusal = str(error)
    else:
        assert all(math.isfinite(value) for value in vars(found).values() if isinstance(value, float)), found
        return ""
    assert len(refusal.splitlines()) == 1, refusal
    return refusal


def _value(rng: random.Random, key: str) -> str:
    """What a key may have, mostly of its type."""
    text = value_of(rng, f"--{key.replace('_', '-')}")
    if rng.random() < 0.4 and key in DEFAULTS:
        text, default = rng.choice(NUMBERS[:6]), DEFAULTS[key]
        return {bool: "true", str: json.dumps(default), tuple: "[]"}.get(type(default), text)
    quoted = json.dumps(text, ensure_ascii=rng.random() < 0.5)
    return rng.choice([text, quoted, f"[{quoted}]", f"[{quoted}, {quoted}]", "true", "1979-05-27", "{ a = 1 }"])
