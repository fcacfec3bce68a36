"""A configuration as a TOML file: what `--config` takes and what every run directory holds."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from feddwa import params
from feddwa.config import RunConfig
from feddwa.errors import InputError, unknown

Config = TypeVar("Config")

VERSION = 1  # of the form: a file that is not of it is refused rather than misread


def from_toml(path: str | Path, kind: type[Config]) -> Config:
    """Read a configuration file; keys are the options' names with underscores."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of thousands of digits, too deep
        raise InputError(f"--config {path}: not a TOML file: {error}") from None
    version = values.pop("version", VERSION)  # files that people write need not have it
    if version != VERSION:
        raise InputError(f"--config {path}: is of version {version}, this feddwa reads version {VERSION}")
    known = params.fields_of(kind)
    for key in values:
        if key not in known:
            raise unknown(f"--config {path}", key, known)
    params.check_alternatives(f"--config {path}: ", values, kind)
    return kind(**{key: params.typed(f"--config {path}: {key}", value, known[key][0]) for key, value in values.items()})


def to_toml(config: RunConfig) -> str:
    """The configuration as TOML that reads back to itself, but for `out` and `workers`: a run made again goes to a new
    place, on as many processes as are asked for then."""
    left_out = {"out", "workers", *params.replaced(config)}
    given = {
        key: value for key, value in dataclasses.asdict(config).items() if value is not None and key not in left_out
    }
    return "".join(f"{key} = {_literal(value)}\n" for key, value in {"version": VERSION, **given}.items())


def _literal(value: Any) -> str:
    """JSON's literals are TOML's."""
    if isinstance(value, tuple | list):
        return "[" + "".join(f"\n  {_literal(item)}," for item in value) + "\n]" if value else "[]"
    return json.dumps(value, ensure_ascii=False)
