"""Held-out clients (--holdout-clients): they take no part in a run, and are served as newcomers at its end."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import feddwa
from feddwa import cli
from feddwa.build import load_task, make_engine
from feddwa.config import RunConfig
from feddwa.data.task import Task
from feddwa.errors import InputError
from feddwa.experiment import _rounds, run_task
from feddwa.options.evaluation import held_out
from feddwa.results.methods import by_setting
from feddwa.results.record import read, read_run
from feddwa.results.runs import read_models
from feddwa.trained.newcomers import ALONE, EPOCHS
from feddwa.tune.command import Tasks
from feddwa_reproduction.run import task as task_of_a_table
from tests.conftest import ANYWHERE
from tests.data.conftest import REAL_DATA

WHEN = [*map(str, EPOCHS), ALONE]
SMALL = {"clients": 8, "rounds": 2, "batch_size": 20, "device": "cpu", "param": ("rotations.groups=2",)}
APART = {**SMALL, "holdout_clients": 0.25}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def served(**options):
    """How the held-out clients of a run fare, at full precision."""
    config = RunConfig(**{**APART, "dtype": "float64", **options}).resolved()
    task = load_task(config)
    source = _rounds(config, task, make_engine(config, task))
    for _ in range(config.rounds):
        source.federation.step()
    return source.held_out.serve(source.trained())


def timeless(lines):
    return [{**line, "seconds": None} for line in lines]


# Who is held out.


def test_a_share_of_the_clients_is_drawn_from_the_seed():
    whole, task = (load_task(RunConfig(**options).resolved()).partition for options in (SMALL, APART))
    again, other = (load_task(RunConfig(**APART, seed=seed).resolved()).partition for seed in (0, 1))
    assert (len(task.train), len(task.newcomers.train), task.everybody) == (6, 2, 8)
    assert task.newcomers.client_names == again.newcomers.client_names != other.newcomers.client_names
    assert sorted(task.client_names + task.newcomers.client_names, key=int) == [str(client) for client in range(8)]
    for part in (task, task.newcomers):
        for place, name in enumerate(part.client_names):  # everybody has the data that it has without held-out clients
            assert np.array_equal(part.train[place], whole.train[int(name)])
            assert np.array_equal(part.test[place], whole.test[int(name)])
            assert part.turns[place] == whole.turns[int(name)]


@pytest.mark.parametrize(
    ("share", "clients", "apart"), [(0.0, 5, 0), (0.2, 30, 6), (0.5, 5, 3), (0.1, 5, 1), (0.9, 6, 5)]
)
def test_the_share_is_rounded(share, clients, apart):
    assert held_out(share, clients) == apart


@pytest.mark.parametrize("algorithm", ["fedavg", "feddwa", "feddwa_plus", "fedrod", "fedpac"])
def test_the_others_train_as_if_held_out_clients_did_not_exist(algorithm):
    """Line by line: models, weights, class priors and means over clients know the members alone."""
    config = RunConfig(**APART, algorithm=algorithm).resolved()
    task = load_task(config)
    alone = Task(task.dataset, dataclasses.replace(task.partition, newcomers=None))
    found = run_task(dataclasses.replace(config, out="apart"), task)
    expected = run_task(dataclasses.replace(config, out="alone", clients=6, holdout_clients=0.0), alone)
    *rounds, last = timeless(found.metrics)
    assert last.pop("newcomers")["clients"] == 2
    assert [*rounds, last] == timeless(expected.metrics)
    assert all(torch.equal(value, expected.models[name]) for name, value in found.models.items())
    assert expected.newcomers is None


# How they are served.


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_every_method_serves_them_and_says_how(algorithm):
    result = feddwa.run(algorithm=algorithm, out=False, **APART)
    found = result.newcomers
    assert len(found["names"]) == len(found["how"]) == 2
    for score in ("accuracy", "loss"):
        assert list(found[score]) == WHEN
        assert all(len(values) == 2 and None not in values for values in found[score].values())
    assert all("fine-tuned" in how for how in found["how"])
    means = result.summary["newcomers"]
    assert means["clients"] == 2
    for when in WHEN:
        assert means["accuracy"][when] == pytest.approx(np.mean(found["accuracy"][when]), abs=0.006)
        assert means["loss"][when] == pytest.approx(np.mean(found["loss"][when]), abs=1e-4)


def test_only_the_method_itself_decides_what_they_start_from():
    """A global model is what FedAvg has for newcomers; FedDWA looks ahead, and without an epoch it cannot."""
    average, ours = served(algorithm="fedavg"), served(algorithm="feddwa")
    assert set(average.how) == {"the global model, fine-tuned"}
    assert set(ours.how) == {"the clients' models nearest to its guidance model (2 of 5 epochs), mixed and fine-tuned"}
    assert not torch.equal(average.scores["1"].loss, average.scores["0"].loss)
    assert torch.equal(average.scores[ALONE].loss, ours.scores[ALONE].loss)


@pytest.mark.parametrize("algorithm", ["fedavg", "feddwa", "clusterfl", "fedem", "perfedavg", "feddwa_plus", "local"])
def test_the_plain_loop_serves_them_alike(algorithm):
    options = {"algorithm": algorithm, "clients": 5, "holdout_clients": 0.4, "param": ("rotations.groups=2",)}
    stacked, plain = (served(**options, backend=backend) for backend in ("vectorised", "sequential"))
    assert stacked.how == plain.how
    for when in WHEN:
        torch.testing.assert_close(stacked.scores[when].loss, plain.scores[when].loss, rtol=1e-9, atol=1e-9)
        assert torch.equal(stacked.scores[when].accuracy, plain.scores[when].accuracy)


def test_seeds_in_lockstep_serve_their_own(capsys):
    found = feddwa.run(seeds=[0, 1], out="several", **APART)
    for seed in (0, 1):
        alone = feddwa.run(seed=seed, out=False, **APART)
        assert found[seed].newcomers["names"] == alone.newcomers["names"]
        for when in WHEN:
            assert found[seed].newcomers["loss"][when] == pytest.approx(alone.newcomers["loss"][when], rel=1e-4)
    after = found.summary["newcomers"]["accuracy"]["5"]
    assert after.values == {seed: found[seed].summary["newcomers"]["accuracy"]["5"] for seed in (0, 1)}
    assert found.summary["newcomers"]["clients"] == 2


def test_a_resumed_run_serves_them_as_the_run_would_have():
    whole = feddwa.run(out="whole", **APART)

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out="cut", observe=stop, **APART)
    assert json.loads(Path("cut/partition.json").read_text())["newcomers"] == whole.newcomers["names"]
    again = feddwa.resume("cut")
    assert again.newcomers == whole.newcomers
    assert again.summary["newcomers"] == whole.summary["newcomers"]
    read_back = feddwa.resume("cut")
    assert read_back.newcomers == whole.newcomers
    assert timeless(read_back.metrics) == timeless(whole.metrics)


def test_numbers_are_learnt_too():
    """Where targets are not classes, held-out clients have losses alone."""
    rng = np.random.default_rng(0)
    clients = [(x := rng.normal(size=(30, 3)).astype(np.float32), x.sum(1)) for _ in range(6)]
    result = feddwa.run(dataset=clients, rounds=2, holdout_clients=0.34, out="run", device="cpu", model="mlp")
    assert set(result.summary["newcomers"]["accuracy"].values()) == {None}
    assert all(len(values) == 2 for values in read_run(Path("run")).newcomers.values())
    assert cli.main(["report", "run", "-o", "run.html"]) == 0
    assert "Loss, lower is better: each held-out client" in Path("run.html").read_text()


def test_a_run_whose_rate_is_too_high_ends_as_it_would_without_them():
    """Guidance models that diverge are near to nobody; numbers that do not exist are null."""
    result = feddwa.run(out="run", **{**APART, "lr": 1e30})
    assert set(result.newcomers["how"]) == {"the mean of all clients' models, as its guidance model has diverged"}
    assert result.summary["newcomers"]["loss"]["5"] is None
    assert cli.main(["report", "run", "-o", "run.html"]) == 0


# What is written and shown.


def test_terminal_report_and_files_tell_of_them(capsys):
    words = ["--clients", "8", "--rounds", "2", "--holdout-clients", "0.25", "--seeds", "0", "1", "--device", "cpu"]
    assert cli.main(["compare", *words, "--algorithms", "fedavg", "local", "--out", "both"]) == 0
    told = capsys.readouterr().out
    assert "8 clients, 2 held out" in told
    assert "2 held-out clients" in told
    assert "fedavg: the global model, fine-tuned" in told
    assert " ± " in told.partition("2 held-out clients")[2]
    page = Path("both/report.html").read_text()
    assert page.count('<section id="newcomers">') == 1
    assert "<td>the global model, fine-tuned</td>" in page
    assert "Held out, and in none of these charts: 2 clients." in page
    assert "--holdout-clients 0.25" in page
    records = read(["both"])
    assert len(by_setting(records)) == 1
    for record in records:
        assert list(record.newcomers) == WHEN
        assert record.scores.shape == (3, 6)
        assert record.partition.newcomers == tuple(record.content["newcomers"]["names"])
        last = json.loads((record.path / "clients.jsonl").read_text().splitlines()[-1])
        assert last["newcomers"] == record.content["newcomers"]
        assert set(last["names"]).isdisjoint(last["newcomers"]["names"])


def test_runs_with_and_without_are_other_settings_and_without_nothing_is_told(capsys):
    assert cli.main(["run", "--clients", "8", "--rounds", "1", "--holdout-clients", "0.25", "--out", "with"]) == 0
    capsys.readouterr()
    assert cli.main(["run", "--clients", "8", "--rounds", "1", "--out", "without"]) == 0
    assert "held" not in capsys.readouterr().out
    assert cli.main(["report", "without", "-o", "page.html"]) == 0
    assert "newcomers" not in Path("page.html").read_text().partition("<script")[0]
    assert len(by_setting(read(["with", "without"]))) == 2
    assert "newcomers" not in json.loads(Path("without/record.json").read_text())


def test_a_held_out_client_has_no_model_in_the_run():
    result = feddwa.run(out="run", **APART)
    member, apart = result.partition.client_names[0], result.newcomers["names"][0]
    assert read_models(Path("run")).card.client(member) == 0
    with pytest.raises(InputError, match=f"--client '{apart}': no such client"):
        read_models(Path("run")).card.client(apart)


def test_searches_and_tables_of_results_do_not_see_them():
    config = RunConfig(**APART, algorithm="fedavg").resolved()
    assert [Tasks(config).of(seed).clients for seed in (0, 5)] == [6, 6]
    of_a_table = task_of_a_table(config).partition
    assert of_a_table.newcomers.client_names == load_task(config).partition.newcomers.client_names
    assert task_of_a_table(dataclasses.replace(config, holdout_clients=0.0)).clients == 8


def test_adapters_and_layers_that_a_method_adds_go_with_it():
    """What is frozen is everybody's; the rest is mixed and trained."""
    result = feddwa.run(algorithm="fedcp", adapter="lora", out=False, **APART)
    assert result.newcomers["loss"]["5"] != result.newcomers["loss"]["0"]


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [],
        {"names": ["1"]},
        {"how": [1, 2]},
        {"accuracy": {"0": [1.0, 300.0]}},
        {"loss": {"0": [0.1]}},
        {"names": []},
    ],
)
def test_damage_is_named(damage):
    feddwa.run(out="run", **APART)
    content = json.loads(Path("run/record.json").read_text())
    content["newcomers"] = {**content["newcomers"], **damage} if isinstance(damage, dict) else damage
    Path("run/record.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"record\.json: is damaged: .*newcomers"):
        read(["run"])


# What cannot be.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--holdout-clients", "1"], "--holdout-clients: got 1.0, must be a share, from 0 to below 1"),
        (["--holdout-clients", "-0.1"], "--holdout-clients: got -0.1, must be a share"),
        (["--holdout-clients", "nan"], "--holdout-clients: got nan, must be a share"),
        (["--holdout-clients", "0.01"], "would hold out none of 20 clients; take at least 0.05"),
        (["--holdout-clients", "0.9", "--clients", "4"], "would hold out all of 4 clients; take at most 0.75"),
        (["--holdout-clients", "0.5", "--clients", "1"], "would hold out all of 1 client; leave it out"),
        (["--holdout-clients", "0.5", "--participation", "0.06"], "--participation: got 0.06, must be at least 1/10"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words, told, capsys):
    assert cli.main(["run", *words, "--out", "run"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert not Path("run").exists()


def test_owners_are_counted_when_they_are_known(capsys):
    """Of own data it is known who has them when they have been read: still before anything is written."""
    table = [f"{number % 7},{owner},{number % 2}" for owner in "abc" for number in range(20)]
    Path("table.csv").write_text("\n".join(["value,owner,label", *table]) + "\n")
    words = ["--dataset", "table.csv", "--label", "label", "--client", "owner", "--model", "mlp", "--rounds", "1"]
    assert cli.main(["run", *words, "--holdout-clients", "0.1", "--out", "run"]) == 2
    assert "would hold out none of 3 clients; take at least 0.33" in capsys.readouterr().err
    assert not Path("run").exists()
    result = feddwa.run(
        dataset="table.csv", label="label", client="owner", model="mlp", rounds=1, holdout_clients=0.4, out="run"
    )
    assert sorted([*result.partition.client_names, *result.newcomers["names"]]) == ["a", "b", "c"]


class Normed(torch.nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, classes))


def test_a_held_out_client_that_cannot_train_is_refused_before_the_run():
    """A batch of one sample has no variance: said of the held-out client, by its name."""
    rng = np.random.default_rng(0)

    def data(size):
        return rng.normal(size=(size, 3)).astype(np.float32), np.arange(size) % 2

    options = {"model": Normed, "rounds": 1, "batch_size": 5, "holdout_clients": 0.25, "device": "cpu"}
    clients = {name: (*data(20), *data(4)) for name in "abcd"}
    names = feddwa.run(dataset=clients, out=False, **options).newcomers["names"]
    with pytest.raises(InputError, match=f"client {names[0]} has 21 training samples"):
        feddwa.run(dataset={**clients, names[0]: (*data(21), *data(4))}, out="run", **options)
    assert not Path("run").exists()


def test_over_flower_there_are_none():
    from feddwa.flower.settings import FlowerConfig

    with pytest.raises(InputError, match=r"--holdout-clients: got 0\.2, must be left to the simulator"):
        FlowerConfig(holdout_clients=0.2).checked()


# Real data.


@pytest.mark.slow
@pytest.mark.skipif(not (REAL_DATA / "har").exists(), reason="needs the recordings of har")
def test_people_that_were_held_out(monkeypatch):
    monkeypatch.setenv("FEDDWA_DATA", str(REAL_DATA))
    result = feddwa.run(dataset="har", algorithm="fedavg", rounds=1, holdout_clients=0.1, out=False, device="cpu")
    assert result.summary["clients"] == 27
    assert result.summary["newcomers"]["clients"] == 3
    assert result.summary["newcomers"]["loss"]["5"] < result.summary["newcomers"]["loss"]["0"]
