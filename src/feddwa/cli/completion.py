"""`feddwa completion`: the shell completes commands, options and names."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import tyro

from feddwa import models
from feddwa.algorithms import REGISTRY as ALGORITHMS
from feddwa.batchnorm import POLICIES
from feddwa.cli.help import options_of
from feddwa.config import BACKENDS, DEVICES, DTYPES
from feddwa.data.partition import REGISTRY as PARTITIONS
from feddwa.data.sources import REGISTRY as DATASETS

NAMES: dict[str, Iterable[str]] = {
    "--algorithm": ALGORITHMS, "--algorithms": ALGORITHMS, "--methods": ALGORITHMS, "--dataset": DATASETS,
    "--model": models.REGISTRY, "--partition": PARTITIONS, "--device": DEVICES, "--backend": BACKENDS,
    "--dtype": DTYPES, "--batchnorm": POLICIES,
}  # fmt: skip

BASH = """\
_feddwa() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} option='' i
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$cur")); return
  fi
  for (( i = COMP_CWORD - 1; i > 1; i-- )); do
    if [[ ${{COMP_WORDS[i]}} == --* ]]; then option=${{COMP_WORDS[i]}}; break; fi
  done
  local words=''
  if [[ $cur == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{options}
    esac
  else
    case "${{COMP_WORDS[1]}} $option" in
{values}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _feddwa feddwa
"""


@dataclass(frozen=True)
class CompletionConfig:
    """Print what makes a shell complete this command: eval "$(feddwa completion bash)" in its start-up file."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """Which shell."""


def completion_command(config: CompletionConfig) -> int:
    """`feddwa completion`."""
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[config.shell](), end="")
    return 0


def _words() -> dict[str, dict[str, list[str]]]:
    """Command -> option ("" = the words without dashes) -> what it may be followed by."""
    from feddwa.cli import COMMANDS

    found: dict[str, dict[str, list[str]]] = {}
    for name, command in COMMANDS.items():
        own = found.setdefault(name, {})
        for option in options_of(command.options):
            key = "" if option.positional else option.name.split(", ")[-1]
            own[key] = [*own.get(key, []), *(option.choices or NAMES.get(key, ()))]
        if "--dataset" in own:
            own["--config"] = []
    return found


def _bash() -> str:
    words = _words()
    options = [f"      {name}) words='{' '.join(filter(None, own))} --help' ;;" for name, own in words.items()]
    values = [
        f"      '{name} {option}') words='{' '.join(values)}' ;;"
        for name, own in words.items()
        for option, values in own.items()
        if values
    ]
    return BASH.format(commands=" ".join(words), options="\n".join(options), values="\n".join(values))


def _zsh() -> str:
    return "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" + _bash()


def _fish() -> str:
    words = _words()
    lines = [f"complete -c feddwa -n __fish_use_subcommand -f -a '{' '.join(words)}'"]
    for name, own in words.items():
        seen = f"complete -c feddwa -n '__fish_seen_subcommand_from {name}'"
        for option, values in own.items():
            choice = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"{seen} -l {option[2:]}{choice}" if option else f"{seen}{choice.replace(' -x', ' -f')}")
    return "\n".join(line for line in lines if not line.endswith("'__fish_seen_subcommand_from'")) + "\n"
