"""What is installed is pinned, and nothing calls the network that was not asked to."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import feddwa

ROOT = Path(__file__).parents[1]
SOURCE = Path(feddwa.__file__).parent
NO_NETWORK = """
import socket, sys
def refuse(*_, **__):
    raise SystemExit("the network was called")
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
socket.getaddrinfo = socket.create_connection = socket.gethostbyname = refuse
"""


def offline(code: str, folder: Path) -> str:
    surroundings = {**os.environ, "PYTHONPATH": str(Path(feddwa.__file__).parents[1])}
    surroundings["FEDDWA_CACHE"] = str(folder / "cache")
    command = [sys.executable, "-c", NO_NETWORK + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=surroundings, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_no_network_at_import_nor_in_a_run(tmp_path):
    run = ["compare", "--clients", "4", "--rounds", "1", "--algorithms", "feddwa", "local", "--out", "runs"]
    code = (
        f"import feddwa\nfrom feddwa import cli\nassert cli.main({run}) == 0\nassert cli.main(['resume', 'runs']) == 0"
    )
    assert "feddwa" in offline(code, tmp_path)


def test_few_modules_alone_can():
    calls = re.compile(
        r"\b(import|from) (requests|urllib\.request|http|socket|aiohttp|httpx|datasets)\b"
        r"|import_module\(\"huggingface_hub\"\)|\.(load_dataset|from_pretrained)\b"
    )
    folder = Path(feddwa.__file__).parent
    users = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if calls.search(path.read_text())}
    assert {user for user in users if not user.startswith("flower/")} == {
        "data/sources.py", "data/hub.py", "models/libraries.py", "ranks.py", "cli/watch.py",
    }  # fmt: skip


def test_everything_that_is_needed_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[ ;]", entry)[0].lower() for entry in wanted}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if re.fullmatch(r"[\w.-]+==[\w.+-]+", line)}
    by_torch = {"triton"}  # builds of torch for a GPU pin the one that they were made with: another pin would clash
    assert names - {"feddwa"} - by_torch <= pinned


def test_every_extra_for_users_has_code_that_imports_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "\n".join(path.read_text() for path in Path(feddwa.__file__).parent.rglob("*.py"))
    for extra in extras.keys() - {"browser", "docs", "audit", "dev"}:  # tools of those who work on the package
        names = [re.split(r"[<>=\[ ;]", entry)[0].removesuffix("-skinny") for entry in extras[extra]]
        modules = [name.replace("-", "_") for name in names]
        assert any(re.search(rf'(import|from) .*\b{module}\b|"{module}[".]', code) for module in modules), extra


def test_nothing_is_pickled():
    """The readers of pickles are those of CIFAR's files and of torch's files of parameters: they build arrays only."""
    loaders = re.compile(r"\bimport pickle|torch\.load|joblib|allow_pickle=True|weights_only")
    users = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if loaders.search(path.read_text())]
    assert sorted(users) == ["data/originals.py", "models/weights.py"]
    assert re.findall(r"torch\.load\(.*\)", (SOURCE / "models/weights.py").read_text()) == [
        'torch.load(file, map_location="cpu", weights_only=True)'
    ]
    text = (SOURCE / "data/originals.py").read_text()
    assert "class _ArraysOnly(pickle.Unpickler)" in text
    assert not re.search(r"pickle\.(load|loads|dump|dumps|Pickler)\b", text)
