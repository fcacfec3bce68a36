"""The site builds without a warning and asks nothing of the network."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import feddwa
from feddwa import cli
from feddwa.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]
needed = ("mkdocs", "material", "mkdocstrings")
missing = [name for name in needed if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} missing; make docs installs what it needs")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def test_it_fetches_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"""<(script|link|img|iframe|source)\b[^>]*\b(src|href)=["']?(https?:)?//""", text), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"""url\(["']?(https?:)?//""", sheet.read_text(encoding="utf-8")), sheet


def test_every_algorithm_and_command_has_its_place(site):
    assert all((site / "algorithms" / f"{name}.html").exists() for name in ALGORITHMS)
    text = (site / "commands.html").read_text(encoding="utf-8")
    assert all(f"usage: feddwa {name}" in text for name in cli.COMMANDS)
    reference = (site / "reference.html").read_text(encoding="utf-8")
    named = ("run", "resume", "algorithms.feddwa.FedDWA", "mixing.dwa_weights")
    assert all(f'id="feddwa.{name}"' in reference for name in named)


def test_every_page_is_in_the_menu(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    assert f"feddwa {feddwa.__version__}" in home
    inside = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    named = set(re.findall(r'href="([\w/-]+\.html)', home))
    assert inside - named <= {"index.html"}
