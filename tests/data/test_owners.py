"""Data with owners: who the clients are by default, and that they keep their names everywhere."""

import base64
import gzip
import json
import re
import shutil
import tomllib
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

import feddwa
from feddwa import cli, doctor
from feddwa.build import engine_on, load_task
from feddwa.config import RunConfig
from feddwa.data import describe
from feddwa.data.adapter import owners_names
from feddwa.data.own.clients import from_arrays
from feddwa.data.partition import make
from feddwa.data.sources import load
from feddwa.engine import Settings
from feddwa.errors import InputError
from feddwa.fit import check_single_samples
from feddwa.report.figures import FIGURES
from feddwa.report.page import page
from feddwa.results.methods import by_method, by_setting
from feddwa.results.plot import Panel, terminal_weights
from feddwa.results.record import read

HOSPITALS = ("hospital-1", "hospital-3", "hospital-7")
QUICK = ("--rounds", "2", "--device", "cpu")


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def hospitals(here):
    """A table of three hospitals with 20 patients each."""
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.normal() + (i % 2):.3f},{rng.normal():.3f},{i % 2},{HOSPITALS[i % 3]}" for i in range(60)
    ]  # every hospital has both classes
    Path("patients.csv").write_text("a,b,label,client\n" + "\n".join(lines) + "\n")
    return "patients.csv"


@pytest.fixture
def sites(here):
    """Folders site-*/class/*.png of two sites."""
    for site in ("site-a", "site-b"):
        for label in ("no", "yes"):
            folder = Path("photos") / site / label
            folder.mkdir(parents=True)
            for i in range(6):
                level = 10 * i + (120 if label == "yes" else 0)
                Image.fromarray(np.full((8, 8), level, dtype=np.uint8)).save(folder / f"{i}.png")
    return "photos"


@pytest.fixture
def call(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(list(arguments))
        return status, *capsys.readouterr()

    return call


# The default partition.


def written(path: str) -> dict[str, object]:
    return tomllib.loads(Path(path).read_text())


def test_owners_are_the_clients_by_default_from_the_shell(call, sites):
    status, out, _ = call("run", "--dataset", sites, *QUICK, "--out", "run")
    assert status == 0
    assert "partition natural, 2 clients (the data's owners: site-a, site-b)" in out
    config = written("run/config.toml")
    assert (config["partition"], config["clients"]) == ("natural", 2)
    assert json.loads(Path("run/record.json").read_text())["summary"]["partition"] == "natural"
    stored = describe.from_json(json.loads(Path("run/partition.json").read_text()))
    assert stored.turns is None
    assert stored.client_names == ("site-a", "site-b")


def test_owners_are_the_clients_by_default_in_python(hospitals):
    result = feddwa.run(dataset=hospitals, rounds=1, out="run")
    assert (result.summary["partition"], result.summary["clients"]) == ("natural", 3)
    assert result.partition.client_names == HOSPITALS
    assert result.partition.turns is None
    assert RunConfig(dataset=hospitals).resolved().partition is None  # the data are not there yet


def test_without_owners_rows_are_dealt_out_evenly(call, here, rng):
    np.savez("own.npz", x=rng.normal(size=(200, 8)), y=np.arange(200) % 2)
    status, out, _ = call("run", "--dataset", "own.npz", "--clients", "4", *QUICK, "--out", "run")
    assert status == 0
    assert "partition iid, 4 clients (no owners in the data)" in out
    assert written("run/config.toml")["partition"] == "iid"
    images = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # square images, which rotations would turn
    np.savez("own.npz", x=images, y=np.arange(200) % 2)
    task = load_task(RunConfig(dataset="own.npz").resolved())
    assert (task.clients, task.partition.turns, task.partition.groups) == (8, None, None)


def test_compare_partition_and_doctor_choose_alike(call, hospitals):
    algorithms = ("--algorithms", "local", "fedavg")
    status, out, _ = call("compare", "--dataset", hospitals, *QUICK, *algorithms, "--out", "all")
    assert status == 0
    assert "partition natural, 3 clients (the data's owners: hospital-1, hospital-3, hospital-7)" in out
    assert written("all/compare.toml")["partition"] == "natural"
    assert written("all/local/config.toml")["clients"] == 3
    status, out, _ = call("partition", "--dataset", hospitals)
    assert status == 0
    assert "partition natural, 3 clients" in out
    found = [finding.text for finding in doctor.configuration(RunConfig(dataset=hospitals))]
    assert not any("local on" in text for text in found)
    assert any(", natural, 3 clients" in text for text in found)
    assert any("the data's owners: hospital-1" in text for text in found)


def test_a_shift_is_there_for_own_data_that_ask_for_it(sites):
    task = load_task(RunConfig(dataset=sites, partition="rotations", clients=4).resolved())
    assert task.partition.turns is not None
    assert task.partition.client_names == ()


def test_named_datasets_keep_their_default():
    assert RunConfig().resolved().partition == "rotations"
    assert RunConfig(dataset="cifar10").resolved().clients == 20


def test_the_command_in_a_report_makes_the_same_partition(hospitals):
    feddwa.run(dataset=hospitals, rounds=1, out="own")
    feddwa.run(rounds=1, clients=4, out="digits")
    own, digits = (page(by_method(read([path]))) for path in ("own", "digits"))
    assert "--partition natural" in own
    assert "--partition" not in re.search(r'<pre id="commands">(.*?)</pre>', digits, re.DOTALL)[1]


def test_a_run_on_own_data_resumes_from_another_folder(hospitals, tmp_path, monkeypatch, call):
    feddwa.run(dataset=hospitals, rounds=1, out="run", seed=1)
    assert written("run/config.toml")["dataset"] == str(Path(hospitals).absolute())
    Path("run/record.json").unlink()
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace("rounds = 1", "rounds = 2"))
    run = Path("run").absolute()
    (run / "weights.journal").touch()
    monkeypatch.chdir(tmp_path)
    status, _, err = call("resume", str(run))
    assert (status, err) == (0, "")
    assert json.loads((run / "record.json").read_text())["summary"]["rounds"] == 2


# Names.


def test_names_come_from_every_kind_of_file(hospitals, sites, rng):
    assert load(hospitals).client_names == HOSPITALS
    assert load(sites).client_names == ("site-a", "site-b")
    assert load(sites).client_names == ("site-a", "site-b")  # from the cache
    np.savez("own.npz", x=rng.normal(size=(8, 2)), y=np.arange(8) % 2, client=np.array([10.0, 2.0] * 4))
    own = load("own.npz")
    assert own.client_names == ("2", "10")
    assert own.client.tolist().count(0) == 4


def test_a_partition_has_the_names_of_its_clients(hospitals):
    data = load(hospitals)
    assert make("natural", {}, data, 2, 0).client_names == HOSPITALS[:2]
    assert make("natural", {}, data, 2, 0).client_name(1) == "hospital-3"
    assert make("iid", {}, data, 2, 0).client_name(1) == "1"


def test_tables_pictures_and_the_terminal_name_clients(call, hospitals):
    status, out, _ = call("partition", "--dataset", hospitals, "--out", "p.svg")
    assert status == 0
    assert all(name in out for name in HOSPITALS)
    status, out, _ = call("run", "--dataset", hospitals, *QUICK, "--out", "run")
    small = out[out.index("Mixing weights") :]
    assert all(f"{name} " in small for name in HOSPITALS)


def test_every_figure_of_a_run_names_clients(hospitals):
    for name in ("feddwa", "local"):
        feddwa.run(algorithm=name, dataset=hospitals, rounds=1, out=f"all/{name}")
    methods = by_method(read(["all"]))
    for figure in ("weights", "similarity", "partition"):
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text
            FIGURES[figure](methods, f"{figure}.svg")
        drawn = Path(f"{figure}.svg").read_text()
        assert all(name in drawn for name in HOSPITALS), figure


def test_the_report_carries_the_names(hospitals):
    feddwa.run(dataset=hospitals, rounds=1, out="run")
    text = page(by_method(read(["run"])))
    packed = re.search(r'id="payload"[^>]*>([^<]+)<', text)[1]
    payload = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert payload["partitions"]["0"]["names"] == list(HOSPITALS)


def test_the_doctor_names_clients(here):
    lines = [f"{i},{i % 2 if owner != 'hospital-3' else 0},{owner}" for owner in HOSPITALS for i in range(20)]
    Path("own.csv").write_text("a,label,client\n" + "\n".join(lines))
    found = [finding.text for finding in doctor.configuration(RunConfig(dataset="own.csv"))]
    assert any(text.startswith("1 client (hospital-3) has samples of one class alone") for text in found)
    feddwa.run(dataset="own.csv", rounds=1, out="run")
    found = [finding.text for finding in doctor.finished_run(read(["run"])[0])]
    assert any("(hospital-3)" in text for text in found)


def test_errors_name_clients(here):
    x = np.arange(40.0).reshape(20, 2)
    owner = np.array(["hospital-1"] * 10 + ["hospital-3"] * 10)
    np.savez("own.npz", x=x, y=np.arange(20) % 2, client=owner, x_test=x[:5], y_test=np.arange(5) % 2,
             client_test=owner[:5])  # fmt: skip
    with pytest.raises(InputError, match="client hospital-3 has no test sample"):
        load_task(RunConfig(dataset="own.npz").resolved())
    lines = [f"{i},{i % 2},{HOSPITALS[i % 3]}" for i in range(27)]  # 9 rows each: 7 to train
    Path("own.csv").write_text("a,label,client\n" + "\n".join(lines))
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 2))
    task = load_task(RunConfig(dataset="own.csv").resolved())
    algorithm = RunConfig(algorithm="local").make_algorithm()
    engine = engine_on(algorithm, network, task, torch.device("cpu"), Settings(1, 3, 0.1), 0, torch.float32)
    with pytest.raises(InputError, match="client hospital-1 has 7 training samples"):
        check_single_samples(engine)


def test_names_that_look_like_markup_or_formulas_are_printed_as_they_are(call, here):
    names = ("[/x]", "$a_$", "[bold]b")
    lines = [f"{i},{'[/c]' if i % 2 else '$d$'},{names[i % 3]}" for i in range(60)]
    Path("own.csv").write_text("a,label,client\n" + "\n".join(lines))
    status, out, err = call("run", "--dataset", "own.csv", *QUICK, "--out", "run")
    assert (status, err) == (0, "")
    assert all(name in out for name in names)
    status, out, err = call("partition", "--dataset", "own.csv", "--out", "p.png")
    assert (status, err) == (0, "")
    assert all(name in out for name in (*names, "[/c]", "$d$"))


def test_panels_of_a_cohort_name_its_clients():
    panel = Panel("x", np.eye(2), np.array([2, 0]), HOSPITALS)
    assert str(terminal_weights(panel)).splitlines()[0].startswith("hospital-7 ")
    assert Panel("x", np.eye(2), np.array([2, 0])).client_at(0) == "2"


def test_arrays_by_name_keep_the_names(rng):
    clients = {name: (rng.normal(size=(10, 3)).astype("float32"), np.arange(10) % 2) for name in HOSPITALS}
    result = feddwa.run(model=torch.nn.Linear(3, 2), dataset=clients, rounds=1, out=False)
    assert result.partition.client_names == HOSPITALS
    clients["hospital-3"] = (np.zeros((1, 3)), np.zeros(1))
    with pytest.raises(InputError, match=r"clients\['hospital-3'\]: got 1, must be at least 2 samples"):
        feddwa.run(model=torch.nn.Linear(3, 2), dataset=clients, rounds=1, out=False)


def test_a_foreign_partition_by_owner_keeps_the_names(hospitals):
    data = load(hospitals)
    assert owners_names(data, (data.client + 1) % 3, 3) == (HOSPITALS[2], HOSPITALS[0], HOSPITALS[1])
    assert owners_names(data, np.minimum(data.client, 1), 2) == ()  # a client with two owners is neither of them
    assert owners_names(data, np.arange(60) % 2, 2) == ()


@pytest.mark.parametrize(("rows", "clients"), [(500, 20), (120, 4), (30, 2), (7, 1)])
def test_small_data_without_owners_have_fewer_clients(here, rng, rows, clients):
    np.savez("own.npz", x=rng.normal(size=(rows, 3)), y=np.arange(rows) % 2)
    assert load_task(RunConfig(dataset="own.npz").resolved()).clients == clients
    assert load_task(RunConfig(dataset="own.npz", partition="iid").resolved()).clients == clients
    assert load_task(RunConfig(dataset="own.npz", clients=1).resolved()).clients == 1


def test_a_tiny_test_part_has_fewer_clients(here, rng):
    x, y = rng.normal(size=(400, 3)), np.arange(400) % 2
    np.savez("own.npz", x=x, y=y, x_test=x[:16], y_test=y[:16])
    assert load_task(RunConfig(dataset="own.npz").resolved()).clients == 3


def test_a_single_owner_in_files_is_asked_about(call, here):
    with open("own.csv", "w") as file:
        print("x,label,client", *(f"{i},{i % 2},images" for i in range(40)), sep="\n", file=file)
    status, _, err = call("run", "--dataset", "own.csv", *QUICK, "--out", "run")
    assert status == 2
    assert "all samples belong to one client, images; name the column" in err
    assert call("run", "--dataset", "own.csv", "--partition", "natural", *QUICK, "--out", "run")[0] == 0


def test_small_clients_are_not_all_tested_on_their_last_class(here, rng):
    y, owner = np.tile([0, 0, 0, 1, 1], 40), np.repeat(np.arange(40), 5)
    np.savez("own.npz", x=rng.normal(size=(200, 3)), y=y, client=owner)
    data = load("own.npz")
    assert np.bincount(data.y[data.train_count :]).tolist() == [24, 16]
    data = from_arrays([(np.ones((5, 3)), np.array([0, 0, 0, 1, 1])) for _ in range(40)])
    assert np.bincount(data.y[data.train_count :]).tolist() == [24, 16]


@pytest.fixture
def several(call, here):
    """Runs on two files of one name, and on one of them with another label."""
    for folder in ("north", "south"):
        Path(folder).mkdir()
        lines = [f"{i % 2},{i % 3},{i % 2},{i % 3},{'ab'[i // 120]}" for i in range(240)]
        Path(folder, "own.csv").write_text("\n".join(["x,z,label,stage,client", *lines]))
    quick = ("--rounds", "5", "--algorithm", "local")
    assert call("run", "--dataset", "north/own.csv", *quick, "--out", "runs/1")[0] == 0
    assert call("run", "--dataset", "south/own.csv", *quick, "--out", "runs/2")[0] == 0
    assert call("run", "--dataset", "south/own.csv", "--label", "stage", *quick, "--out", "runs/3")[0] == 0


def test_files_of_one_name_and_other_labels_are_settings_of_their_own(several, call, here):
    names = list(by_setting(read(["runs"])))
    assert [name.removeprefix(str(Path.cwd())) for name in names] == [
        "/north/own.csv, natural, 2 clients",
        "/south/own.csv, natural, 2 clients",
        "/south/own.csv label=stage, natural, 2 clients",
    ]
    status, out, _ = call("leaderboard", "runs")
    assert (status, out.count("better")) == (0, 3)
    assert call("report", "runs", "-o", "report.html")[0] == 0
    assert len(list(Path().glob("*.html"))) == 4  # a page each, and their index
    with pytest.raises(InputError, match=r"has label None, runs/3 has stage; give runs of one"):
        by_method(read(["runs/2", "runs/3"]))


def test_nothing_is_written_where_a_setting_cannot_be_compared(several, call, here):
    shutil.copytree("runs/3", "runs/4")
    for command in (("report", "runs", "-o", "r.html"), ("figure", "curves", "runs", "-o", "r.png")):
        status, out, err = call(*command)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "2 runs of Local with seed 0; give one of them" in err
    assert call("leaderboard", "runs")[:2] == (2, "")
    assert not list(Path().glob("r*.*"))


def test_names_that_are_empty_are_refused(call, hospitals):
    for option in ("--dataset", "--label", "--client", "--drop"):
        status, out, err = call("run", "--dataset", hospitals, f"{option}=")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert option in err
