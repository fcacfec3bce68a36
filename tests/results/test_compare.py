"""Methods at equal cost: budgets, what fits into them, and the gain per client, from real runs."""

import numpy as np
import pytest

import feddwa
from feddwa.cli import main
from feddwa.results.compare import budgets, leaderboard
from feddwa.results.methods import by_method
from feddwa.results.record import read


@pytest.fixture(scope="module")
def methods(runs):
    return by_method(read([runs]))


def test_what_is_spent_is_what_the_lines_say(methods):
    for method in methods:
        for run in method.runs:
            rounds = run.lines[:-1]
            both = [(line["bytes_up"] + line["bytes_down"]) * line["participants"] for line in rounds]
            assert run.spent("bytes")[-1] == sum(both)
            assert run.spent("flops")[-1] == sum(line["flops"] * line["participants"] for line in rounds)
            seconds = sum(second for line in rounds for second in line["seconds"].values())
            assert run.spent("seconds")[-1] == run.seconds == pytest.approx(seconds)
            assert len(run.spent("bytes")) == len(run.curve)


def test_within_the_budget_of_the_cheapest(methods):
    """FedAvg sends two models, FedDWA three and trains twice; Local sends nothing, so bytes never stop it."""
    places = {place.name: place for place in leaderboard(methods)}
    limits = budgets(methods)
    average = next(method for method in methods if method.algorithm == "fedavg")
    assert limits["bytes"] == average.runs[0].spent("bytes")[-1]
    assert places["FedAvg"].at["bytes"] == pytest.approx(average.last)
    dwa = next(method for method in methods if method.algorithm == "feddwa")
    for cost, rounds in (("bytes", 4), ("flops", 3)):  # of 6: two thirds, a half
        expected = np.mean([run.curve[rounds] for run in dwa.runs])
        assert places["FedDWA"].at[cost] == pytest.approx(expected)
    assert places["Local"].at["bytes"] == pytest.approx(places["Local"].last.mean)


def test_gains_are_per_client_and_seed(methods):
    places = {place.name: place for place in leaderboard(methods)}
    alone, dwa = ({run.config.seed: run.scores[-1] for run in m.runs} for name in ("local", "feddwa")
                  for m in methods if m.algorithm == name)  # fmt: skip
    gains = np.sort(np.concatenate([dwa[seed] - alone[seed] for seed in (0, 1)]))
    assert places["FedDWA"].gain.mean == pytest.approx(gains.mean())
    assert places["FedDWA"].gain.worst_tenth == pytest.approx(gains[:1].mean())  # a tenth of sixteen
    assert places["FedDWA"].gain.losers == 100 * (gains < 0).mean()
    assert places["Local"].gain is None


def test_the_command(runs, tmp_path, capsys):
    assert main(["leaderboard", str(runs), "-o", str(tmp_path / "figures")]) == 0
    out = capsys.readouterr().out
    assert "FedAvg" in out
    assert "worst" in out
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["gain.png", "pareto.png"]


def test_without_local_there_is_no_gain(tmp_path, capsys):
    feddwa.run(algorithm="fedavg", clients=4, rounds=2, out=str(tmp_path / "run"))
    assert main(["leaderboard", str(tmp_path / "run")]) == 0
    assert "-" in capsys.readouterr().out
    assert main(["leaderboard", str(tmp_path)]) == 0
    (tmp_path / "run" / "record.json").unlink()
    assert main(["leaderboard", str(tmp_path / "run")]) == 2
    assert "no run is finished" in capsys.readouterr().err
