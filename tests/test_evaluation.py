"""--eval-every, --eval-clients and --eval central: what is measured is what a run without them would have measured."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import feddwa
from feddwa import checkpoint
from feddwa.algorithms import ALGORITHMS
from feddwa.build import load_task, make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.engine import keys
from feddwa.errors import InputError
from feddwa.experiment import resume
from feddwa.results.compare import within
from feddwa.results.record import read_run
from feddwa.results.summary import milestones
from tests.conftest import ANYWHERE

SETTING = {"algorithm": "feddwa", "clients": 6, "rounds": 7, "participation": 0.5, "validation": 0.2, "out": False}


@pytest.fixture(scope="module")
def whole():
    return feddwa.run(**SETTING, metrics=["macro-f1"])


def scores_of(line):
    kept = ("before", "after", "validation", "validation_after", "loss", "metrics")
    return {key: value for key, value in line.items() if key.startswith(kept)}


def same_models(one, other):
    pairs = [(one.models[name], other.models[name]) for name in one.models]
    assert all(torch.equal(left, right) for left, right in pairs)


def test_every_third_round_is_that_of_the_run_without(whole):
    run = feddwa.run(**SETTING, metrics=["macro-f1"], eval_every=3)
    same_models(run, whole)
    for line, other in zip(run.metrics, whole.metrics, strict=True):
        if line["round"] in (1, 4, 7, 8):  # after 0, 3 and 6 rounds, and at the end
            assert scores_of(line) == scores_of(other)
            assert "evaluated" not in line
        else:
            assert line["evaluated"] == 0
            assert {
                each for value in (line["before"], line["after"], line["validation"]) for each in value.values()
            } == {None}
        for cost in ("participants", "bytes_up", "flops"):
            assert line.get(cost) == other.get(cost)
    values = [whole.metrics[place]["before"]["all"] for place in (0, 3, 6, 7)]
    told = run.summary["accuracy"]
    assert told["best"] == max(values)
    assert told["best_round"] == [0, 3, 6, 7][values.index(max(values))]
    assert told["last"] == values[-1]
    assert told["mean_last_10"] == pytest.approx(np.mean(values), abs=1e-4)
    assert run.summary["metrics"]["macro-f1"]["mean_last_10"] is not None


def test_a_sample_of_clients_is_the_same_in_every_round_and_all_are_evaluated_at_the_end(whole):
    run = feddwa.run(**SETTING, metrics=["macro-f1"], eval_clients=2)
    same_models(run, whole)
    assert scores_of(run.metrics[-1]) == scores_of(whole.metrics[-1])
    for line, other in zip(run.metrics[:-1], whole.metrics, strict=False):
        assert line["evaluated"] == 2
        assert line["participants"] == other["participants"] == 3


def test_the_sample_by_client(tmp_path, whole):
    out = tmp_path / "run"
    feddwa.run(**{**SETTING, "out": str(out)}, eval_clients=2, eval_every=2)
    sample = keys.sample(keys.key(0, "evaluated"), 6, 2).tolist()
    lines = [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]
    seen = [[client for client, value in enumerate(line["before"]) if value is not None] for line in lines]
    assert seen == [sample, [], sample, [], sample, [], sample, list(range(6))]
    mean = np.mean([lines[2]["before"][client] for client in sample])
    record = read_run(out)
    assert record.series["before.all"][2] == pytest.approx(mean, abs=0.01)
    assert np.isnan(record.scores[1]).all()
    assert record.last == whole.summary["accuracy"]["last"]
    assert record.best[1] in (0, 2, 4, 6, 7)
    assert within(record, "bytes", record.spent("bytes")[3]).rounds == 2  # the last that was evaluated by then


@pytest.mark.parametrize("algorithm", ANYWHERE)
def test_no_evaluation_leaves_a_trace_in_training(algorithm):
    """Every method: three rounds with one evaluation and with four have the same models, bit for bit."""
    options = {"algorithm": algorithm, "clients": 4, "rounds": 3, "participation": 0.5, "batch_size": 40, "out": False}
    same_models(feddwa.run(**options, eval_every=3), feddwa.run(**options))


def test_rounds_without_evaluation_score_nobody(monkeypatch):
    config = RunConfig(**{**SETTING, "out": None}, eval_every=4).resolved()
    federation = make_federation(config, make_engine(config, load_task(config)))
    federation.step()
    for name in ("_evaluate", "_personal"):
        monkeypatch.setattr(type(federation.client_side), name, None)  # calling it would fail
    monkeypatch.setattr(type(federation.server_side), "deliver", None)
    federation.step()
    federation.step()
    with pytest.raises(TypeError):
        federation.step()


def test_a_run_that_was_killed_between_evaluations_continues(tmp_path, monkeypatch):
    options = {**SETTING, "eval_every": 3, "eval_clients": 4}
    feddwa.run(**{**options, "out": str(tmp_path / "whole")})
    save = checkpoint.Writer.save

    def killed(self, round, *arguments, **more):
        save(self, round, *arguments, **more)
        if round == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Writer, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        feddwa.run(**{**options, "out": str(tmp_path / "killed")})
    monkeypatch.undo()
    resume(tmp_path / "killed")
    lines = [
        [{**json.loads(line), "seconds": 0} for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("whole", "killed")
    ]
    assert lines[0] == lines[1]
    models = [(tmp_path / run / "models.safetensors").read_bytes() for run in ("whole", "killed")]
    assert models[0] == models[1]


def test_a_regression_has_nulls_in_rounds_without_evaluation():
    rng = np.random.default_rng(0)
    clients = [(x := rng.normal(size=(30, 3)).astype(np.float32), x @ np.ones(3, dtype=np.float32)) for _ in range(3)]
    net = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    options = {"dataset": clients, "model": net, "rounds": 4, "lr": 0.05, "algorithm": "fedavg", "validation": 0.2}
    run = feddwa.run(**options, eval_every=2, early_stop=3, out=False)
    assert [line["loss_before"] is None for line in run.metrics] == [False, True, False, True, False]
    assert run.summary["loss"]["best_round"] == 4
    assert run.summary["validation"]["measure"] == "loss"


NORMALISED = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
CENTRAL = {"partition": "dirichlet", "clients": 4, "rounds": 2, "out": False, "eval": "central"}


def by_hand(run, config, clients):
    """Accuracy in percent of models of a run on the test samples of all clients, mean over these clients."""
    engine = make_engine(config, load_task(config))
    rows = torch.from_numpy(np.sort(np.concatenate(engine.data.rows("test"))))
    x, y = engine.data.batch(rows, engine.dtype)
    found = []
    for client in clients:
        own = {name: value[client] for name, value in run.models.items()}
        outputs = torch.func.functional_call(engine.module.eval(), own, x)
        found.append(100 * float((outputs.argmax(1) == y).double().mean()))
    return np.mean(found)


@pytest.mark.parametrize("backend", ["vectorised", "sequential"])
def test_a_global_model_is_tested_on_everybodys_data(backend):
    run = feddwa.run(**CENTRAL, algorithm="fedavg", backend=backend)
    config = RunConfig(**{**CENTRAL, "out": None}, algorithm="fedavg").resolved()
    assert run.metrics[-1]["central"]["all"] == pytest.approx(by_hand(run, config, [0]), abs=1e-3)
    weighted = run.metrics[-1]["before"]["all_weighted"]  # every test sample once, by one model: the same number
    assert run.metrics[-1]["central"]["all"] == pytest.approx(weighted, abs=1e-3)
    assert [line["central"]["all"] is None for line in run.metrics] == [False] * 3
    assert run.summary["accuracy"]["series"]["central.all"]["last"] == run.metrics[-1]["central"]["all"]


def test_personalised_models_are_tested_on_everybodys_data_on_request():
    options = {**CENTRAL, "eval": "central-mean"}
    run = feddwa.run(**options, algorithm="local", chunk=3)
    config = RunConfig(**{**options, "out": None}, algorithm="local").resolved()
    assert run.metrics[-1]["central"]["all"] == pytest.approx(by_hand(run, config, range(4)), abs=1e-3)
    same_models(run, feddwa.run(**{**options, "eval": "clients"}, algorithm="local", chunk=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "feddwa"}, "--eval central: feddwa has no global model; central-mean takes the mean"),
        ({"partition": "rotations", "algorithm": "fedavg"}, "--eval central: the partition turns clients' images"),
        ({"algorithm": "fedavg", "model": NORMALISED}, "--eval central: with --batchnorm local no two clients' models"),
        ({"algorithm": "fedavg", "eval": "all"}, "eval: got 'all', must be one of clients, central, central-mean"),
        ({"algorithm": "fedavg", "eval_every": 0}, "--eval-every: got 0, must be at least 1 round"),
        ({"algorithm": "fedavg", "eval_clients": 0}, "--eval-clients: got 0, must be at least 1"),
        ({"algorithm": "fedavg", "eval_clients": 5}, "--eval-clients: got 5, must be at most 4, the number of clients"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(InputError) as refused:
        feddwa.run(**{**CENTRAL, **options})
    assert message in str(refused.value)


@pytest.mark.parametrize("algorithm", [name for name, kind in ALGORITHMS.items() if kind.global_model])
def test_a_global_model_is_everybodys(algorithm):
    config = RunConfig(algorithm=algorithm, clients=4, participation=0.5, batch_size=40).resolved()
    federation = make_federation(config, make_engine(config, load_task(config)))
    federation.step()
    federation.step()
    models, _ = federation.personal(federation.all_clients())
    assert all(torch.equal(value, value[:1].expand_as(value)) for value in models.values())


def test_milestones_tell_rounds_that_were_evaluated():
    assert milestones([3.0, 5.0, 4.0], [0, 10, 20]) == {
        "best": 5.0, "best_round": 10, "last": 4.0, "mean_last_10": 4.0,
    }  # fmt: skip
