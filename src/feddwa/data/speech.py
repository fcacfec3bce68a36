"""Plays by role: speeches from a table or from Markdown, and windows of characters with the one that follows."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from feddwa.data import tables
from feddwa.data.files import Tree
from feddwa.errors import InputError

# LEAF's characters in LEAF's order: the index of a character is its token id.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_IDS = {character: number for number, character in enumerate(CHARACTERS)}
_SPEAKER = re.compile(r"^(?:\*\*(.+?)\*\*|#.*?)\s*$", re.MULTILINE)  # "**HAMLET**"; a heading ends a speech, too
_DIRECTION = re.compile(  # "_Exit_", "[Aside]", "*Enter King Edward.*"; "_" may be inside of one, or lines apart
    r"^_.*_\s*$|\\?\[[^\]\n]*\]_?|_[^_]*_|\*[^*]*\*", re.MULTILINE
)


class Speech(NamedTuple):
    """One speech of a role."""

    play: str
    role: str
    text: str  # lines


class Samples(NamedTuple):
    """Windows of the characters of several roles, training windows first."""

    x: np.ndarray  # (n, length) int64 token ids
    y: np.ndarray  # (n,) int64 the character after each window
    train_count: int
    owner: np.ndarray  # (n,) int64 index into `names`
    names: tuple[str, ...]  # "play/ROLE", in descending order of windows


def in_table(file: Path) -> Iterator[Speech]:
    """The speeches of a Parquet table with the columns play, role and text, in row order."""
    known = tables.open_parquet(file).schema_arrow.names
    names = [tables.pick(file, known, (name,), name) for name in Speech._fields]
    table = tables.read_table(file, columns=names)
    for row in zip(*(table[name].to_pylist() for name in names), strict=True):
        if not all(isinstance(value, str) for value in row):
            raise InputError(f"{file}: play, role and text must be texts, without gaps; got {row[:2]}")
        yield Speech(*row)


def in_markdown(tree: Tree, files: Iterable[str]) -> Iterator[Speech]:
    """The speeches of plays, a file each, that mark speakers as **NAME** and stage directions as _text_."""
    for file in files:
        try:
            text = tree.read(file).decode()
        except UnicodeDecodeError:
            raise InputError(f"{tree.where(file)}: not a text in UTF-8") from None
        parts = _SPEAKER.split(text)[1:]  # name or None, text, name or None, text, ...
        for role, lines in zip(parts[::2], parts[1::2], strict=True):
            if role is not None:
                yield Speech(PurePosixPath(file).stem, role, lines)


def samples(speeches: Iterable[Speech], length: int) -> Samples:
    """Adjacent windows of `length` characters, for every role with at least two lines.

    The last fifth of a role's lines are its test text. Lines are joined by a space, as in LEAF. No window is in both
    texts; roles too short for one window of each are left out.
    """
    lines: dict[str, list[str]] = {}
    for speech in speeches:
        lines.setdefault(f"{speech.play}/{speech.role}", []).extend(_lines(speech.text))
    found = {}
    for name, own in lines.items():
        if len(own) >= 2:
            train, test = (_windows(" ".join(part), length) for part in _cut(own))
            if len(train) and len(test):
                found[name] = train, test
    names = tuple(sorted(found, key=lambda name: -len(found[name][0])))
    parts = [found[name][part] for part in (0, 1) for name in names]
    owner = np.repeat(np.tile(np.arange(len(names)), 2), [len(part) for part in parts])
    windows = np.concatenate(parts) if parts else np.zeros((0, length + 1), dtype=np.int64)
    return Samples(windows[:, :-1], windows[:, -1], sum(map(len, parts[: len(names)])), owner, names)


def _lines(text: str) -> list[str]:
    """The lines of a speech without stage directions, in LEAF's characters, with single spaces."""
    plain = _DIRECTION.sub("", text).replace("—", "--")
    cleaned = ("".join(filter(_IDS.__contains__, line)) for line in plain.splitlines())
    return [" ".join(line.split()) for line in cleaned if line.strip()]


def _cut(lines: list[str]) -> tuple[list[str], list[str]]:
    """Training lines, and the last fifth, at least one."""
    cut = len(lines) - max(1, round(0.2 * len(lines)))
    return lines[:cut], lines[cut:]


def _windows(text: str, length: int) -> np.ndarray:
    """(n, length + 1) token ids of n disjoint windows and the character after each."""
    ids = np.array([_IDS[character] for character in text], dtype=np.int64)
    starts = np.arange(0, len(ids) - length, length)
    windows: np.ndarray = ids[starts[:, None] + np.arange(length + 1)]
    return windows
