"""The package as an index would have it: built, installed and used outside the repository."""

import email
import importlib.util
import os
import re
import site
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import feddwa

ROOT = Path(__file__).parents[1]
APPS = ("feddwa", "reproduction")

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path) -> str:
    done = ended(*command, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDDWA_DATA")}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=cwd, env=kept)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def build(project: Path, folder: Path) -> Path:
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=project)
    (found,) = folder.glob("*.whl")
    return found


def install(programs: Path, wheel: Path) -> None:
    python = programs / "python"
    call(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel,
        cwd=programs,
    )  # fmt: skip


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that holds the wheel alone, and sees the packages that it depends on."""
    folder = tmp_path_factory.mktemp("venv")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    install(folder / "bin", wheel)
    places = {sysconfig.get_path("purelib"), *site.getsitepackages(), *(p for p in sys.path if "site-packages" in p)}
    ours = next(folder.glob("lib/python*/site-packages"))
    (ours / "dependencies.pth").write_text("\n".join(sorted(places)) + "\n")  # no .pth inside them is followed
    return folder / "bin"


def test_the_wheel_is_small_and_holds_neither_results_nor_data(wheel):
    assert wheel.stat().st_size < 1e6  # a fifth of it is ECharts, which the report carries
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"feddwa"}
    foreign = (".jsonl", ".npz", ".parquet", ".safetensors", ".csv", ".png", ".pyc")
    assert not [name for name in names if name.endswith(foreign) or "test" in Path(name).stem]


def test_its_description_needs_no_clone(wheel):
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        told = email.message_from_bytes(files.read(name))
    assert told["Version"] == feddwa.__version__
    assert told["Author"] == "The feddwa maintainers"
    text = told.get_payload(decode=True).decode()
    assert text.startswith("# feddwa\n")
    assert not [target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith("http")]


def test_with_an_address_pictures_and_links_lead_to_the_files_of_this_version():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    readme = (ROOT / "README.md").read_text()
    for home in ("", "https://h/f"):
        text = build.description(readme, home, "v1")
        pictures, places = re.findall(r"!\[", text), re.findall(r"\]\(([^)#]+)", text)
        assert len(pictures) == (2 if home else 0)
        found = [place for place in places if place.startswith("https://h/f/")]
        assert (len(found) > 20) == bool(home)
        for place in found:
            kind, version, path = place.removeprefix("https://h/f/").split("/", 2)
            assert (kind, version) in (("raw", "v1"), ("blob", "v1"))
            assert (ROOT / path).exists()
    assert build.addresses("") == {}
    assert build.addresses("https://h/f")["Repository"] == "https://h/f"


def test_the_version_is_the_same_everywhere():
    """Its home is src/feddwa/__init__.py; the package reads it there."""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.search(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)
    flower, tables = (tomllib.loads((ROOT / f"apps/{name}/pyproject.toml").read_text())["project"] for name in APPS)
    assert cited[1] == released[1] == flower["version"] == tables["version"] == feddwa.__version__
    assert tables["dependencies"] == [f"feddwa=={feddwa.__version__}"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["reproduce"] == [f"{tables['name']}=={feddwa.__version__}"]
    assert f"Version {feddwa.__version__.rpartition('.')[0]}" in (ROOT / "README.md").read_text()


def test_it_trains_outside_the_repository(installed, tmp_path):
    where = call(installed / "python", "-c", "import feddwa; print(feddwa.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    shown = call(
        installed / "feddwa",
        "compare",
        "--rounds",
        "2",
        "--clients",
        "4",
        "--algorithms",
        "feddwa",
        "local",
        cwd=tmp_path,
    )
    assert "over Local" in shown
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").stat().st_size > 100_000


def test_reproduce_is_an_extra_and_says_outside_a_clone_where_results_are(installed, tmp_path):
    """The tables are a package of their own; without it one line says so, and the shells still complete names."""
    lacking = ended(installed / "feddwa", "reproduce", "--list", cwd=tmp_path)
    assert lacking.returncode == 2
    assert lacking.stderr == (
        "feddwa: reproduce: is not installed; pip install 'feddwa[reproduce]', or work in a clone\n"
    )
    assert "leaderboard" in call(installed / "feddwa", "completion", "bash", cwd=tmp_path)
    install(installed, build(ROOT / "apps/reproduction", tmp_path / "dist"))
    shown = call(installed / "feddwa", "reproduce", "table1", "--dry-run", cwd=tmp_path)
    assert "--results DIR" in shown.splitlines()[0]
    assert "0 of 3 seeds done" in shown
