"""Results in Python: they show themselves, become tables, figures and networks; several methods are compared."""

import builtins
import dataclasses
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa.results import display

OPTIONS = {"clients": 4, "rounds": 2, "param": ["groups=2"], "out": False}


@pytest.fixture(scope="module")
def found():
    return feddwa.compare(["feddwa", "local", "fedavg"], **OPTIONS)


@pytest.fixture(scope="module")
def seeds():
    return feddwa.compare({"two": feddwa.FedDWA(top_k=2), "local": "local"}, seeds=[0, 1], **OPTIONS)


def test_a_comparison_has_what_single_runs_have(found):
    alone = feddwa.run(algorithm="fedavg", **OPTIONS)
    assert list(found) == ["feddwa", "local", "fedavg"]
    assert all(torch.equal(found["fedavg"].models[name], rows) for name, rows in alone.models.items())


def test_its_text_has_the_numbers_of_the_summaries(found):
    head, columns, *rows = repr(found).splitlines()
    assert head == "digits, rotations, 4 clients, 2 rounds, seed 0"
    assert columns.split("  ")[0] == "algorithm"
    for (name, result), row in zip(found.items(), rows, strict=True):
        best = result.summary["accuracy"]
        assert row.split()[:4] == [name, f"{best['last']:.2f}", f"{best['best']:.2f}", f"({best['best_round']})"]
    gain = found["feddwa"].summary["accuracy"]["last"] - found["local"].summary["accuracy"]["last"]
    assert f"{gain:+.2f}" in rows[0]
    assert repr(found["local"]).splitlines()[0] == head
    assert len(repr(found["local"])) < 300


def test_several_seeds_are_means_and_paired_intervals(seeds):
    text = repr(seeds)
    apart = [run.summary["accuracy"]["last"] - seeds["local"][seed].summary["accuracy"]["last"]
             for seed, run in seeds["two"].items()]  # fmt: skip
    assert f"{np.mean(apart):+.2f} (" in text
    assert "± " in text
    assert "best (after round)" not in text
    assert f"{seeds['two'].summary['accuracy']['last']:.2f}" in repr(seeds["two"])


def test_in_a_notebook_it_is_a_table_curves_and_a_map(found, seeds):
    for shown in (found, seeds, seeds["two"], found["feddwa"]):
        page = shown._repr_html_()
        tree = ElementTree.fromstring(_xml(page))
        methods = shown._methods()
        assert len(tree.findall(".//tbody/tr")) == len(methods)
        assert len(tree.findall(".//polyline")) == sum(len(runs) for runs in methods.values())
        assert tree.find(".//img").get("src").startswith("data:image/png;base64,")
        assert "http" not in page


def _xml(page):
    """HTML with its void elements closed."""
    return re.sub(r"<(br|img)\b([^>]*)>", r"<\1\2/>", page)


def test_names_of_the_users_own_are_escaped():
    found = feddwa.compare({"<b>": "local", "a & b": "fedavg"}, **{**OPTIONS, "rounds": 1})
    assert "<b></td>" not in found._repr_html_()
    assert "&lt;b&gt;" in found._repr_html_()
    assert "a &amp; b" in found._repr_html_()


def test_what_went_wrong_stands_first_and_nothing_is_gained_over_it():
    found = feddwa.compare(["feddwa", "local"], **{**OPTIONS, "lr": 1e6, "rounds": 4})
    text = repr(found)
    assert "diverged" in text
    assert "error: local, seed 0: " in text
    assert [row[-3] for row in display.shown(found._methods()).rows] == ["-", ""]
    assert found._repr_html_().index("error: ") < found._repr_html_().index("<table")


def test_losses_stand_where_there_is_no_accuracy():
    x = torch.linspace(-1, 1, 40)[:, None]
    clients = [(x, slope * x[:, 0]) for slope in (1.0, 1.0, -2.0)]
    line = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    found = feddwa.compare(["local", "fedavg"], dataset=clients, model=line, loss="mse", rounds=2, lr=0.1, out=False)
    assert "last loss" in repr(found)
    assert "below Local" in repr(found)
    assert "loss" in found._repr_html_()
    found.plot()


def test_rounds_and_clients_become_tables(found, seeds):
    pandas = pytest.importorskip("pandas")
    result = found["feddwa"]
    rounds, clients = result.to_pandas(), result.to_pandas("clients")
    assert list(rounds.index) == [1, 2, 3]
    assert rounds["before.all"].iloc[-1] == result.summary["accuracy"]["last"]
    assert clients["accuracy"].mean() == pytest.approx(result.summary["accuracy"]["last"], abs=1e-3)
    assert list(clients["train_samples"]) == [len(own) for own in result.partition.train]
    everything = seeds.to_pandas("clients")
    assert everything.index.names == ["method", "seed", "client"]
    pandas.testing.assert_frame_equal(everything.loc["two", 1], seeds["two"][1].to_pandas("clients"))
    with pytest.raises(feddwa.InputError, match="of: got 'weeks', must be rounds or clients"):
        result.to_pandas("weeks")
    with pytest.raises(feddwa.InputError, match=r"of: clients: .* without its models"):
        dataclasses.replace(result, trained=None).to_pandas("clients")


def test_without_pandas_one_line_says_what_to_install(found, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(feddwa.InputError, match=r"^to_pandas: pandas is missing; pip install pandas$"):
        found["feddwa"].to_pandas()


def test_a_figure_shows_itself_once_and_is_saved(found, seeds, tmp_path):
    figure = found.plot(tmp_path / "found.svg")
    assert (tmp_path / "found.svg").stat().st_size > 5000
    assert figure._repr_png_().startswith(b"\x89PNG")
    curves, _, _ = figure.axes  # and the map's scale
    drawn = {line.get_label(): line.get_ydata() for line in curves.lines}
    assert list(drawn["local"]) == [line["before"]["all"] for line in found["local"].metrics]
    assert len(seeds.plot().axes[0].lines) == 4


def test_all_algorithms_are_checked_before_the_first_is_trained():
    trained = []
    for wrong, told in (
        (["local", "nobody"], "unknown name 'nobody'"),
        (["local", "fedbn"], "fedbn: needs a network with BatchNorm"),
        ([feddwa.FedDWA(top_k=2), "feddwa"], "algorithms: got 'feddwa', must be given once"),
        ({"a/b": "local"}, "algorithms: got 'a/b', must be a name that a folder may have"),
        ("feddwa", "algorithms: got 'feddwa', must be a list"),
        ([], "algorithms: got 'none', must be one or more"),
    ):
        with pytest.raises(feddwa.InputError, match=re.escape(told)):
            feddwa.compare(wrong, observe=trained.append, **OPTIONS)
    with pytest.raises(feddwa.InputError, match="algorithm"):
        feddwa.compare(["local"], algorithm="feddwa", **OPTIONS)
    assert not trained


def test_run_directories_are_reported_on_as_a_whole(tmp_path):
    out = tmp_path / "both"
    found = feddwa.compare(["local", "fedavg"], **{**OPTIONS, "out": out, "rounds": 1})
    assert found.path == str(out)
    assert repr(found).endswith(f"in {out}")
    again = feddwa.resume(out / "fedavg")
    assert repr(again) == repr(found["fedavg"])
    with pytest.raises(feddwa.InputError, match="--out"):
        feddwa.compare(["local"], **{**OPTIONS, "out": out})


def test_clients_keep_their_names():
    x = torch.arange(80.0).reshape(40, 2) % 7
    clients = {"ann": (x, (x[:, 0] > 3).long()), "bob": (x, (x[:, 1] > 3).long())}
    found = feddwa.compare(["local", "fedavg"], dataset=clients, model=nn.Linear(2, 2), rounds=1, lr=0.1, out=False)
    assert list(found["local"].to_pandas("clients").index) == ["ann", "bob"]
    assert isinstance(found["fedavg"].model("bob"), nn.Linear)


def test_progress_says_how_far_runs_are(capsys):
    feddwa.run(algorithm="local", callbacks=[feddwa.Progress()], seeds=[0, 1], **OPTIONS)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1
    assert re.match(r"local: done, accuracy \d+\.\d\d %, \d+\.\d\d %", out[0])
    progress = feddwa.Progress()
    feddwa.compare(["local", "fedavg"], callbacks=[progress], **OPTIONS)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["local", "fedavg"]
