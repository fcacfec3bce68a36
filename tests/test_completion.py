"""Completion in a real shell, and help that fits a screen."""

import shutil
import subprocess

import pytest

from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.cli.parser import arguments_of

ASK = """
{script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMPREPLY=()
_shtab_feddwa
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def complete(words, capsys):
    """What bash offers for a command line that ends where the cursor is."""
    asked = ASK.format(script=script("bash", capsys), words=" ".join(f"'{word}'" for word in words))
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["feddwa", "rep"], ["report", "reproduce"]),
        (["feddwa", "run", "--al"], ["--algorithm"]),
        (["feddwa", "run", "--algorithm", "feddw"], ["feddwa", "feddwa_plus"]),
        (["feddwa", "compare", "--algorithms", "feddwa", "loc"], ["local"]),
        (["feddwa", "run", "--partition", "dir"], ["dirichlet", "dirichlet-clients"]),
        (["feddwa", "list", "mo"], ["models"]),
        (["feddwa", "figure", "pa"], ["partition", "pareto"]),
        (["feddwa", "figure", "curves", "--o"], ["--out"]),
        (["feddwa", "run", "--config", "x.toml", "--qui"], ["--quiet"]),
        (["feddwa", "completion", "f"], ["fish"]),
        (["feddwa", "run", "--out", "nothing-here"], []),  # no such file
        (["feddwa", "run", "--device", ""], ["auto", "cpu", "cuda"]),
    ],
)
def test_bash_completes(words, offered, capsys):
    assert complete(words, capsys) == offered


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_knows_every_command_and_algorithm(capsys):
    assert complete(["feddwa", ""], capsys) == list(cli.COMMANDS)
    assert complete(["feddwa", "--"], capsys) == ["--help", "--version"]
    assert complete(["feddwa", "run", "--algorithm", ""], capsys) == list(ALGORITHMS)


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_completes_files(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").touch()
    (tmp_path / "runs").mkdir()
    assert sorted(complete(["feddwa", "run", "--config", "ru"], capsys)) == ["run.toml", "runs"]
    assert complete(["feddwa", "report", "run.toml", "runs"], capsys) == ["runs"]


@pytest.mark.parametrize(
    ("shell", "check"), [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])]
)
def test_what_is_printed_is_in_the_shells_language(shell, check, capsys, tmp_path):
    text = script(shell, capsys)
    assert "feddwa" in text
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    (tmp_path / "script").write_text(text)
    subprocess.run([*check, tmp_path / "script"], check=True, timeout=30)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_group_of_options_fits_a_screen(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert max(len(group.splitlines()) for group in text.split("\n\n")) <= 55
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith(f"  feddwa {command}") for line in lines)  # an example
    options = arguments_of(cli.COMMANDS[command].options)
    assert all(option.text for option in options)
    for option in options:
        begin = option.mark.short or (option.metavar if option.mark.positional else option.label)
        assert any(line.startswith(f"  {begin}") for line in lines)


def test_the_overview_fits_a_terminal(capsys):
    cli.main([])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 110
