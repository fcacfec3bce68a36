"""A folder of own data: its files, found without getting lost on a whole disk, and a key of what is in them."""

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from feddwa.data.files import first_line
from feddwa.errors import InputError

DEEPEST = 3  # folders below the given one: <split>/<client>/<class>
OTHERS = 1000  # files of other kinds that are passed over; a folder with more of them is not a folder of data
_HIDDEN = (".", "__MACOSX")


class Folder:
    """The files with given suffixes under `path`; names are relative, with forward slashes, sorted."""

    def __init__(self, path: Path, suffixes: tuple[str, ...]) -> None:
        self.path, self._suffixes = path, suffixes

    @cached_property
    def names(self) -> list[str]:
        """All of them, or an error where the folder is deeper or fuller than a folder of data is."""
        found, others = [], 0
        for name in self._walk("", 0):
            if name.lower().endswith(self._suffixes):
                found.append(name)
            else:
                others += 1
            if others > OTHERS:
                raise InputError(
                    f"--dataset {self.path}: holds more than {OTHERS:,} files that are no data; give the folder that "
                    "holds the data alone"
                )
        return sorted(found)

    def where(self, name: str) -> str:
        """How to speak of a file in an error."""
        return f"{self.path}/{name}"

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise InputError(f"{self.where(name)}: cannot be read ({first_line(error)})") from None

    def fingerprint(self, names: list[str]) -> str:
        """16 hex digits of the names and bytes of some files: the same exactly where both are the same."""
        digest = hashlib.sha256()
        for name in names:
            data = self.read(name)
            digest.update(f"{len(name)} {len(data)} ".encode() + os.fsencode(name))
            digest.update(data)
        return digest.hexdigest()[:16]

    def _walk(self, folder: str, depth: int) -> Iterator[str]:
        """The regular files below a folder, those of the folder itself first; hidden ones are left out."""
        try:
            with os.scandir(self.path / folder) as listing:
                entries = sorted((each for each in listing if not each.name.startswith(_HIDDEN)), key=lambda e: e.name)
        except OSError as error:
            raise InputError(f"--dataset {self.path}: {folder or 'it'} cannot be read ({error.strerror})") from None
        inner = []
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and entry.is_dir()):
                inner.append(name)
            elif entry.is_file() or not name.lower().endswith(self._suffixes):
                yield name
            else:  # a pipe would be waited for, and a link may lead nowhere
                raise InputError(f"--dataset {self.path}: {name} is not a regular file")
        if inner and depth == DEEPEST:
            raise InputError(
                f"--dataset {self.path}: {inner[0]} is too deep; images are in <class>/ or <client>/<class>/ folders, "
                "below train/ and test/ where they are split"
            )
        for name in inner:
            yield from self._walk(name, depth + 1)
