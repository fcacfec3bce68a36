"""`feddwa completion`: the shell completes commands, options and names."""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from feddwa.cli.parser import PLACES, add_arguments, arguments_of
from feddwa.config import BACKENDS, DEVICES, DTYPES, POLICIES
from feddwa.params import Option
from feddwa.plugins import ALGORITHMS, DATASETS, MODELS, PARTITIONS

NAMES: dict[str, Iterable[str]] = {
    "algorithm": ALGORITHMS, "algorithms": ALGORITHMS, "methods": ALGORITHMS, "dataset": DATASETS, "model": MODELS,
    "partition": PARTITIONS, "device": DEVICES, "backend": BACKENDS, "dtype": DTYPES, "batchnorm": POLICIES,
}  # fmt: skip
FILES = {*PLACES, "runs"}  # fields that are paths


@dataclass(frozen=True)
class CompletionConfig:
    """Print what makes a shell complete this command: eval "$(feddwa completion bash)" in its start-up file."""

    shell: Annotated[Literal["bash", "zsh", "fish"], Option(positional=True)]
    """Which shell."""


def completion_command(config: CompletionConfig) -> int:
    """`feddwa completion`."""
    import shtab

    print(shtab.complete(_whole_parser(), config.shell))
    return 0


def _whole_parser() -> argparse.ArgumentParser:
    """All commands as one parser for shtab. Nobody parses with it: names are its choices, references are valid too."""
    import shtab

    from feddwa.cli import COMMANDS

    root = argparse.ArgumentParser("feddwa")
    root.add_argument("--version", action="store_true", help="The version.")
    commands = root.add_subparsers()
    for name, command in COMMANDS.items():
        if not command.installed:
            continue
        actions = add_arguments(commands.add_parser(name, help=command.summary), command.options)
        choices = {argument.field: argument.choices for argument in arguments_of(command.options)}
        for field, action in actions.items():
            names = choices.get(field) or NAMES.get(field)
            if names:
                action.choices = list(names)
            elif field in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return root
