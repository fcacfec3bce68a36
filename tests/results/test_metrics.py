"""The numbers of a round and of a run, against a federation of four clients worked out by hand."""

import dataclasses
import json
import math

import pytest
import torch

from feddwa.engine import Cohort, Scores
from feddwa.federation import Round
from feddwa.ledger import Costs
from feddwa.results import metrics
from feddwa.results.summary import summarise, summarise_loss

TEST_SIZES = torch.tensor([10, 20, 30, 40])


def scores(accuracy, loss=None) -> Scores:
    loss = [1.0] * len(accuracy) if loss is None else loss
    return Scores(torch.tensor(accuracy, dtype=torch.float64), torch.tensor(loss, dtype=torch.float64))


def a_round(before: Scores, after: Scores, ids=(1, 3)) -> Round:
    costs = Costs(100, 200, torch.tensor([10.0, 21.0]), 1234, {"train": 0.123456})
    return Round(Cohort(torch.tensor(ids), torch.tensor([7, 9]), 1), before, after, {}, costs)


def test_four_series_before_and_after():
    """Clients 1 and 3 take part; their tests have 20 and 40 samples, the others' 10 and 30."""
    line = metrics.round_line(
        a_round(scores([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]), scores([0.5, 0.8], [0, 1])), TEST_SIZES
    )
    assert line["before"] == {
        "all": 25.0,
        "all_weighted": 30.0,  # (0.1 * 10 + 0.2 * 20 + 0.3 * 30 + 0.4 * 40) / 100
        "participants": 30.0,
        "participants_weighted": 33.3333,  # (0.2 * 20 + 0.4 * 40) / 60
    }
    assert line["after"] == {
        "all": 42.5,  # 0.1, 0.5, 0.3, 0.8: who takes no part keeps the model
        "all_weighted": 52.0,
        "participants": 65.0,
        "participants_weighted": 70.0,
    }
    assert (line["loss_before"], line["loss_after"]) == (2.5, 1.25)
    assert (line["bytes_down"], line["bytes_up"], line["flops"], line["participants"]) == (100, 200, 16, 2)
    assert line["server_flops"] == 1234
    assert line["seconds"] == {"train": 0.1235}


def test_client_lines():
    before, after = scores([0.1, 0.2, 0.3, 1 / 3]), scores([0.5, 0.8])
    line = metrics.client_line(1, before, after, torch.tensor([1, 3]))
    assert line == {"round": 1, "before": [10.0, 20.0, 30.0, 33.33], "participants": [1, 3], "after": [50.0, 80.0]}
    assert metrics.client_line(2, before, None, None) == {"round": 2, "before": [10.0, 20.0, 30.0, 33.33]}


def test_preferred_are_the_others_of_largest_positive_affinity():
    affinity = torch.tensor([[9.0, 0.1, -1, 0.3, 0, 0.2, 0.05], *[[0.0] * 7] * 5, [0.0, 0, 0, 0, 0, 0.5, -1]])
    some = a_round(scores([0.0] * 4), scores([0.0] * 2))
    line = metrics.round_line(dataclasses.replace(some, info={"affinity": affinity.double()}), TEST_SIZES)
    assert line["preferred"] == [[3, 5, 1, 6], [], [], [], [], [], [5]]
    assert "preferred" not in metrics.round_line(some, TEST_SIZES)


def run_of(values, losses=None):
    """Lines of a run whose clients all have the same accuracy (share of 1), and whose last value is the final one."""
    losses = losses or [1.0] * len(values)
    lines = [
        {**metrics.round_line(a_round(scores([v] * 4, [x] * 4), scores([v] * 2, [x] * 2)), TEST_SIZES), "round": number}
        for number, (v, x) in enumerate(zip(values[:-1], losses[:-1], strict=True), 1)
    ]
    return [*lines, metrics.final_line(scores([values[-1]] * 4, [losses[-1]] * 4), TEST_SIZES, len(lines))]


def test_best_last_and_mean_of_the_last_ten():
    values = [0.1, 0.9, 0.9, *[0.5] * 8, 0.7]  # 11 rounds and the models they end with
    summary = summarise(run_of(values))
    assert {key: summary[key] for key in ("best", "best_round", "last")} == {"best": 90, "best_round": 1, "last": 70}
    assert summary["series"]["after.all"]["best_round"] == 2  # of the models that round 2 has trained
    assert summary["mean_last_10"] == 56.0  # (0.9 + 8 * 0.5 + 0.7) / 10
    assert summary["series"]["before.all"]["last"] == 70  # the final aggregation counts
    assert summary["series"]["before.participants"]["last"] == 50  # nobody takes part after the last round
    assert summary["series"]["after.all"]["mean_last_10"] == 58.0  # (2 * 0.9 + 8 * 0.5) / 10
    names = ("all", "all_weighted", "participants", "participants_weighted")
    assert set(summary["series"]) == {f"{when}.{name}" for when in ("before", "after") for name in names}


def test_the_best_round_is_the_one_after_which_the_models_were_best():
    assert summarise(run_of([0.9, 0.1, 0.2]))["best_round"] == 0  # before the first round
    assert summarise(run_of([0.1, 0.2, 0.9]))["best_round"] == 2  # after the last of two


def test_fewer_than_ten_rounds():
    assert summarise(run_of([0.2, 0.4]))["mean_last_10"] == 30.0


def test_the_best_loss_is_the_smallest():
    summary = summarise_loss(run_of([0.1] * 4, [3.0, 1.0, 1.0, 2.0]))
    assert summary == {"best": 1.0, "best_round": 1, "last": 2.0, "mean_last_10": 1.75}


def test_without_classes_there_is_no_accuracy():
    lines = run_of([math.nan] * 3, [3.0, 2.0, 1.0])
    assert lines[0]["before"]["all"] is None
    summary = {"accuracy": summarise(lines), "loss": summarise_loss(lines)}
    assert summary["accuracy"]["best"] is summary["accuracy"]["last"] is summary["accuracy"]["mean_last_10"] is None
    assert summary["loss"]["last"] == 1.0
    json.dumps([lines, summary], allow_nan=False)


@pytest.mark.parametrize("gone", [math.nan, math.inf])
def test_a_diverged_model_has_no_loss(gone):
    summary = summarise_loss(run_of([0.1] * 3, [3.0, gone, gone]))
    assert summary == {"best": 3.0, "best_round": 0, "last": None, "mean_last_10": None}
