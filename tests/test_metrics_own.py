"""Metrics of a run: measured on every client's whole test set, recorded, shown; and losses by name."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import (
    balanced_accuracy_score,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from torch import nn
from torch.nn import functional as F

import feddwa
from feddwa import cli, scoring
from feddwa.config_file import from_toml
from feddwa.engine.score import SAMPLES_AT_ONCE
from feddwa.report.page import page
from feddwa.report.tables import show_results, show_seeds
from feddwa.results.methods import by_method
from feddwa.results.record import read_run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))


def clients(sizes=(30, 55, 12)):
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, size) for size in sizes]
    return [((rng.normal(size=(len(y), 4)) + y[:, None]).astype(np.float32), y) for y in labels]


def count(outputs, targets):
    """How many samples a metric is given."""
    assert outputs.shape == (len(targets), 3)
    return len(targets)


def mean_score(outputs, targets):
    return outputs.double().mean()


SMALL = {"rounds": 2, "lr": 0.1, "batch_size": 5}


def test_metrics_see_each_clients_whole_test_set():
    sizes = {}
    result = feddwa.run(
        dataset=clients(), model=nn.Linear(4, 3), out=False,
        metrics={"count": count, "seen": lambda outputs, targets: sizes.setdefault(len(targets), 1)}, **SMALL,
    )  # fmt: skip
    assert sorted(sizes) == [2, 6, 11]
    assert [line["metrics_before"]["count"] for line in result.metrics] == [pytest.approx(19 / 3)] * 3
    assert set(result.metrics[0]["metrics_after"]) == {"count", "seen"}
    assert "metrics_after" not in result.metrics[-1]
    assert result.summary["metrics"]["count"]["last"] == pytest.approx(19 / 3)


@pytest.mark.parametrize("chunk", [None, 2])
def test_vectorised_metrics_are_those_of_the_plain_loop(chunk, monkeypatch):
    """With so few samples at once that a client's test set is evaluated in parts."""
    monkeypatch.setitem(SAMPLES_AT_ONCE, "cpu", 6)
    torch.manual_seed(0)
    model, found = nn.Linear(4, 3).double(), []
    for backend in ("vectorised", "sequential"):
        metrics = {"score": mean_score, "f1": "macro-f1", "classes": "per-class"}
        chunked = {"chunk": chunk} if backend == "vectorised" else {}
        found.append(
            feddwa.run(dataset=clients(), model=model, metrics=metrics, backend=backend, out=False, **SMALL, **chunked)
        )
    for one, two in zip(found[0].metrics, found[1].metrics, strict=True):
        assert one["metrics_before"] == pytest.approx(two["metrics_before"], abs=1e-6)


def test_what_is_recorded_can_be_recomputed():
    result = feddwa.run(
        dataset=clients(), model="linear", metrics={"score": mean_score, "f1": "macro-f1"}, out="run", **SMALL
    )
    config = from_toml("run/config.toml", feddwa.RunConfig)
    assert config.metrics == ("score=tests.test_metrics_own:mean_score", "f1=macro-f1")
    last = json.loads(Path("run/clients.jsonl").read_text().splitlines()[-1])["metrics_before"]
    assert len(last["score"]) == 3
    x_test, y_test = _split(clients()[1], 1)[2:]
    outputs = x_test @ result.models["head.weight"][1].T + result.models["head.bias"][1]
    assert last["score"][1] == pytest.approx(float(outputs.mean()), abs=1e-5)
    expected = 100 * f1_score(y_test, outputs.argmax(1), average="macro", labels=np.unique(y_test))
    assert last["f1"][1] == pytest.approx(expected, abs=1e-3)
    record = read_run(Path("run"))
    assert record.metrics["f1"].tolist() == record.content["metrics"]["f1"]["before"]
    assert record.metrics["f1"][-1] == pytest.approx(np.mean(last["f1"]), abs=1e-4)
    assert len(record.content["metrics"]["f1"]["after"]) == 2


def _split(entry, client):
    from feddwa.data.own.clients import _with_test

    return [torch.from_numpy(each) for each in _with_test([np.asarray(part) for part in entry], client)]


def test_a_resumed_run_goes_on_measuring():
    options = {"dataset": clients(), "model": "linear", "metrics": ["macro-f1", "per-class"], **SMALL, "rounds": 3}
    whole, seen = feddwa.run(out="whole", **options), []

    def stop(line):
        seen.append(line)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feddwa.run(out="cut", observe=stop, **options)
    feddwa.resume("cut")
    lines = [json.loads(line)["metrics_before"] for line in Path("cut/metrics.jsonl").read_text().splitlines()]
    assert lines == [line["metrics_before"] for line in whole.metrics]


def test_accuracy_per_class_by_numpy():
    """The mean over the clients that have samples of a class: client 2 has none of class 3, nobody any of class 2."""
    data = [(x, np.where(y == 2, 3, y)) for x, y in clients()]
    data[2] = (data[2][0], data[2][1] % 3)
    result = feddwa.run(dataset=data, model=nn.Linear(4, 4), metrics=["per-class"], out=False, **SMALL)
    found = np.full((3, 4), np.nan)
    for client, entry in enumerate(data):
        x, y = (each.numpy() for each in _split(entry, client)[2:])
        outputs = x @ result.models["weight"][client].numpy().T + result.models["bias"][client].numpy()
        for c in np.unique(y):
            found[client, c] = 100 * (outputs.argmax(1) == y)[y == c].mean()
    last = result.metrics[-1]["metrics_before"]
    assert list(last) == ["per-class 0", "per-class 1", "per-class 2", "per-class 3"]
    assert last["per-class 2"] is None
    for c in (0, 1, 3):
        assert last[f"per-class {c}"] == pytest.approx(np.nanmean(found[:, c]), abs=1e-4)
        assert result.summary["metrics"][f"per-class {c}"]["last"] == last[f"per-class {c}"]


def test_classes_stand_in_the_terminal_and_in_the_report_by_name():
    data = [(x, np.array(["cat", "dog <b>", "hen"])[y]) for x, y in clients()]
    feddwa.run(dataset=data, model="linear", metrics={"found": "per-class"}, out="run", **SMALL)
    record = read_run(Path("run"))
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["metrics_before"]
    assert record.by_class["found"].shape == (3, 3)
    assert record.by_class["found"][-1].tolist() == list(last.values())
    assert record.metrics == {}
    text, values = page(by_method([record])), record.by_class["found"][-1]
    assert f"<tr><td>dog &lt;b&gt;</td><td>{values[1]:.2f}</td></tr>" in text
    for several in (False, True):
        console = Console(width=80, file=io.StringIO())
        show_seeds(console, by_method([record])) if several else show_results(console, {"feddwa": record})
        low, high = (f"{end} {values[c]:.2f} ({record.class_name(c)})" for end, c in
                     (("lowest", values.argmin()), ("highest", values.argmax())))  # fmt: skip
        shown = console.file.getvalue()
        assert f"found: {low}, {high}\n" in shown
        assert "found 0" not in shown


def test_metrics_on_the_command_line_in_the_table_and_in_the_report(capsys):
    arguments = ["run", "--clients", "4", "--rounds", "2", "--metric", "macro-f1", "--metric", "balanced-accuracy"]
    assert cli.main([*arguments, "--out", "run"]) == 0
    assert "macro-f1" in capsys.readouterr().out
    text = page(by_method([read_run(Path("run"))]))
    assert '<th scope="col">macro-f1</th>' in text
    assert "--metric macro-f1 --metric balanced-accuracy" in text
    assert cli.main(["list", "metrics"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in scoring.METRICS)


def test_a_metric_does_not_change_the_run():
    plain, measured = (
        feddwa.run(dataset=clients(), model="linear", metrics=metrics, out=False, **SMALL)
        for metrics in ((), ("macro-f1",))
    )
    torch.testing.assert_close(plain.models, measured.models, rtol=0, atol=0)
    from feddwa.results.content import cell_name, settings

    config = feddwa.RunConfig(metrics=("macro-f1",)).resolved()
    assert cell_name(config) == cell_name(feddwa.RunConfig().resolved())
    assert not {"metrics", "loss"} & set(settings(config))


def boom(outputs, targets):
    return 1 / (len(targets) - 2)


def later(outputs, targets, calls=[]):  # noqa: B006  # it is to remember
    calls.append(1)
    return "good" if len(calls) > 5 else 1.0


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"bad": lambda outputs, targets: outputs}, r"metric bad: gave a Tensor \(6, 3\) for client 0, must give a "
         r"number \(given outputs \(6, 3\) and torch.int64 targets \(6,\)\)"),
        ({"bad": lambda outputs, targets: None}, "metric bad: gave a NoneType for client 0, must give a number"),
        ({"rmse": "rmse"}, r"metric rmse: failed for client 0: ValueError: 18 outputs for 6 targets \(given outputs "),
        ({"boom": boom}, "metric boom: failed for client 2: ZeroDivisionError: division by zero, before round 1"),
        ({"later": later}, "metric later: gave a str for client 1, must give a number, after training of round 1"),
        ({"f1": "f1"}, "--metric: unknown name 'f1'; valid: macro-f1, balanced-accuracy, per-class, auc-macro"),
        ({"accuracy": count}, "--metric: got 'accuracy', must be another name, which no other metric has"),
        ({"a b": count}, "metrics: got 'a b', must be a name of letters and digits"),
        (3, "metrics: got 3, must be a mapping from names to functions, or a list of names"),
        ({"n": 3}, "metrics: got 3, must be a name or a function"),
    ],
)  # fmt: skip
def test_a_bad_metric_is_one_line(metrics, message):
    with pytest.raises(feddwa.InputError, match=message) as refused:
        feddwa.run(dataset=clients(), model=nn.Linear(4, 3), metrics=metrics, out=False, **SMALL)
    assert "\n" not in str(refused.value)


def test_a_metric_that_is_not_defined_for_a_client_is_null_there():
    """The mean is over the others; JSON has no NaN."""
    metrics = {"some": some}
    feddwa.run(dataset=clients(), model="linear", metrics=metrics, out="run", **SMALL)
    last = json.loads(Path("run/clients.jsonl").read_text().splitlines()[-1])["metrics_before"]["some"]
    assert last == [1.0, 1.0, None]
    assert json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["metrics_before"]["some"] == 1.0


def test_classes_are_needed_for_accuracy_per_class():
    numbers = [(x, y.astype(np.float32) + 0.5) for x, y in clients()]
    with pytest.raises(feddwa.InputError, match=r"^--metric per-class: needs data with one class per sample"):
        feddwa.run(dataset=numbers, model="linear", metrics=["per-class"], out="run", **SMALL)
    assert not Path("run").exists()


def some(outputs, targets):
    return 1.0 if len(targets) > 2 else math.nan


def test_areas_under_roc_curves_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(80, 4, generator=generator).round(decimals=1), torch.arange(80) % 4  # with ties
    shares = scores.double().softmax(1)
    assert scoring.auc_macro(scores, labels) == pytest.approx(100 * roc_auc_score(labels, shares, multi_class="ovr"))
    wanted = roc_auc_score(torch.nn.functional.one_hot(labels, 4), scores, average="micro")
    assert scoring.auc_micro(scores, labels) == pytest.approx(100 * wanted)
    some = labels < 2  # of classes that the client does not have there is no area
    pairs = [roc_auc_score(labels[some] == c, shares[some][:, c]) for c in (0, 1)]
    assert scoring.auc_macro(scores[some], labels[some]) == pytest.approx(100 * np.mean(pairs))
    alone = labels == 0
    assert np.isnan(scoring.auc_macro(scores[alone], labels[alone]))
    assert np.isfinite(scoring.auc_micro(scores[alone], labels[alone]))
    assert np.isnan(scoring.auc_micro(torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1])))


def test_calibration_by_hand():
    """Four samples in two bins: of confidences 0.9 (twice, one right) and 0.6 (twice, both right)."""
    shares = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    found = scoring.ece(shares.log(), torch.tensor([0, 1, 0, 1]))
    assert found == pytest.approx(100 * (0.5 * abs(0.5 - 0.9) + 0.5 * abs(1 - 0.6)), abs=1e-4)
    assert np.isnan(scoring.ece(torch.full((2, 2), torch.nan), torch.tensor([0, 1])))


def test_built_in_metrics_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(80, 4, generator=generator), torch.randint(0, 3, (80,), generator=generator)
    found = scores.argmax(1)
    expected = f1_score(labels, found, average="macro", labels=[0, 1, 2])
    assert scoring.macro_f1(scores, labels) == pytest.approx(100 * expected)
    present = found < 3  # scikit-learn's recall is of the classes that targets have
    assert scoring.balanced_accuracy(scores, labels) == pytest.approx(
        100 * np.mean([float((found[labels == c] == c).double().mean()) for c in range(3)])
    )
    assert scoring.balanced_accuracy(scores[present], labels[present]) == pytest.approx(
        100 * balanced_accuracy_score(labels[present], found[present])
    )
    values, targets = torch.randn(50, 1, generator=generator), torch.randn(50, generator=generator)
    flat = values.flatten().numpy()
    assert scoring.rmse(values, targets) == pytest.approx(root_mean_squared_error(targets, flat), rel=1e-5)
    assert scoring.mean_absolute_error(values, targets) == pytest.approx(mean_absolute_error(targets, flat), rel=1e-5)
    assert scoring.r2(values, targets) == pytest.approx(r2_score(targets, flat), rel=1e-4)
    assert math.isnan(scoring.r2(values, torch.ones(50)))


# Losses.


def test_losses_by_name_and_as_functions_are_the_same():
    rng = np.random.default_rng(0)
    data = [((x := rng.normal(size=(20, 3))), x @ np.array([1.0, -2.0, 0.5])) for _ in range(3)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    found = [feddwa.run(dataset=data, model=model, loss=loss, out=False, **SMALL) for loss in (None, "mse", F.mse_loss)]
    for other in found[1:]:
        torch.testing.assert_close(found[0].models, other.models)
    absolute = feddwa.run(dataset=data, model=model, loss="mae", out=False, **SMALL)
    assert absolute.metrics[0]["loss_before"] != found[0].metrics[0]["loss_before"]


def test_a_loss_of_its_own_for_targets_of_any_shape():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 6)), rng.normal(size=(20, 2, 3))) for _ in range(2)]

    class Reshaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 6)

        def forward(self, x):
            return self.head(x).reshape(-1, 2, 3)

    loss = lambda outputs, targets: (outputs - targets).abs().amax((1, 2)).mean()  # noqa: E731
    result = feddwa.run(dataset=data, model=Reshaped(), loss=loss, out=False, rounds=5, lr=0.1)
    assert result.summary["loss"]["last"] < result.metrics[0]["loss_before"]
    assert result.summary["accuracy"]["last"] is None


def test_two_classes_by_one_score():
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 2, 40) for _ in range(2)]
    data = [((rng.normal(size=(40, 3)) + 2 * y[:, None]).astype(np.float32), y) for y in labels]
    result = feddwa.run(dataset=data, loss="bce", model="linear", out=False, rounds=5, lr=0.5)
    assert result.models["head.weight"].shape == (2, 1, 3)
    assert result.summary["accuracy"]["last"] is None  # one score is not one for each class
    assert result.summary["loss"]["last"] < 0.4


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (nn.Linear(4, 3), "hinge", "--loss: unknown name 'hinge'; valid: cross-entropy, mse, mae, huber, bce"),
        (nn.Linear(4, 3), 3, "loss: got 'int', must be a name or a function"),
        (
            nn.Linear(4, 3),
            lambda outputs: outputs,
            r"--loss lambda: <lambda>\(outputs\) must take \(outputs, targets\)",
        ),
        (
            nn.Linear(4, 3),
            lambda o, t: o,
            r"loss: gives a value of shape \(1, 3\) for outputs .*, must give a tensor of",
        ),
        (
            nn.Linear(4, 3),
            lambda o, t: 3.0,
            "loss: gives a value of type float for outputs .*, must give a tensor of one",
        ),
        (nn.Linear(4, 3), "mse", r"loss: does not take outputs \(1, 3\) and torch.float32 targets \(1,\): 3 outputs"),
    ],
)
def test_a_bad_loss_is_one_line(model, loss, message):
    with pytest.raises(feddwa.InputError, match=message) as refused:
        feddwa.run(dataset=clients(), model=model, loss=loss, out=False, **SMALL)
    assert "\n" not in str(refused.value)


def test_outputs_of_a_column_for_targets_in_a_row_are_refused():
    """torch would broadcast them to a square, and train on nonsense."""
    data = [(np.ones((6, 4), np.float32), np.arange(6.0))]
    with pytest.raises(
        feddwa.InputError, match=r"loss: does not take outputs \(1, 1\) and torch.float32 targets \(1,\)"
    ):
        feddwa.run(dataset=data, model=nn.Linear(4, 1), loss=F.mse_loss, out=False, rounds=1)
