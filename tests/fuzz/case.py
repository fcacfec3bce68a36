"""What a target is, and the things that all of them draw."""

import base64
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

Case = dict[str, Any]  # as JSON has it, so that it can be kept

NUMBERS = (
    "0", "1", "2", "3", "-1", "0.5", "1e-300", "1e300", "nan", "inf", "-inf", "1e400", "10000000", "1000000000",
    str(2**63), str(2**64), "9" * 30, "9" * 5000, "1_0", " 2", "2 ", "\uff12", "+2", "0x10", "2.0", "1e1", "--1", "",
)  # fmt: skip
TEXTS = (
    "", " ", "[/x]", "[bold]", "[red]x[/red]", "a\nb", "a\tb", "\x1b[31m", "\x7f", "\x00", "\udcff", "\u2028", "é",
    "名", "a" * 300, "-", "--", "=", "a=b", "../..", "/proc/self/mem", "/dev/null", "~", "*", "None", "true", "{}",
    "%s", "$HOME", "'", '"', "\\",
)  # fmt: skip


class Target(ABC):
    """One way into the program. It works in a folder of its own, the current one while it draws and checks."""

    name: str

    def prepare(self, folder: Path) -> None:
        """Make what the cases are about, once."""
        self.folder = folder

    @abstractmethod
    def draw(self, rng: random.Random) -> Case:
        """A case."""

    @abstractmethod
    def check(self, case: Case) -> str:
        """Try a case: "" where it was accepted and what came out is sound, else the line that refuses it.

        Anything that is raised is a finding.
        """


def packed(data: bytes) -> str:
    """Bytes as JSON has them."""
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    """The bytes."""
    return base64.b64decode(text)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a random change."""
    return changed(byte_change(rng, len(data)), data)


def byte_change(rng: random.Random, length: int) -> list[Any]:
    """A change of so many bytes: a kind, a place and bytes, as JSON has them."""
    kind = rng.choice(("cut", "flip", "over", "into", "zero", "twice", "others"))
    some = rng.randbytes(rng.randint(1, 8))
    if kind == "others":
        some = rng.choice([b"", some, b"{}\n", b"[]\n", b"null\n", b'{"round": "x"}\n', b"\xff\xfe"])
    return [kind, rng.randrange(max(1, length)), packed(some)]


def changed(change: list[Any], data: bytes) -> bytes:
    """The bytes after a change: cut, a bit changed, written over, lengthened, zeroed, doubled, or others altogether."""
    kind, place, some = change[0], change[1], unpacked(change[2])
    head, tail = data[:place], data[place:]
    if kind == "flip":
        return head + bytes([tail[0] ^ 1 << some[0] % 8]) + tail[1:] if tail else head
    known = {
        "cut": head, "over": head + some + tail[len(some) :], "into": head + some + tail,
        "zero": head + bytes(len(tail)), "twice": data + data, "others": some,
    }  # fmt: skip
    return known[kind]
