"""What went wrong in a run: each kind is found, the most serious first, and nothing is found in a sound run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import feddwa
from feddwa import cli
from feddwa.results.findings import clients_in_words, failure, guess, went_wrong

EVEN = np.full((4, 10), 5)  # four clients with five test samples of each of ten classes
SMALL = ("--clients", "4", "--rounds", "3", "--param", "groups=2")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def a_run(accuracies, losses, missing=None, participants=4):
    """The lines of metrics.jsonl of a run; `missing` has the updates of every round that did not count."""
    lines = [
        {"round": number, "before": {"all": accuracy}, "loss_before": loss}
        for number, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True), 1)
    ]
    for line in lines[:-1]:
        line |= {"participants": participants} | ({"missing": missing} if missing else {})
    return lines


def levels(found):
    return [finding.level for finding in found]


def test_nothing_is_found_in_a_sound_run():
    assert went_wrong(a_run([10.0, 50.0, 90.0], [2.3, 1.0, 0.5]), EVEN) == []
    assert went_wrong(a_run([10.0, 50.0, 90.0], [2.3, 1.0, 3.0]), EVEN) == []  # overfitting is no divergence


def test_nothing_trained():
    lines = a_run([11.0, 11.0, 11.0], [2.3] * 3, {"not finite": [0, 1, 2], "dropout": [3]}, participants=0)
    (finding,) = went_wrong(lines, EVEN)
    assert finding == (
        "error",
        "nothing was trained: none of 8 updates in 2 rounds counted (6 not finite, 2 dropout); lower --lr",
    )
    assert failure(lines) == finding.text


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("dropout", "lower --fault dropout"),
        ("late", "--deadline over Flower"),
        ("invalid: 'model/0.weight' missing", "let every client train the same network"),
        ("offline", "bring their nodes back online"),
        ("error 5: no space left", "see whether nodes are online, and their logs"),
    ],
)
def test_every_reason_has_its_advice(reason, advice):
    assert advice in failure(a_run([11.0, 11.0], [2.3, 2.3], {reason: [0, 1, 2, 3]}, participants=0))


def test_too_few_updates_for_any_round_of_a_federation():
    assert failure(a_run([11.0, 11.0], [2.3, 2.3], participants=0)).startswith("nothing was trained: 1 round")


def test_a_loss_that_is_no_number():
    lines = a_run([10.0, 50.0, 0.0, 0.0], [2.3, 1.0, None, None])
    (finding,) = went_wrong(lines, EVEN)
    assert finding.level == "error"
    assert finding.text.startswith("the loss is no finite number from round 3 on")
    (finding,) = went_wrong(a_run([10.0, 0.0, 80.0], [2.3, None, 0.5]), EVEN)
    assert finding == ("warning", "the loss was no finite number before rounds 2; lower --lr")


def test_nobody_was_evaluated_is_no_divergence():
    lines = a_run([10.0, 60.0, None], [2.3, 1.0, None])
    lines[-1]["evaluated"] = 0
    assert went_wrong(lines) == []


def test_divergence_in_finite_numbers():
    (finding,) = went_wrong(a_run([10.0, 9.0, 9.5], [2.3, 80.0, 7e5]), EVEN)
    assert finding.level == "error"
    assert finding.text.startswith("training has diverged: the loss grew from 2.3 to 7e+05, with 9.5 %")
    assert failure(a_run([10.0, 9.0, 9.5], [2.3, 80.0, 7e5])) is None  # it has trained, if to no good
    (finding,) = went_wrong(a_run([None, None], [1.0, 50.0]))  # no classes
    assert finding.text == "training has diverged: the loss grew from 1 to 50; lower --lr"


def test_guessing_is_told_by_the_test_data():
    """Two hundred samples: 10 % by one answer, and two standard errors of 2.1 points."""
    bar = guess(EVEN)
    assert bar.common == pytest.approx(10)
    assert bar.limit == pytest.approx(10 + 200 * np.sqrt(0.1 * 0.9 / 200))
    (finding,) = went_wrong(a_run([10.0, 14.0], [2.3, 2.2]), EVEN)
    assert finding.level == "error"
    assert finding.text.startswith(
        "14.0 % after the last round cannot be told from guessing: one answer for all has 10.0"
    )
    assert went_wrong(a_run([10.0, 14.5], [2.3, 2.2]), EVEN) == []
    assert levels(went_wrong(a_run([10.0, 14.0], [2.3, 2.2]), EVEN, finished=False)) == ["note"]
    assert went_wrong(a_run([10.0, 14.0], [2.3, 2.2])) == []  # the data are not known


def test_a_frequent_class_raises_the_bar():
    """1/C = 50 % would let pass a model that always gives the class that nine of ten samples have."""
    assert levels(went_wrong(a_run([50.0, 89.0], [0.7, 0.5]), np.array([[90, 10], [90, 10]]))) == ["error"]


def test_a_global_model_below_the_own_most_frequent_class_is_no_guess():
    """Each client has two classes of its own, so one answer for all has 10 %, the own most frequent class 50 %."""
    counts = np.kron(np.eye(5, dtype=int), np.full((1, 2), 50))
    assert guess(counts)[0] == pytest.approx(10)
    (finding,) = went_wrong(a_run([10.0, 45.0], [2.3, 1.5]), counts)
    assert finding.level == "warning"
    assert "less than if every client always gave its own most frequent class, which has 50.0 %" in finding.text
    assert went_wrong(a_run([10.0, 55.0], [2.3, 1.5]), counts) == []


def test_too_few_test_samples_to_tell():
    (finding,) = went_wrong(a_run([50.0, 100.0], [0.7, 0.1]), np.array([[1, 1]]))
    assert finding == ("note", "2 test samples are too few, or of too few classes, to tell training from guessing")


def test_a_rate_of_zero():
    found = went_wrong(a_run([90.0, 90.0, 90.0], [2.3, 2.3, 2.3]), EVEN)
    assert [(each.level, each.text) for each in found] == [
        ("warning", "the loss is 2.3 before and after 2 rounds: nothing was learnt; raise --lr")
    ]


def test_broken_updates_are_a_warning_and_absent_clients_a_note():
    found = went_wrong(a_run([10.0, 50.0, 90.0], [2.3, 1.0, 0.5], {"dropout": [0], "not finite": [3]}), EVEN)
    assert [(each.level, each.text) for each in found] == [
        ("warning", "2 of 12 updates did not count (2 not finite); lower --lr"),
        ("note", "2 of 12 updates did not count (2 dropout); lower --fault dropout"),
    ]
    (finding,) = went_wrong(a_run([10.0, 90.0], [2.3, 0.5], {"late": [0, 1, 2]}, participants=1), EVEN)
    assert finding.level == "warning"  # more than half of them
    assert "3 clients (0, 1, 2) never counted" in finding.text


def test_clients_are_named_alike_everywhere():
    assert clients_in_words([3]) == "1 client (3)"
    assert clients_in_words(np.arange(7)) == "7 clients (0, 1, 2, 3, 4, ...)"


# Real runs, as a user has them.


def test_a_run_in_which_nothing_trained_fails(capsys):
    assert cli.main(["run", "--lr", "1e6", *SMALL, "--out", "run"]) == 1
    out, error = capsys.readouterr()
    reason = "nothing was trained: none of 12 updates in 3 rounds counted (12 not finite); lower --lr"
    assert error == f"feddwa: failed: feddwa: {reason}\n"
    assert f"bad feddwa: {reason}" in " ".join(out.split())
    assert out.index("bad  feddwa") < out.index("algorithm")  # it leads
    assert cli.main(["report", "run"]) == 0  # the run stays readable
    assert cli.main(["doctor", "run"]) == 1
    assert cli.main(["resume", "run"]) == 1
    assert cli.main(["leaderboard", "run"]) == 1
    assert cli.main(["figure", "pareto", "run"]) == 2


def test_quiet_says_why_it_failed(capsys):
    assert cli.main(["run", "--quiet", "--lr", "1e6", *SMALL, "--out", "[/x]"]) == 1
    out, error = capsys.readouterr()
    assert out == "[/x]\n"
    assert error.startswith("feddwa: failed: feddwa: nothing was trained")


def test_a_brackets_path_is_printed_as_it_is(capsys):
    assert cli.main(["run", *SMALL, "--out", "[/x]"]) == 0
    assert "feddwa report [/x] makes a page of it" in capsys.readouterr().out
    assert cli.main(["doctor", "[/x]"]) == 0
    assert "\n[/x]\n" in capsys.readouterr().out
    assert cli.main(["compare", "--algorithms", "local", *SMALL, "--out", "[b]"]) == 0
    assert "[b]/report.html" in capsys.readouterr().out


def test_a_comparison_says_which_methods_failed_and_praises_none(capsys):
    rate = ("--lr", "1e6", "--clients", "8", "--rounds", "5", "--param", "groups=2")
    assert cli.main(["compare", "--algorithms", "feddwa", "local", "fedavg", *rate, "--out", "all"]) == 1
    out, error = capsys.readouterr()
    assert error.startswith("feddwa: failed: feddwa, fedavg: nothing was trained: none of 40 updates in 5 rounds")
    assert not re.search(r"[+-]\d+\.\d\d ", out)  # no gain over a Local that has diverged
    text = Path("all/report.html").read_text()
    headline = re.search(r'<h1 class="wrong">(.*?)</h1>', text)[1]
    assert headline.startswith("FedAvg and FedDWA: nothing was trained: none of 40 updates in 5 rounds counted")
    assert "Local: training has diverged" in headline
    visible = text.split('<section id="curves">')[0]
    assert not re.search(r"gained by joining|points over|\d points", visible)
    assert 'class="card"' not in visible
    assert cli.main(["leaderboard", "all"]) == 1


def test_one_method_that_fails_does_not_hide_the_others(capsys):
    assert (
        cli.main(["compare", "--algorithms", "fedavg", "local", "--clients", "8", "--rounds", "6", "--out", "all"]) == 0
    )
    feddwa.run(algorithm="feddwa", clients=8, rounds=6, lr=1e6, out="all/feddwa")
    assert cli.main(["report", "all", "-o", "report.html"]) == 0
    headline = re.search(r"<h1[^>]*>(.*?)</h1>", Path("report.html").read_text())[1]
    assert re.match(r"(Local|FedAvg) leads with .* FedDWA: nothing was trained: .*; lower --lr\.$", headline)
    capsys.readouterr()
    assert cli.main(["leaderboard", "all"]) == 0
    assert "bad  FedDWA: nothing was trained" in capsys.readouterr().out


def test_a_stopped_run_without_any_training_is_told_so():
    feddwa.run(lr=1e6, clients=4, rounds=2, out="run")
    Path("run/record.json").unlink()
    for name in ("metrics.jsonl", "clients.jsonl"):
        Path("run", name).write_text("".join(Path("run", name).read_text().splitlines(keepends=True)[:1]))
    assert "nothing was trained" in failure([json.loads(Path("run/metrics.jsonl").read_text())])
    assert cli.main(["doctor", "run"]) == 1
