"""Real numbers as targets, from the shell: trained, reported and compared by their loss, of which lower is better."""

import base64
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

import feddwa
from feddwa import cli
from feddwa.config_file import from_toml
from feddwa.results.compare import client_gains
from feddwa.results.measure import LOSS
from feddwa.results.record import read_run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))


def houses(name="houses.csv", whole=False):
    """Prices that depend on the rooms in two ways: two cities of either kind."""
    rng = np.random.default_rng(0)
    rows = ["area,rooms,age,price,city"]
    for number in range(160):
        x = rng.normal(size=3)
        price = x @ [1.0, 2.0 if number % 4 < 2 else -2.0, 0.5] + 0.1 * rng.normal()
        price = str(round(100 * price)) if whole else f"{price:.4f}"
        rows.append(",".join(f"{value:.4f}" for value in x) + f",{price},city-{number % 4}")
    Path(name).write_text("\n".join(rows) + "\n")
    return name


COLUMNS = ["--label", "price", "--client", "city", "--rounds", "6", "--lr", "0.05"]


@pytest.mark.slow
def test_from_the_shell_to_report_and_leaderboard(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    command = ["compare", "--dataset", houses(), *COLUMNS, "--out", "c", "--metric", "rmse", "--metric", "r2"]
    assert cli.main(command) == 0
    table = capsys.readouterr().out
    assert "Loss, lower is better" in table
    assert "below Local" in table
    assert "rmse" in table
    assert "%" not in table.partition("Mixing")[0].partition("lower is better")[0]
    runs = {name: read_run(Path("c") / name) for name in ("feddwa", "local", "fedavg")}
    assert all(run.measure is LOSS for run in runs.values())
    assert runs["fedavg"].last > runs["feddwa"].last  # one model cannot serve both kinds of cities
    gain = client_gains(runs["fedavg"], runs["local"])
    assert (gain < 0).all()
    assert gain == pytest.approx(runs["local"].scores[-1] - runs["fedavg"].scores[-1])
    assert runs["feddwa"].metrics["rmse"][-1] ** 2 == pytest.approx(runs["feddwa"].last, rel=0.2)
    assert cli.main(["leaderboard", "c", "-o", "figures"]) == 0
    board = capsys.readouterr().out
    assert "Loss, lower is better" in board
    places = [board.index(name) for name in ("Local", "FedAvg")]
    assert places == sorted(places)  # the better one first
    assert Path("figures/pareto.png").stat().st_size > 1000
    text = Path("c/report.html").read_text()
    assert "Loss over the rounds" in text
    assert "Lower is better" in text
    assert "lower than training alone" in text or "joining did not pay" in text
    assert "Accuracy" not in text.partition("<script")[0].partition("<body>")[2]
    payload = re.search(r'type="application/octet-stream">([^<]+)<', text)[1]
    numbers = json.loads(gzip.decompress(base64.b64decode(payload)))
    assert numbers["measure"]["sign"] == -1
    assert numbers["methods"][numbers["lead"]]["last"] == min(each["last"] for each in numbers["methods"])
    assert {"rmse", "r2"} <= numbers["methods"][0]["curves"].keys()


def test_one_run_its_files_resume_doctor_and_partition(capsys):
    command = ["run", "--dataset", houses(), *COLUMNS, "--loss", "mae", "--out", "run", "--quiet"]
    assert cli.main(command) == 0
    assert from_toml("run/config.toml", feddwa.RunConfig).loss == "mae"
    last = json.loads(Path("run/clients.jsonl").read_text().splitlines()[-1])
    assert last["before"] == [None] * 4
    assert len(last["loss_before"]) == 4
    content = json.loads(Path("run/record.json").read_text())
    first = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[0])
    assert content["summary"]["accuracy"]["last"] is None
    assert content["summary"]["loss"]["best"] <= content["summary"]["loss"]["last"] < first["loss_before"]
    result = feddwa.resume("run")
    assert result.models["head.weight"].shape[:2] == (4, 1)
    capsys.readouterr()
    assert cli.main(["doctor", "run"]) == 0
    told = capsys.readouterr().out
    assert "one class" not in told
    assert "accuracy" not in told
    assert cli.main(["partition", "--dataset", "houses.csv", "--label", "price", "--client", "city"]) == 0
    assert "classes" not in capsys.readouterr().out
    assert cli.main(["report", "run", "-o", "page.html"]) == 0


def test_whole_numbers_are_classes_unless_a_loss_says_otherwise(capsys):
    options = {"dataset": houses(whole=True), "label": "price", "client": "city", "out": False, "rounds": 3}
    regression = feddwa.run(loss="mse", lr=1e-4, **options)
    assert regression.models["head.weight"].shape[1] == 1
    assert regression.metrics[0]["loss_before"] > 1000  # of the prices themselves, not of their ranks
    assert regression.summary["loss"]["last"] < regression.metrics[0]["loss_before"]
    assert feddwa.run(loss="cross-entropy", **options).models["head.weight"].shape[1] > 50
    with pytest.raises(feddwa.InputError, match="146 different labels in 160 samples are no classes"):
        feddwa.run(**options)


def test_names_cannot_be_regressed_on():
    Path("names.csv").write_text("a,label\n" + "\n".join(f"{n},{'no' if n % 2 else 'yes'}" for n in range(20)))
    with pytest.raises(feddwa.InputError, match="its labels are names, such as no, not numbers"):
        feddwa.run(dataset="names.csv", loss="mse", clients=2, out=False, rounds=1)


def test_a_partition_by_classes_needs_classes():
    with pytest.raises(feddwa.InputError, match="--partition dirichlet"):
        feddwa.run(dataset=houses(), label="price", partition="dirichlet", clients=2, rounds=1, out=False)


def test_several_targets_in_an_npz_file():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    np.savez("two.npz", x=x, y=(x @ rng.normal(size=(3, 2))).astype(np.float32), client=np.arange(60) % 3)
    result = feddwa.run(dataset="two.npz", rounds=4, lr=0.1, metrics=["r2"], out=False)
    assert result.models["head.weight"].shape[1] == 2
    assert result.summary["metrics"]["r2"]["last"] > 0.5


@pytest.mark.slow
def test_nodes_of_flower_train_the_same_models(tmp_path):
    pytest.importorskip("flwr")
    from tests.flower.test_parity import federated, same_models

    path = str(Path(houses()).resolve())
    options = {"dataset": path, "label": "price", "client": "city", "clients": 4, "partition": "natural"}
    options |= {"rounds": 2, "lr": 0.05, "dtype": "float64", "metrics": ("rmse",)}
    lines, models, _ = federated(tmp_path, 2, node={"dataset": path}, **options)
    reference = feddwa.run(**options, out=str(tmp_path / "simulated"))
    for line, other in zip(lines, reference.metrics, strict=True):
        for key in {"loss_before", "metrics_before", "participants", "bytes_up", "flops"} & other.keys():
            assert line[key] == pytest.approx(other[key], rel=1e-5), key
    same_models(models, {**reference.models, **reference.buffers}, 1e-9)
    assert read_run(tmp_path / "federated").measure is LOSS
