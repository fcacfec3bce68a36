"""Figures for papers: every kind in every format, from real runs; colours that everybody can tell apart."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddwa import cli
from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig
from feddwa.data import describe
from feddwa.report.collect import styles_of
from feddwa.report.figures import FIGURES, front, likeness
from feddwa.results.methods import Method
from feddwa.results.record import Record

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF-"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(*arguments):
    return cli.main(["figure", *map(str, arguments)])


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_is_drawn(kind, runs, capsys):
    assert call(kind, runs, "-o", "f.png") == 0
    assert capsys.readouterr().out == "wrote f.png\n"
    with Image.open("f.png") as picture:
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 30
    assert list(map(str, Path().iterdir())) == ["f.png"]


@pytest.mark.parametrize("suffix", MAGIC)
def test_every_format(suffix, runs):
    assert call("curves", runs / "0", "--out", f"f.{suffix}") == 0
    assert Path(f"f.{suffix}").read_bytes().startswith(MAGIC[suffix])


def test_without_a_name_it_has_the_figures_own(runs, capsys):
    assert call("gain", runs) == 0
    assert Path("gain.png").exists()


def test_absent_clients_are_drawn_too(absent):
    for kind in ("weights", "similarity", "curves"):
        assert call(kind, absent) == 0


BAD = {
    ("gain", "{runs}/0/feddwa"): "no run of local with the same seed",
    ("curves", "nowhere"): "nowhere: no such directory",
    ("curves", "{runs}", "-o", "f.doc"): "-o: got 'f.doc', must be a file name that ends in .png, .svg, .pdf",
    ("curves", "{runs}", "-o", "no/f.png"): "-o no/f.png: cannot write there: No such file",
    ("curves",): "RUN: got 'none', must be one run directory or more",
    ("pie", "{runs}"): "'pie'.*curves.*weights.*similarity.*partition.*gain.*pareto",
}


@pytest.mark.parametrize("arguments", BAD)
def test_what_cannot_be_drawn_is_said_in_one_line(arguments, runs, capsys):
    assert call(*(word.format(runs=runs) for word in arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    import re

    assert re.search(BAD[arguments], error)


def test_the_front_has_what_nothing_cheaper_beats():
    points = [(1.0, 50.0), (2.0, 40.0), (2.0, 60.0), (3.0, 60.0), (4.0, 90.0), (0.0, 10.0)]
    assert front(points) == [(0.0, 10.0), (1.0, 50.0), (2.0, 60.0), (4.0, 90.0)]
    for point in points:  # the definition, by brute force
        beaten = any(other[0] <= point[0] and other[1] >= point[1] and other != point for other in points)
        assert (point in front(points)) == (not beaten)


def test_likeness_counts_what_means_the_same():
    counts = np.array([[4, 0], [2, 2], [0, 4]])
    zeros = np.zeros_like(counts)
    plain = describe.Description(counts, zeros, ("a", "b"), None, None, None)
    assert likeness(plain).tolist() == [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]
    turned = describe.Description(counts, zeros, ("a", "b"), None, np.array([0, 0, 1]), None)
    assert likeness(turned).tolist() == [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]
    named = describe.Description(counts, zeros, ("a", "b"), None, None, np.array([[0, 1], [0, 1], [1, 0]]))
    assert likeness(named).tolist() == [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]


# Colours.


def _luminance(colour: str) -> float:
    """Relative luminance as the accessibility guidelines define it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _methods() -> list[Method]:
    def record(name):
        return Record(Path(), RunConfig(algorithm=name), [], np.zeros((1, 1)), [], None, True)

    return [Method(kind.title, [record(name)]) for name, kind in ALGORITHMS.items()]


def test_all_methods_look_different_and_stand_out_from_the_paper():
    found = styles_of(_methods())
    for one, two in itertools.combinations(found, 2):
        assert (one.light, one.dash) != (two.light, two.dash)
        assert (one.dark, one.dash) != (two.dark, two.dash)
    for style in found:
        assert 1.05 / (_luminance(style.light) + 0.05) >= 3  # contrast with white
        assert (_luminance(style.dark) + 0.05) / (_luminance("#171e28") + 0.05) >= 3  # and with the dark page


def test_the_three_of_the_demo_always_look_the_same():
    methods = _methods()
    by_name = dict(zip((method.name for method in methods), styles_of(methods), strict=True))
    few = [method for method in methods if method.name in ("FedDWA", "Local", "FedAvg")]
    assert dict(zip((method.name for method in few), styles_of(few), strict=True)).items() <= by_name.items()
