"""The doctor finds each of the classic traps, says what to do, and is silent where there is none."""

import re
import shutil

import numpy as np
import pytest

import feddwa
from feddwa import cli, doctor
from feddwa.config import RunConfig
from feddwa.data.describe import Description
from feddwa.results.record import read

SMALL = {"clients": 4, "rounds": 2, "param": ("groups=2",)}


def said(findings, level):
    return [finding.text for finding in findings if finding.level == level]


def has(train, test):
    return Description(np.array(train), np.array(test), ("a", "b"), None, None, None)


def data(train, test, batch=4):
    return list(doctor.data_traps(has(train, test), RunConfig(batch_size=batch)))


def test_sound_data_have_no_warning():
    (finding,) = data([[50, 50], [50, 50]], [[20, 20], [20, 20]])
    assert finding.level == "ok"


def test_clients_smaller_than_a_batch():
    (warning,) = said(data([[2, 1], [9, 9]], [[20, 20], [20, 20]]), "warning")
    assert warning.startswith("1 client (0) has fewer training samples than a batch of 4 (the fewest: 3)")
    assert "--batch-size" in warning


def test_clients_with_one_class():
    (warning,) = said(data([[9, 0], [0, 9], [5, 5]], [[30, 0], [0, 30], [30, 30]]), "warning")
    assert warning.startswith("2 clients (0, 1) have samples of one class alone: they reach 100 %")


def test_tested_on_what_was_never_trained():
    (warning,) = said(data([[9, 0], [9, 9]], [[20, 5], [20, 20]]), "warning")
    assert "1 client (0) has test samples of classes without any training sample (5 test samples, 7.7 %)" in warning


def test_few_test_samples_are_noted():
    (note,) = said(data([[9, 9]], [[5, 5]]), "note")
    assert "one of them is 10.0 points" in note


def test_weights_that_have_become_the_identity():
    mixed, alone = np.full((4, 4), 0.25), 0.99 * np.eye(4) + 0.01 / 4
    (finding,) = doctor.weight_traps("feddwa", [mixed, mixed])
    assert (finding.level, "25 % of a client's new model is its own" in finding.text) == ("ok", True)
    (finding,) = doctor.weight_traps("feddwa", [mixed, alone, mixed, alone, alone])
    assert finding.level == "warning"
    assert "from round 4 on at least 99.2 %" in finding.text
    assert "has become Local" in finding.text
    assert list(doctor.weight_traps("local", [np.eye(4)])) == []  # it is Local
    assert list(doctor.weight_traps("fedavg", [])) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "clusterfl", "rounds": 40}, "in 3 rounds and eps2=1.6: if that stays so, nothing splits"),
        ({"algorithm": "fedamp", "clients": 20}, "a client's own weight is negative in 3 of 3 rounds"),
    ],
)
def test_a_method_that_does_not_fit_the_task_says_so(options, words):
    found = list(doctor.configuration(RunConfig(**{**SMALL, **options})))
    assert [words in text for text in said(found, "warning")] == [True]


def test_a_run_that_was_fedavg_under_another_name(tmp_path):
    """From its files: 21 rounds, of which splits were allowed in one."""
    result = feddwa.run(out=str(tmp_path), **{**SMALL, "algorithm": "clusterfl", "rounds": 21})
    (record,) = read([tmp_path])
    (warning,) = said(doctor.finished_run(record), "warning")
    assert "nothing splits and ClusterFL is FedAvg over equal sizes; take as eps2 a value below it" in warning
    assert warning in said(doctor.method_traps(record.config, result.metrics, []), "warning")


def test_a_sound_configuration(tmp_path):
    found = list(doctor.configuration(RunConfig(out=str(tmp_path), **SMALL)))
    assert not said(found, "warning")
    assert not said(found, "error")
    assert any("3 rounds tried: finite numbers" in text for text in said(found, "ok"))
    assert list(tmp_path.iterdir()) == []  # nothing is written


def test_bad_options_are_an_error_and_nothing_more():
    found = list(doctor.configuration(RunConfig(lr=-1.0)))
    assert [(finding.level, finding.text[:4]) for finding in found] == [("error", "--lr")]


def test_numbers_that_are_not_finite():
    found = list(doctor.configuration(RunConfig(lr=1e30, algorithm="local", **SMALL)))
    (error,) = said(found, "error")
    assert "the loss is no finite number from round 2 on" in error
    assert "lower --lr" in error
    assert not any("finite numbers" in text for text in said(found, "ok"))


@pytest.mark.parametrize("algorithm", ["feddwa", "fedavg"])
def test_refused_updates_are_no_finite_numbers(algorithm):
    """The server refuses what is not finite, so that all models stay finite: the updates have to be looked at, too."""
    found = list(doctor.configuration(RunConfig(lr=1e6, algorithm=algorithm, **SMALL)))
    assert said(found, "error") == [
        "nothing was trained: none of 12 updates in 3 rounds counted (12 not finite); lower --lr"
    ]
    assert not any("finite numbers" in text for text in said(found, "ok"))


def test_faults_are_tried_too():
    found = list(doctor.configuration(RunConfig(fault="nan=0.5", **SMALL)))
    assert any(re.match(r"\d+ of 12 updates did not count \(\d+ not finite\)", text) for text in said(found, "warning"))


def test_what_is_wrong_comes_first(capsys):
    assert cli.main(["doctor", "--lr", "1e6", "--clients", "4", "--param", "groups=2"]) == 1
    lines = capsys.readouterr().out.split("This configuration")[1].splitlines()
    assert lines[1].startswith("  bad  nothing was trained")


def test_batchnorm_and_a_batch_of_one():
    config = RunConfig(model="resnet8", dataset="digits", partition="iid", clients=4, rounds=1).resolved()
    module = feddwa.models.make("resnet8", (3, 32, 32), 10)
    found = list(doctor._batchnorm(module, has([[11, 10], [20, 0]], [[9, 9], [9, 9]]), config))
    assert "BatchNorm layers, policy local: statistics stay with their client" in said(found, "note")[0]
    assert "1 client (0) end an epoch with a batch of one sample" in said(found, "error")[0]
    found = list(doctor._batchnorm(module, has([[12, 10]], [[9, 9]]), config))
    assert not said(found, "error")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"param": ("top_k=1",)}, "top_k=1 keeps no partner"),
        ({"participation": 0.25}, "one client a round has nobody to learn from"),
    ],
)
def test_nobody_to_learn_from(options, words):
    config = RunConfig(**{**SMALL, **options}).resolved()
    assert any(words in text for text in said(doctor._cohort(config), "warning"))


def test_the_machine():
    found = list(doctor.machine())
    assert not said(found, "error")
    text = " ".join(finding.text for finding in found)
    assert "torch 2." in text
    assert "digits" in text
    assert re.search(r"\d GiB of memory free", text)


def test_a_folder_of_data_that_is_not_there(monkeypatch):
    monkeypatch.setenv("FEDDWA_DATA", "/nowhere")
    assert any("/nowhere, which is no folder" in text for text in said(doctor.machine(), "error"))


def test_a_run_is_looked_at(tmp_path, capsys):
    run = tmp_path / "run"
    feddwa.run(out=str(run), **SMALL)
    assert cli.main(["doctor", str(run)]) == 0
    assert "feddwa, 2 rounds, finished" in capsys.readouterr().out
    broken = shutil.copytree(run, tmp_path / "broken")
    text = (broken / "metrics.jsonl").read_text()
    (broken / "metrics.jsonl").write_text(re.sub(r'"loss_before": [\d.]+', '"loss_before": null', text))
    assert cli.main(["doctor", str(broken)]) == 1
    out = capsys.readouterr().out
    assert "the loss is no finite number from round 1 on" in re.sub(r"\s+", " ", out)
    assert "1 bad" in out


def test_from_the_command_line(capsys):
    assert cli.main(["doctor", "--clients", "4", "--param", "groups=2", "--batch-size", "500"]) == 0
    out = capsys.readouterr().out
    assert "have fewer training samples than a batch of 500" in re.sub(r"\s+", " ", out)
    assert max(map(len, out.splitlines())) <= 100
    assert cli.main(["doctor", "--algorithm", "magic"]) == 1
    assert "unknown name 'magic'" in capsys.readouterr().out
