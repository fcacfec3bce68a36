"""The package as an index would have it: built, installed and used outside the repository."""

import os
import site
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDDWA_DATA")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=cwd, env=kept)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (found,) = folder.glob("feddwa-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that holds the wheel alone, and sees the packages that it depends on."""
    folder = tmp_path_factory.mktemp("venv")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    call(
        sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet", "--no-deps", "--no-index",
        wheel, cwd=folder,
    )  # fmt: skip
    places = {sysconfig.get_path("purelib"), *site.getsitepackages(), *(p for p in sys.path if "site-packages" in p)}
    ours = next(folder.glob("lib/python*/site-packages"))
    (ours / "dependencies.pth").write_text("\n".join(sorted(places)) + "\n")  # no .pth inside them is followed
    return folder / "bin"


def test_the_wheel_is_small_and_holds_neither_results_nor_data(wheel):
    assert wheel.stat().st_size < 1_300_000  # a third of it is ECharts, which the report carries
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"feddwa", "feddwa_reproduction"}
    foreign = (".jsonl", ".npz", ".parquet", ".safetensors", ".csv", ".png", ".pyc")
    assert not [name for name in names if name.endswith(foreign) or "test" in Path(name).stem]


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


def test_outside_a_clone_reproduce_says_where_results_are(installed, tmp_path):
    shown = call(installed / "feddwa", "reproduce", "table1", "--dry-run", cwd=tmp_path)
    assert "--results DIR" in shown.splitlines()[0]
    assert "0 of 3 seeds done" in shown
